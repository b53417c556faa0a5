"""Counters of a server since its start, for its metrics. No label comes from a client, so memory is bounded.

They are plain numbers, which ``page/metrics.py`` hands to prometheus-client on each scrape: a server without a status
page does not import it, and counting takes no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from rendezvous_async.causes import Cause

__all__ = ["SYNC_BOUNDS", "Counts", "Durations", "Ending", "ending_of"]

SYNC_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUEST_BOUNDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1, 1.0)


class Ending(StrEnum):
    """Why a session ended, as far as the server knows."""

    LEFT = "left"
    EVICTED = "evicted"
    DISCONNECTED = "disconnected"
    SILENT = "silent"


def ending_of(cause: str) -> Ending:
    """Return what counts as the end of a session that ended for this cause."""
    endings = {
        Cause.CUT: Ending.DISCONNECTED,
        Cause.SILENT: Ending.SILENT,
        Cause.STALLED: Ending.SILENT,
        Cause.EVICTED: Ending.EVICTED,
    }
    return endings[Cause(cause)] if cause in endings else Ending.LEFT


class Durations:
    """A histogram of durations.

    Args:
        bounds: The upper bounds of the buckets but the last, in seconds.

    Attributes:
        bounds: The same.
        counts: The number of durations in each bucket; the last bucket has no upper bound.
        total: The sum of all durations in seconds.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class Counts:
    """The counters.

    Attributes:
        connections: Admitted connections, after TLS.
        refused: Refused connections by code; ``silently`` for those dropped without a reason.
        commits: Commits that changed something.
        lost: Commits whose conditions did not hold.
        opened: Opened sessions.
        ended: Ended sessions by cause: by their own client, by another one, after the disconnect grace, or after a TTL
            without a keep-alive on a connection that was open.
        keep_alives: Answered keep-alives.
        requests: How long requests took by kind, without waiting for the disk.
    """

    def __init__(self, kinds: Iterable[type]) -> None:
        self.connections = 0
        self.refused: Counter[str] = Counter()
        self.commits = 0
        self.lost = 0
        self.opened = 0
        self.ended = dict.fromkeys(Ending, 0)
        self.keep_alives = 0
        self.requests = {kind: Durations(REQUEST_BOUNDS) for kind in kinds}

    @property
    def expired(self) -> int:
        """Sessions that expired by their TTL or after the disconnect grace."""
        return self.ended[Ending.DISCONNECTED] + self.ended[Ending.SILENT]
