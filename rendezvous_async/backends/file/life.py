"""Who is alive, without comparing clocks: each session has a small file that its owner keeps changing.

An observer looks at the file now and then, and counts by its own monotonic clock for how long it has seen no change.
What the file holds is compared for equality only; its times are never looked at. A look that comes much later than
planned counts as one that came in time: an observer that was stopped, or that hung, has not been observing.

An owner that dies also lets go of its lock on the file. Where the directory is on a disk of this machine that alone
proves that it is dead, and the session can be ended at once; elsewhere a lock may be lost by a living owner, and only
silence counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable

import msgspec

from rendezvous_async.backends.file.directory import create_file
from rendezvous_async.backends.file.lock import hold, is_held

__all__ = ["Lives", "Look", "Observer"]

LOOKS_PER_TTL = 5
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Look(msgspec.Struct, frozen=True):
    """What one look at a session's file showed: what it held, and whether its owner is known to be dead."""

    value: bytes
    is_dead: bool = False


class _Own(msgspec.Struct):
    fd: int
    beats: int
    beaten_at: float


class Lives:
    """The files of the sessions in one directory; those that this process owns, and those that it looks at.

    Args:
        directory: A descriptor of the directory of these files.
        mode: To create them with.
        is_local: Whether a lock that is free proves its owner dead, and a write is seen by all at once.
    """

    def __init__(self, directory: int, mode: int, *, is_local: bool) -> None:
        self.directory = directory
        self._mode = mode
        self._is_local = is_local
        self._own: dict[str, _Own] = {}

    def create(self, session: str) -> None:
        """Create the file of a new session; a file left over from one that never came to be is replaced."""
        self.remove(session)
        fd = create_file(_plain(session), self.directory, self._mode)
        hold(fd)
        self._own[session] = _Own(fd, 0, time.monotonic())
        self.beat(session, 0.0)

    def beat(self, session: str, ttl: float) -> bool:
        """Change the file of an own session.

        Returns:
            Whether this came in time, so that no observer can have missed the change: the one before was made less
            than a TTL ago. If not, beat again while no observer can be about to end the session.
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
        """Stop being the owner of a session's file."""
        own = self._own.pop(session, None)
        if own is not None:
            os.close(own.fd)

    def remove(self, session: str) -> None:
        """Remove the file of a session that has ended, whosever it was."""
        self.let_go(session)
        with contextlib.suppress(OSError):
            os.unlink(_plain(session), dir_fd=self.directory)

    def look(self, session: str) -> Look:
        """Look at a session's file; one that is not there is silent, but one that cannot be read tells nothing."""
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
        """Remove the files of sessions that are not there any more; only under the lock."""
        for name in os.listdir(self.directory):
            if not keep(name):
                self.remove(name)

    def close(self) -> None:
        for session in tuple(self._own):
            self.let_go(session)
        if self.directory >= 0:
            os.close(self.directory)
            self.directory = -1


class _Watched(msgspec.Struct):
    look: Look
    looked_at: float
    silent_for: float = 0.0


class Observer:
    """For how long each session has shown no change, by this process's own clock; no files and no clock of its own."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def observe(
        self, sessions: Iterable[tuple[str, float]], look: Callable[[str], Look], now: float
    ) -> tuple[dict[str, Look], float]:
        """Look at those sessions whose turn it is.

        Args:
            sessions: The open ones, each with its TTL.
            look: How to look at one.
            now: By this process's monotonic clock.

        Returns:
            The sessions that are over, each with the look that says so; and when to observe again.
        """
        over = {}
        again = float("inf")
        before, self._watched = self._watched, {}
        for session, ttl in sessions:
            interval = ttl / LOOKS_PER_TTL
            watched = before.get(session)
            if watched is None:
                watched = _Watched(look(session), now)
            elif now >= watched.looked_at + min(interval, ttl - watched.silent_for):
                seen = look(session)
                silent = watched.silent_for + min(now - watched.looked_at, 2 * interval)
                watched = _Watched(seen, now, silent if seen == watched.look else 0.0)
            self._watched[session] = watched
            if watched.look.is_dead or watched.silent_for >= ttl:
                over[session] = watched.look
                again = min(again, now + interval)
            else:
                again = min(again, watched.looked_at + min(interval, ttl - watched.silent_for))
        return over, again


def _plain(session: str) -> str:
    """The name of a session's file; ids that are no plain names would come from a forged log."""
    if not _PLAIN.fullmatch(session):
        raise OSError(f"the session id {session!r} is not a plain name")
    return session
