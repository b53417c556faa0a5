"""Metrics of a node in its own process, in a registry that the user gives.

::

    from prometheus_client import REGISTRY, start_http_server
    from rendezvous_async.telemetry.metrics import NodeMetrics

    start_http_server(9100)
    metrics = NodeMetrics(REGISTRY)  # one per process
    async with rdzv.connect("tcp://head:29400", run_id="job-7", nodes="2:4") as rendezvous:
        metrics.follow(rendezvous)

The only label from outside is the run's id: at most ``MOST_RUNS`` at a time, each for as long as a rendezvous is
followed, and never a node's. With several nodes of one run in a process, gauges show the last that changed.
"""

from __future__ import annotations

from collections import Counter as Tally
from contextlib import suppress
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rendezvous_async.node.events import Event, EventKind, Listener
from rendezvous_async.telemetry.labels import label_value

__all__ = ["Followed", "NodeMetrics"]

MOST_RUNS = 100
OTHER_RUNS = "(other runs)"
"""The label of what is followed beyond ``MOST_RUNS``."""
JOIN_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
HOLD_BOUNDS = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0, 604800.0)
CHANGES = (
    EventKind.NODES_WAITING,
    EventKind.MEMBER_LOST,
    EventKind.RESIZED,
    EventKind.EVICTED,
    EventKind.CLOSED,
)
OVER = (EventKind.JOINING, EventKind.EVICTED, EventKind.SESSION_LOST, EventKind.LEFT, EventKind.ENDED)
"""What ends a node's hold of its round. A round of a closed run is held until the node leaves."""


class Followed(Protocol):
    """What ``NodeMetrics`` needs of a rendezvous."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with each event."""


class NodeMetrics:
    """The metrics of the nodes of this process.

    Args:
        registry: Where they are registered; only one ``NodeMetrics`` fits into a registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"rdzv_node_{name}", help, ("run_id", *labels), registry=registry)

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"rdzv_node_{name}", help, ("run_id",), registry=registry)

        def histogram(name: str, help: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"rdzv_node_{name}", help, ("run_id",), registry=registry, buckets=bounds)

        self.joins = histogram("join_seconds", "Time from the call of join() to its world.", JOIN_BOUNDS)
        self.joins_failed = counter("joins_failed", "Calls of join() that ended without a world.")
        self.holds = histogram("hold_seconds", "Time for which a round was held.", HOLD_BOUNDS)
        self.changes = counter("changes", "Changes of this node's world, each at most once a round.", "change")
        self.sessions_lost = counter("sessions_lost", "Sessions that ended before this node left.")
        self.stalls = counter("stalls", "Stalls of the event loop, or suspensions, of more than a keep-alive interval.")
        self.stalled = counter("stalled_seconds", "How long they took.")
        self.round = gauge("round", "The last round that this node joined.")
        self.holding = gauge("holding", "1 while this node holds a round.")
        self.coordinating = gauge("coordinating", "1 while this node coordinates the run.")
        self._followed: Tally[str] = Tally()

    def follow(self, rendezvous: Followed) -> None:
        """Count what happens to this rendezvous from now on, until it is left. Call it once, before ``join()``."""
        run_id = label_value(rendezvous.run_id)
        if run_id not in self._followed and len(self._followed) >= MOST_RUNS:
            run_id = OTHER_RUNS
        self._followed[run_id] += 1
        for change in CHANGES:
            self.changes.labels(run_id, change.value)  # 0 is a value, too.
        rendezvous.listen(_RunMeter(self, run_id).count)

    def drop(self, run_id: str) -> None:
        """Drop what has this label, once nothing with it is followed any more."""
        self._followed[run_id] -= 1
        if self._followed[run_id]:
            return
        del self._followed[run_id]
        metrics = (self.joins, self.joins_failed, self.holds, self.sessions_lost, self.stalls, self.stalled)
        series = [(metric, (run_id,)) for metric in (*metrics, self.round, self.holding, self.coordinating)]
        for metric, labels in (*series, *((self.changes, (run_id, change.value)) for change in CHANGES)):
            with suppress(KeyError):  # Some versions raise it for what has no value.
                metric.remove(*labels)


class _RunMeter:
    """Counts the events of one rendezvous."""

    def __init__(self, metrics: NodeMetrics, run_id: str) -> None:
        self._metrics = metrics
        self._run_id = run_id
        self._joining_since: float | None = None
        self._holding_since: float | None = None

    def count(self, event: Event) -> None:
        metrics, run_id = self._metrics, self._run_id
        if event.kind in OVER and self._holding_since is not None:
            metrics.holds.labels(run_id).observe(event.at - self._holding_since)
            metrics.holding.labels(run_id).set(0)
            self._holding_since = None
        if event.kind in CHANGES:
            metrics.changes.labels(run_id, event.kind.value).inc()
        match event.kind:
            case EventKind.JOINING:
                self._joining_since = event.at
            case EventKind.JOINED:
                if self._joining_since is not None:
                    metrics.joins.labels(run_id).observe(event.at - self._joining_since)
                metrics.round.labels(run_id).set(event.round)
                metrics.holding.labels(run_id).set(1)
                self._holding_since = event.at
            case EventKind.JOIN_FAILED:
                metrics.joins_failed.labels(run_id).inc()
            case EventKind.SESSION_LOST:
                metrics.sessions_lost.labels(run_id).inc()
            case EventKind.STALLED:
                metrics.stalls.labels(run_id).inc()
                metrics.stalled.labels(run_id).inc(float(event.detail.partition(" ")[0]))
            case EventKind.COORDINATING | EventKind.RESIGNED:
                metrics.coordinating.labels(run_id).set(event.kind is EventKind.COORDINATING)
            case EventKind.ENDED:
                metrics.drop(run_id)
            case _:
                pass
