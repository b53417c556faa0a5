"""Liveness without comparing clocks: each owner keeps changing something, and others observe the changes.

An observer looks now and then, and measures by its own monotonic clock for how long it has seen no change. What it sees
is only compared for equality. A look that comes much later than planned counts as if it had come in time: an observer
that was stopped, or that hung, has not been observing. It reads nothing itself: its caller says how to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

__all__ = ["Look", "Observer"]

LOOKS_PER_TTL = 5


class Look(msgspec.Struct, frozen=True):
    """What one look at a session showed: what its owner last wrote, and whether its owner is known to be dead."""

    value: bytes
    is_dead: bool = False


class _Watched(msgspec.Struct):
    look: Look
    looked_at: float
    silent_for: float = 0.0


class Observer:
    """Measures for how long each session has shown no change; the caller passes the time in."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def observe(
        self, sessions: Iterable[tuple[str, float]], look: Callable[[str], Look], now: float
    ) -> tuple[dict[str, Look], float]:
        """Look at the sessions whose turn it is.

        Args:
            sessions: The open sessions, each with its TTL.
            look: Looks at a session.
            now: The time by this process's monotonic clock.

        Returns:
            The sessions that are over, each with the look that shows it; and when to observe again.
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
