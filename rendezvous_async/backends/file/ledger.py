"""The contents of a directory, the log and the session files, and the operations on them.

It must not start threads or take the directory's lock. The caller runs everything on one thread, and holds the lock for
``write`` and ``settle``. An operation that fails leaves the table unchanged. The lock is for fairness; exclusion comes
from ``settle``, which also locks the log itself: removing the log would be noticed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from rendezvous_async.backends.file.directory import Directory, explain
from rendezvous_async.backends.file.life import Lives
from rendezvous_async.backends.file.lock import FileLock
from rendezvous_async.backends.observer import Look
from rendezvous_async.backends.table.frames import Committed, Ended, LogRecord, Started
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write
from rendezvous_async.causes import Cause
from rendezvous_async.errors import RendezvousError, RendezvousSessionError

__all__ = ["HeldByAnother", "Ledger", "LedgerChange", "NeedsLock"]

logger = logging.getLogger("rendezvous_async.file")

COMPACT_AGAIN = 10.0
"""Seconds until a failed compaction is retried."""


class LedgerChange:
    """The changes of one batch of jobs: records to append, and callbacks for success and failure."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.then: list[Callable[[], None]] = []
        self.undo: list[Callable[[], None]] = []


class NeedsLock(Exception):
    """Raised by a job that must be repeated with the lock."""


class HeldByAnother(Exception):
    """Raised by ``settle``: the lock file was removed, and another process holds the log."""


class Ledger:
    """The log of a directory and the files of its sessions.

    Args:
        directory: The open directory.
        lives: The files of the sessions.
        fsync: Whether an append waits for the disk.
        lock: Held while the log is created, if there is none yet.
    """

    def __init__(self, directory: Directory, lives: Lives, lock: FileLock, *, fsync: bool) -> None:
        self.directory = directory
        self.lives = lives
        self._compact_at = 0.0
        path = os.path.join(directory.path, "log")
        if _exists("log", directory.fd):
            self._log = Log.open(path, directory=directory.fd, writer=False, sync=fsync, mode=directory.mode)
        else:
            lock.acquire(wait=True)
            try:
                self._log = Log.open(path, directory=directory.fd, sync=fsync, mode=directory.mode)
            finally:
                lock.release()

    @property
    def table(self) -> Table:
        return self._log.table

    @property
    def unread(self) -> int:
        """The bytes of an incomplete frame at the end of the log."""
        return self._log.unread

    @property
    def is_long(self) -> bool:
        return self._log.is_long and time.monotonic() >= self._compact_at

    def close(self) -> None:
        self._log.close()

    def follow(self) -> bool:
        """Read what others have appended; return whether the table was replaced, so that anything may have changed.

        Raises:
            RendezvousError: The log cannot be read.
        """
        try:
            return self._log.read_new()
        except OSError as error:
            raise explain(self.directory.path, "read the log in", error) from error

    # With the lock

    def settle(self) -> bool:
        """Lock the log, follow it to its end, cut what a dead writer left there, and rewrite it after a failed fsync.

        Raises:
            HeldByAnother: Another process holds the log.
        """
        replaced = False
        try:
            if not self._log.hold():
                replaced = self.follow()  # It may have been compacted.
                if not self._log.hold():
                    raise HeldByAnother
        except OSError as error:
            raise explain(self.directory.path, "lock the log in", error) from error
        replaced = self.follow() or replaced
        try:
            self._log.trim()
        except OSError as error:
            raise explain(self.directory.path, "write in", error) from error
        if self._log.broken:
            self._log.compact(self.table.snapshot())
        return replaced

    def let_go(self) -> None:
        """Let other processes write."""
        self._log.let_go()

    def write(self, works: Sequence[Callable[[LedgerChange], Any]]) -> list[tuple[Any, RendezvousSessionError | None]]:
        """Do all works in one append, after ``settle``.

        Returns:
            For each work its result, or its own error.

        Raises:
            RendezvousError: Nothing was written or, if the disk failed, perhaps everything; the table shows which.
        """
        change = LedgerChange()
        outcomes: list[tuple[Any, RendezvousSessionError | None]] = []
        try:
            for work in works:
                try:
                    outcomes.append((work(change), None))
                except RendezvousSessionError as error:
                    outcomes.append((None, error))
            self._log.append(change.records)
        except (OSError, RendezvousError) as error:
            for undo in change.undo:
                undo()
            try:
                self._log.reload()
            except OSError as second:
                raise explain(self.directory.path, "read the log in", second) from error
            raise explain(self.directory.path, "write in", error) from error
        for then in change.then:
            then()
        return outcomes

    def compact(self) -> None:
        """Compact the log; after a failure, log a warning and let it grow."""
        try:
            snapshot = self.table.snapshot()
            self._log.compact(snapshot)
            self._log.table = Table.restore(snapshot, 0.0)  # Drops what the old one kept of ended sessions.
            self.lives.sweep(self.table.has_session)
        except (OSError, RendezvousError) as error:
            self._compact_at = time.monotonic() + COMPACT_AGAIN
            logger.warning("%s: the log could not be compacted and keeps growing: %s", self.directory.path, error)

    # Operations

    def get(self, key: str) -> Entry | None:
        return self.table.get(key)

    def list(self, name: str) -> Listing:
        return self.table.list(name)

    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        return self.table.changes(names, after)

    def commit(self, change: LedgerChange, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        commit = self.table.commit(writes, when)
        if commit.won and writes:
            change.records.append(Committed(writes, when))
        return commit

    def open_session(self, change: LedgerChange, ttl: float) -> str:
        session = self.table.open_session(ttl, 0.0)
        change.undo.append(lambda: self.lives.remove(session))
        self.lives.create(session)
        change.records.append(Started(session, ttl))
        return session

    def end_session(self, change: LedgerChange, session: str, cause: str) -> None:
        if self.table.end_session(session, cause):
            change.records.append(Ended(session, cause))
            change.then.append(lambda: self.lives.remove(session))

    def end_silent(self, change: LedgerChange, over: dict[str, Look]) -> None:
        """End expired sessions, unless their files have changed since that was noticed."""
        for session, look in over.items():
            if self.table.has_session(session) and self.lives.look(session) == look:
                how = "its owner has died" if look.is_dead else "its owner is silent"
                logger.info("%s: session %s is over: %s", self.directory.path, session, how)
                self.end_session(change, session, Cause.DIED if look.is_dead else Cause.SILENT)

    def keep_alive(self, change: LedgerChange | None, session: str, ttl: float) -> None:
        """Renew a session. A late beat needs the lock (a ``change``), as another process may be ending the session.

        Raises:
            NeedsLock: The beat was late, and the lock is not held.
        """
        if self.table.has_session(session):
            in_time = self.lives.beat(session, ttl)
            if change is None:
                if not in_time:
                    raise NeedsLock
                self.follow()  # It may have been ended on request before the beat.
            if self.table.has_session(session):
                return
        raise RendezvousSessionError(f"session {session} has ended")


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
