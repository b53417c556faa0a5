"""Every commit of a backend in its order, read without the library's client: from the log on the disk, or from etcd.

What a client was told is judged by this: it is what a restart would find. ``poll()`` returns what is new. The log is
the same for the TCP server and for the file backend; a file that is compacted is read to its end before the next one.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rendezvous_async.backends.base import Entry, Token
from rendezvous_async.backends.table.frames import read_records, replay, unframe
from rendezvous_async.backends.table.head import VERSIONS, read_snapshot
from rendezvous_async.backends.table.table import Table
from rendezvous_async.testing.etcd import EtcdMember
from tests.proof.etcd_history import EtcdHistory

__all__ = ["CommitSeen", "EtcdFollower", "Follower", "LogFollower"]


class CommitSeen(msgspec.Struct, frozen=True):
    """What one commit changed: absolute keys, with value None for those that it deleted.

    Attributes:
        gap: From after which revision on this is only the sum of several commits; None if it is one commit.
    """

    revision: int
    entries: tuple[Entry, ...]
    gap: int | None = None


class Follower(ABC):
    """Reads a backend's commits."""

    epoch: str | None = None

    @abstractmethod
    def poll(self) -> list[CommitSeen]:
        """Return the commits since the last time; blocks for no longer than a read of a file takes."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class LogFollower(Follower):
    """Follows a log file (``backends/log.py``), whoever writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._at = 0
        self._table: Table | None = None

    def __repr__(self) -> str:
        return f"<LogFollower {self._path} {self._table}>"

    def poll(self) -> list[CommitSeen]:
        found: list[CommitSeen] = []
        if self._fd >= 0:
            found.extend(self._follow())
        while self._is_replaced():
            if self._fd >= 0:
                found.extend(self._follow())  # what was written between the last look and the replacement
            try:
                found.extend(self._switch())
            except FileNotFoundError:
                break
            found.extend(self._follow())
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_replaced(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        if self._fd < 0:
            return True
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _switch(self) -> Iterator[CommitSeen]:
        """Open the file that stands there now; what its snapshot has and we have not seen is a gap."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self.close()
        self._fd = fd
        data = memoryview(self._read(0))
        snapshot, self._at = read_snapshot(data, VERSIONS[-1])
        before, self._table = self._table, Table.restore(snapshot, 0.0)
        self._table.take_changed()
        self.epoch = snapshot.epoch
        seen = 0 if before is None else before.revision
        if snapshot.revision > seen:
            entries = [entry for entry in snapshot.entries if entry.token.revision > seen]
            entries += [
                Entry(key, None, Token(snapshot.epoch, revision))
                for key, revision in snapshot.graves
                if revision > seen
            ]
            yield CommitSeen(snapshot.revision, tuple(sorted(entries, key=lambda entry: entry.key)), seen)

    def _follow(self) -> Iterator[CommitSeen]:
        assert self._table is not None
        data = memoryview(self._read(self._at))
        done = 0
        while (frame := unframe(data, done)) is not None:
            payload, done = frame
            for record in read_records(payload):
                replay(self._table, [record], 0.0)
                if changed := self._table.take_changed():
                    token = self._table.token
                    entries = [self._table.get(key) or Entry(key, None, token) for key in sorted(set(changed))]
                    yield CommitSeen(token.revision, tuple(entries))
        self._at += done

    def _read(self, start: int) -> bytes:
        parts = []
        while part := os.pread(self._fd, 1 << 20, start):
            parts.append(part)
            start += len(part)
        return b"".join(parts)


class EtcdFollower(Follower):
    """Follows etcd's own history, without the keys that are the backend's own (``@epoch``, ``@commits/``).

    Args:
        members: Of the cluster.
        prefix: The namespace to follow, with its slashes.
    """

    SILENCE = 3.0

    def __init__(self, members: Sequence[EtcdMember], prefix: str) -> None:
        self._prefix = prefix
        self._found: list[CommitSeen] = []
        self._lock = threading.Lock()
        self._history = EtcdHistory(members, prefix, self._take, self.SILENCE)
        self._history.start()

    def __repr__(self) -> str:
        return f"<EtcdFollower of {self._history}>"

    @property
    def epoch(self) -> str | None:  # type: ignore[override]
        return self._history.epoch

    def poll(self) -> list[CommitSeen]:
        with self._lock:
            found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._history.stop()

    def _take(self, revision: int, entries: Sequence[Entry]) -> None:
        runs = tuple(entry for entry in entries if not entry.key.startswith(f"{self._prefix}@"))
        if runs:
            with self._lock:
                self._found.append(CommitSeen(revision, runs))
