"""How often to look at the value, and how long to wait before a write is tried again. Values only, no clock."""

from __future__ import annotations

from random import Random

__all__ = ["Pace"]

QUICKEST = 0.01
CALMEST = 0.5
"""Seconds between two looks, at least and at most, at a store that answers fast."""
EAGERNESS = 0.1
"""How long to wait for the next change, as a part of how long ago the last one was."""
MOST_LOOKS = 1000.0
"""How often all sessions together look in a second, if each has a process of its own."""
SHARE = 3.0
"""A look is followed by a pause that is this many times as long, so that a slow store is not asked all the time."""
FIRST_BACKOFF = 0.001
LONGEST_BACKOFF = 0.25
AFTER_FAILURE = 0.02
LONGEST_AFTER_FAILURE = 1.0
SMOOTHING = 0.2


class Pace:
    """The pace of one client of a store, by how long the store takes.

    Args:
        rng: Clients that collide must not do so again.

    Attributes:
        latency: Seconds that a call of the store takes, on average.
    """

    def __init__(self, rng: Random) -> None:
        self.latency = 0.0
        self._rng = rng

    def took(self, seconds: float) -> None:
        """Note how long a call of the store took."""
        self.latency += SMOOTHING * (seconds - self.latency)

    def pause(self, since_change: float, sessions: int) -> float:
        """Return the seconds until the next look: few soon after a change, more if there are many who look."""
        least = max(QUICKEST, SHARE * self.latency, sessions / MOST_LOOKS)
        return max(least, min(EAGERNESS * since_change, CALMEST))

    def backoff(self, lost: int) -> float:
        """Return how long to wait after as many lost compares in a row."""
        most = min(max(FIRST_BACKOFF, self.latency) * 2.0 ** min(lost, 16), LONGEST_BACKOFF)
        return self._rng.random() * most

    def after_failures(self, count: int) -> float:
        """Return how long to wait after as many calls in a row without an answer."""
        return (0.5 + 0.5 * self._rng.random()) * min(AFTER_FAILURE * 2.0 ** min(count, 16), LONGEST_AFTER_FAILURE)
