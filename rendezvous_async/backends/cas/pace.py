"""How often to read the value, and how long to wait before a retry. Values only, no clock."""

from __future__ import annotations

from random import Random

__all__ = ["Pace"]

QUICKEST = 0.01
CALMEST = 0.5
"""Lower and upper bound on the seconds between two reads of a store that answers fast."""
EAGERNESS = 0.1
"""The pause, as a fraction of the time since the last change."""
MOST_LOOKS = 1000.0
"""Upper bound on the reads per second of all sessions together, if each is in a process of its own."""
SHARE = 3.0
"""A pause is at least this many times as long as a read, so that a slow store is not read all the time."""
FIRST_BACKOFF = 0.001
LONGEST_BACKOFF = 0.25
AFTER_FAILURE = 0.02
LONGEST_AFTER_FAILURE = 1.0
SMOOTHING = 0.2


class Pace:
    """The pace of one client, which follows how long the store takes.

    Args:
        rng: The source of jitter: clients that collided must not collide again.

    Attributes:
        latency: The average seconds of a call to the store.
    """

    def __init__(self, rng: Random) -> None:
        self.latency = 0.0
        self._rng = rng

    def took(self, seconds: float) -> None:
        """Note how long a call to the store took."""
        self.latency += SMOOTHING * (seconds - self.latency)

    def pause(self, since_change: float, sessions: int) -> float:
        """Return the seconds until the next read: few soon after a change, more if there are many readers."""
        least = max(QUICKEST, SHARE * self.latency, sessions / MOST_LOOKS)
        return max(least, min(EAGERNESS * since_change, CALMEST))

    def backoff(self, lost: int) -> float:
        """Return how long to wait after this many lost compares in a row."""
        most = min(max(FIRST_BACKOFF, self.latency) * 2.0 ** min(lost, 16), LONGEST_BACKOFF)
        return self._rng.random() * most

    def after_failures(self, count: int) -> float:
        """Return how long to wait after this many unanswered calls in a row."""
        return (0.5 + 0.5 * self._rng.random()) * min(AFTER_FAILURE * 2.0 ** min(count, 16), LONGEST_AFTER_FAILURE)
