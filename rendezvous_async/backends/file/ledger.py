"""What a directory holds, and what can be done to it: the log and the sessions' files, without thread or lock.

The caller runs all of this on one thread. ``write`` and ``settle`` are for when it holds the directory's lock; the rest
is for any time. What fails leaves the table as it was. The lock gives everybody a turn; that nobody else writes is
certain because ``settle`` also holds the log itself, which nobody can remove without being noticed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from rendezvous_async.backends.base import Commit, Condition, Entry, Listing, Token, Write
from rendezvous_async.backends.file.directory import Directory, explain
from rendezvous_async.backends.file.life import Lives, Look
from rendezvous_async.backends.file.lock import FileLock
from rendezvous_async.backends.frames import Committed, Ended, Opened, Record
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.table import Table
from rendezvous_async.errors import RendezvousError, RendezvousSessionError

__all__ = ["Change", "HeldByAnother", "Ledger", "NeedsLock"]

logger = logging.getLogger("rendezvous_async.file")

COMPACT_AGAIN = 10.0
"""Seconds after which a compaction that failed is tried again."""


class Change:
    """What one batch of jobs does: records to append, and what follows when that has worked, or failed."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.then: list[Callable[[], None]] = []
        self.undo: list[Callable[[], None]] = []


class NeedsLock(Exception):
    """Raised by a job that was done without the lock: do it again with the lock."""


class HeldByAnother(Exception):
    """Raised by ``settle``: another process writes though this one has the lock, since the lock file was removed."""


class Ledger:
    """The log of a directory, followed, and the files of its sessions.

    Args:
        directory: Where they are.
        lives: The files of the sessions.
        fsync: Whether an append waits for the disk.
        lock: Held while the log is begun, if there is none yet.
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
        """Bytes at the end of the log that are not a whole frame, or not yet."""
        return self._log.unread

    @property
    def is_long(self) -> bool:
        return self._log.is_long and time.monotonic() >= self._compact_at

    def close(self) -> None:
        self._log.close()

    def follow(self) -> bool:
        """Read what others have appended; return whether the table is another one, so that anything may be new.

        Raises:
            RendezvousError: The log cannot be read.
        """
        try:
            return self._log.read_new()
        except OSError as error:
            raise explain(self.directory.path, "read the log in", error) from error

    # With the lock

    def settle(self) -> bool:
        """Hold the log, follow it to its very end, cut what a dead writer left there; mend it if a sync has failed.

        Raises:
            HeldByAnother: Another process writes.
        """
        replaced = False
        try:
            if not self._log.hold():
                replaced = self.follow()  # it may have been compacted
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

    def write(self, works: Sequence[Callable[[Change], Any]]) -> list[tuple[Any, RendezvousSessionError | None]]:
        """Do all works as one append; ``settle`` comes first.

        Returns:
            For each its result, or the error that is its own affair.

        Raises:
            RendezvousError: Nothing was done, or, if the disk did not answer for it, maybe all; the table shows which.
        """
        change = Change()
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
        """Make the log short again; a failure is noted, and the log grows on."""
        try:
            snapshot = self.table.snapshot()
            self._log.compact(snapshot)
            self._log.table = Table.restore(snapshot, 0.0)  # it forgets what the old one kept of sessions long gone
            self.lives.sweep(self.table.has_session)
        except (OSError, RendezvousError) as error:
            self._compact_at = time.monotonic() + COMPACT_AGAIN
            logger.warning("%s: the log could not be compacted and grows on: %s", self.directory.path, error)

    # Works

    def get(self, key: str) -> Entry | None:
        return self.table.get(key)

    def list(self, name: str) -> Listing:
        return self.table.list(name)

    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        return self.table.changes(names, after)

    def commit(self, change: Change, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        commit = self.table.commit(writes, when)
        if commit.won and writes:
            change.records.append(Committed(writes, when))
        return commit

    def open_session(self, change: Change, ttl: float) -> str:
        session = self.table.open_session(ttl, 0.0)
        change.undo.append(lambda: self.lives.remove(session))
        self.lives.create(session)
        change.records.append(Opened(session, ttl))
        return session

    def end_session(self, change: Change, session: str) -> None:
        if self.table.end_session(session):
            change.records.append(Ended(session))
            change.then.append(lambda: self.lives.remove(session))

    def end_silent(self, change: Change, over: dict[str, Look]) -> None:
        """End the sessions that look now, under the lock, as they looked when their time was over."""
        for session, look in over.items():
            if self.table.has_session(session) and self.lives.look(session) == look:
                how = "its owner is dead" if look.is_dead else "its owner is silent"
                logger.info("%s: session %s is over: %s", self.directory.path, session, how)
                self.end_session(change, session)

    def keep_alive(self, change: Change | None, session: str, ttl: float) -> None:
        """Show life. If it comes late, only the lock (a ``change``) makes sure that nobody is about to end the session.

        Raises:
            NeedsLock: It came late, and there is no change.
        """
        if self.table.has_session(session):
            in_time = self.lives.beat(session, ttl)
            if change is None:
                if not in_time:
                    raise NeedsLock
                self.follow()  # it may have been ended on request before the beat
            if self.table.has_session(session):
                return
        raise RendezvousSessionError(f"session {session} has ended")


def _exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
