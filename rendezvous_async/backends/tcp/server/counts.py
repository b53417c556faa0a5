"""Counters of a server since its start, for its metrics. No label comes from a client, so memory is bounded.

They are plain numbers, which ``page/metrics.py`` hands to prometheus-client on each scrape: a server without a status
page does not import it, and counting takes no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

__all__ = ["Counts", "Durations"]


class Durations:
    """A histogram of durations.

    Attributes:
        counts: The number of durations in each bucket; the last bucket has no upper bound.
        total: The sum of all durations in seconds.
    """

    BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.total += seconds


class Counts:
    """The counters.

    Attributes:
        connections: Admitted connections, after TLS.
        refused: Refused connections by code; ``silently`` for those dropped without a reason.
        commits: Commits that changed something.
        lost: Commits whose conditions did not hold.
        opened: Opened sessions.
        expired: Sessions that expired by their TTL or after the disconnect grace.
        keep_alives: Answered keep-alives.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.refused: Counter[str] = Counter()
        self.commits = 0
        self.lost = 0
        self.opened = 0
        self.expired = 0
        self.keep_alives = 0
