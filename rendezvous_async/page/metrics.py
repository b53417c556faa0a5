"""A server's metrics for Prometheus, collected on each scrape.

Each server has its own registry. Labels are bounded in number and length: runs are those that the status page shows;
all other labels have fixed values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rendezvous_async.backends.tcp.server.counts import Durations
from rendezvous_async.core.diagnosis import Role, Status
from rendezvous_async.page.overview import Overview
from rendezvous_async.runs import RunState
from rendezvous_async.telemetry.labels import label_value

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]


class Metrics(Collector):
    """Collects the metrics of a server and its runs."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Declare nothing; without this, registering would collect once to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        server = self._overview.server
        yield _gauge("connections", "Open connections.", server.connections)
        yield _gauge("sessions", "Open sessions.", server.table.sessions)
        yield _gauge("keys", "Keys in the table.", len(server.table))
        yield _gauge("table_bytes", "Bytes in the table, as counted against its limit.", server.table.size)
        yield _gauge("revision", "The table's revision; restarts from 0 without a log.", server.table.revision)
        yield _gauge("failed", "1 if the server's log has failed.", int(server.failure is not None))
        counts = server.counts
        yield _counter("connections_accepted", "Connections accepted.", counts.connections)
        refused = CounterMetricFamily("rdzv_connections_refused", "Connections refused.", labels=("why",))
        for why, number in sorted(counts.refused.items()):
            refused.add_metric((why,), number)
        yield refused
        yield _counter("commits", "Commits that changed something.", counts.commits)
        yield _counter("commits_lost", "Commits rejected because a condition did not hold.", counts.lost)
        yield _counter("sessions_opened", "Sessions opened.", counts.opened)
        yield _counter(
            "sessions_expired", "Sessions that expired: silent for their TTL, or disconnected.", counts.expired
        )
        ended = CounterMetricFamily("rdzv_sessions_ended", "Sessions that ended, by cause.", labels=("cause",))
        for ending, number in counts.ended.items():
            ended.add_metric((ending.value,), number)
        yield ended
        yield _counter("keep_alives", "Keep-alives answered.", counts.keep_alives)
        yield _counter("rounds_formed", "Rounds formed in all runs.", self._overview.rounds_formed)
        if server.journal is not None:
            help = "Time to sync a batch of commits to disk."
            yield _histogram("log_sync_seconds", help, [((), server.journal.sync_times)])
        requests = [((_snake(kind.__name__),), durations) for kind, durations in counts.requests.items()]
        help = "Time to handle a request, without its wait for the disk."
        yield _histogram("request_seconds", help, requests, ("request",))
        help = "Time from when the first node waited until the round formed."
        yield _histogram("round_formation_seconds", help, [((), self._overview.formations)])
        states = self._overview.states()
        runs = GaugeMetricFamily("rdzv_runs", "Runs by state.", labels=("state",))
        for state in RunState:
            runs.add_metric((state.value,), states[state])
        yield runs
        yield from self._runs()

    def _runs(self) -> Iterator[Metric]:
        shown = [(label_value(run.run_id), run) for run in self._overview.runs()]
        waiting = GaugeMetricFamily(
            "rdzv_run_waiting_seconds", "How long nodes have been waiting for the next round.", labels=("run_id",)
        )
        for id, run in shown:
            waiting.add_metric((id,), run.waiting_seconds)
        yield waiting
        runs = [(id, run.status) for id, run in shown if run.status is not None]
        families = {
            "round": "The last round that formed.",
            "closed": "1 if the run is closed.",
            "missing": "Nodes still needed to form a round.",
            "absent": "Members that were lost or left.",
            "usable": "Nodes in the largest world that the nodes here can form.",
            "held_back": "Newcomers that are not let in yet.",
            "generation": "How often the run was scaled.",
        }
        values = [(id, _figures_of(run)) for id, run in runs]
        for place, (name, help) in enumerate(families.items()):
            family = GaugeMetricFamily(f"rdzv_run_{name}", help, labels=("run_id",))
            for id, figures in values:
                family.add_metric((id,), figures[place])
            yield family
        nodes = GaugeMetricFamily("rdzv_run_nodes", "Live nodes by role.", labels=("run_id", "role"))
        for id, status in runs:
            roles = Counter(present.role for present in status.here)
            for role in Role:
                nodes.add_metric((id, role.value), roles[role])
        yield nodes


def _figures_of(run: Status) -> tuple[int, ...]:
    usable = 0 if run.fit is None else run.fit.usable
    generation = 0 if run.spec is None else run.spec.generation
    closed = int(run.closed is not None)
    return run.round, closed, run.missing, len(run.absent), usable, run.held_back, generation


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rdzv_{name}", help, value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"rdzv_{name}", help, value)


def _histogram(
    name: str, help: str, found: Iterable[tuple[tuple[str, ...], Durations]], labels: tuple[str, ...] = ()
) -> Metric:
    family = HistogramMetricFamily(f"rdzv_{name}", help, labels=labels)
    for values, durations in found:
        bounds = [*map(str, durations.bounds), "+Inf"]
        family.add_metric(values, list(zip(bounds, accumulate(durations.counts), strict=True)), durations.total)
    return family


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
