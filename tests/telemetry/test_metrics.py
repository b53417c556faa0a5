"""The metrics of a node in its own process."""

from __future__ import annotations

import anyio
import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from rendezvous_async import Event, EventKind, RendezvousTimeoutError, Timeouts
from rendezvous_async.node.events import Events, Listener
from rendezvous_async.telemetry.labels import LONGEST, label_value
from rendezvous_async.telemetry.metrics import MOST_RUNS, OTHER_RUNS, NodeMetrics
from rendezvous_async.testing import virtual_loop
from tests.meeting import Meeting, in_virtual_time, together

Figures = dict[tuple[str, ...], float]


def read(registry: CollectorRegistry) -> Figures:
    """Return each sample that is not 0, by its name and the values of its labels but the run's."""
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "run_id")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.value and not sample.name.endswith("_created")
    }


class Stage:
    """A rendezvous of which only the events are played."""

    def __init__(self, run_id: str = "job") -> None:
        self.run_id = run_id
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def play(self, *events: Event) -> None:
        for event in events:
            for listener in self._listeners:
                listener(event)


@in_virtual_time
async def test_a_join_a_loss_and_a_rejoin_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = NodeMetrics(registry)
    async with Meeting() as meeting:
        async with meeting.node("a", "1:2") as a:
            metrics.follow(a)
            b = await meeting.enter("b", "1:2")
            await together(a, b)
            assert read(registry)["rdzv_node_holding",] == 1
            await b.leave()
            assert a.world is not None
            await a.world.changed()
            await a.join()
            figures = read(registry)
            assert figures["rdzv_node_join_seconds_count",] == figures["rdzv_node_round",] == 2
            assert figures["rdzv_node_join_seconds_sum",] == pytest.approx(3, abs=0.1), "the regroup"
            assert figures["rdzv_node_hold_seconds_count",] == 1
            assert figures["rdzv_node_changes_total", "member_lost"] == 1
            assert figures["rdzv_node_holding",] == 1
            assert ("rdzv_node_joins_failed_total",) not in figures
        assert read(registry) == {}, "what is followed no more has no series"


@in_virtual_time
async def test_a_join_that_fails_is_counted() -> None:
    registry = CollectorRegistry()
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2", timeouts=Timeouts(join=5))
        NodeMetrics(registry).follow(a)
        with pytest.raises(RendezvousTimeoutError):
            await a.join()
        figures = read(registry)
        assert figures["rdzv_node_joins_failed_total",] == 1
        assert ("rdzv_node_join_seconds_count",) not in figures


def test_stalls_sessions_and_the_post_are_counted() -> None:
    registry, stage = CollectorRegistry(), Stage()
    NodeMetrics(registry).follow(stage)
    stage.play(
        Event(EventKind.COORDINATING, 0.0),
        Event(EventKind.STALLED, 1.0, detail="2.250 s"),
        Event(EventKind.STALLED, 2.0, detail="0.750 s"),
        Event(EventKind.SESSION_LOST, 3.0),
    )
    assert read(registry) == {
        ("rdzv_node_coordinating",): 1,
        ("rdzv_node_stalls_total",): 2,
        ("rdzv_node_stalled_seconds_total",): 3,
        ("rdzv_node_sessions_lost_total",): 1,
    }
    stage.play(Event(EventKind.RESIGNED, 4.0))
    assert ("rdzv_node_coordinating",) not in read(registry)


@in_virtual_time
async def test_a_stall_of_the_loop_is_counted_with_its_length() -> None:
    registry = CollectorRegistry()
    async with Meeting() as meeting:
        a = await meeting.enter("a", "1")
        NodeMetrics(registry).follow(a)
        await a.join()
        virtual_loop()._now += 3.2
        await anyio.sleep(0.01)
        assert read(registry)["rdzv_node_stalled_seconds_total",] == 2.2


def test_labels_are_bounded_in_number_and_length() -> None:
    registry = CollectorRegistry()
    metrics = NodeMetrics(registry)
    stages = [Stage(f"{'x' * 300}{number}") for number in range(MOST_RUNS + 50)]
    for stage in stages:
        metrics.follow(stage)
        stage.play(Event(EventKind.SESSION_LOST, 0.0))
    samples = [
        sample
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "rdzv_node_sessions_lost_total"
    ]
    by_run = {sample.labels["run_id"]: sample.value for sample in samples}
    assert len(by_run) == MOST_RUNS + 1
    assert by_run.pop(OTHER_RUNS) == 50
    assert set(by_run.values()) == {1}
    assert {len(run_id) for run_id in by_run} == {LONGEST}
    for stage in stages:
        stage.play(Event(EventKind.ENDED, 1.0))
    assert read(registry) == {}
    assert label_value("short") == "short"


def test_nothing_is_in_the_registry_of_the_process_unless_it_was_given() -> None:
    NodeMetrics(CollectorRegistry())
    assert not [family for family in REGISTRY.collect() if family.name.startswith("rdzv")]


async def test_listeners_hear_the_end_and_readers_end() -> None:
    events = Events()
    heard: list[Event] = []
    events.listen(heard.append)
    reader = events.read()
    events.end()
    assert [event.kind for event in heard] == [EventKind.ENDED]
    assert [event async for event in reader] == []
