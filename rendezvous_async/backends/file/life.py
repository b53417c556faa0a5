"""Liveness of sessions without comparing clocks: each session has a small file that its owner keeps changing.

Observers look at the file periodically and judge by ``backends/observer.py``. The contents are only compared for
equality; file times are never used.

An owner that dies also releases its lock on the file. On a local disk that proves its death, and the session can be
ended at once. Elsewhere a living owner may lose its lock, so only silence counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable

import msgspec

from rendezvous_async.backends.file.directory import create_file
from rendezvous_async.backends.file.lock import hold, is_held
from rendezvous_async.backends.observer import Look

__all__ = ["Lives"]

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _Own(msgspec.Struct):
    fd: int
    beats: int
    beaten_at: float


class Lives:
    """The session files in one directory: those that this process owns, and those that it observes.

    Args:
        directory: The file descriptor of the directory.
        mode: The mode of new files.
        is_local: Whether a free lock proves its owner dead, and writes are visible at once.
    """

    def __init__(self, directory: int, mode: int, *, is_local: bool) -> None:
        self.directory = directory
        self._mode = mode
        self._is_local = is_local
        self._own: dict[str, _Own] = {}

    def create(self, session: str) -> None:
        """Create the file of a new session; replace a leftover from one that was never opened."""
        self.remove(session)
        fd = create_file(_plain(session), self.directory, self._mode)
        hold(fd)
        self._own[session] = _Own(fd, 0, time.monotonic())
        self.beat(session, 0.0)

    def beat(self, session: str, ttl: float) -> bool:
        """Change the file of a session that this process owns.

        Returns:
            Whether the beat was in time: the one before was less than a TTL ago, so no observer has seen the session
            expire. If not, beat again under the lock.
        """
        own = self._own.get(session)
        if own is None:
            return True
        before, own.beaten_at = own.beaten_at, time.monotonic()
        own.beats += 1
        os.pwrite(own.fd, b"%020d\n" % own.beats, 0)
        if not self._is_local:
            os.fsync(own.fd)
        return time.monotonic() - before < 0.9 * ttl

    def let_go(self, session: str) -> None:
        """Stop owning a session's file."""
        own = self._own.pop(session, None)
        if own is not None:
            os.close(own.fd)

    def remove(self, session: str) -> None:
        """Remove the file of a session that has ended, whoever owned it."""
        self.let_go(session)
        with contextlib.suppress(OSError):
            os.unlink(_plain(session), dir_fd=self.directory)

    def look(self, session: str) -> Look:
        """Look at a session's file. A missing file counts as unchanged, an unreadable one as changed."""
        try:
            fd = os.open(_plain(session), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.directory)
            try:
                return Look(os.read(fd, 64), self._is_local and not is_held(fd))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return Look(b"")
        except OSError:
            return Look(b"unreadable at %d" % time.monotonic_ns())

    def sweep(self, keep: Callable[[str], bool]) -> None:
        """Remove the files of sessions that no longer exist; needs the lock."""
        for name in os.listdir(self.directory):
            if not keep(name):
                self.remove(name)

    def close(self) -> None:
        for session in tuple(self._own):
            self.let_go(session)
        if self.directory >= 0:
            os.close(self.directory)
            self.directory = -1


def _plain(session: str) -> str:
    """Return the name of a session's file; only a forged log has ids that are not plain names."""
    if not _PLAIN.fullmatch(session):
        raise OSError(f"the session id {session!r} is not a plain name")
    return session
