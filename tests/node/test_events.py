"""What happens to a node, as a stream: which events, in which order, and for whom."""

from __future__ import annotations

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import Event, EventKind, RendezvousClosedError
from rendezvous_async.node.events import MAX_QUEUED, Events
from rendezvous_async.node.rendezvous import Rendezvous
from tests.meeting import Meeting, in_virtual_time, now, together, until

STORY = {EventKind.COORDINATING, EventKind.RESIGNED, EventKind.JOINING, EventKind.JOIN_FAILED}
"""Who coordinates depends on the order of arrival; the tests that do not care leave these out."""


class Story:
    """Reads a node's events in the background."""

    def __init__(self, meeting: Meeting, rendezvous: Rendezvous) -> None:
        self.events: list[Event] = []
        self.ended = False
        self._stream = rendezvous.events()
        meeting._group.start_soon(self._read)

    async def _read(self) -> None:
        async for event in self._stream:
            self.events.append(event)
        self.ended = True

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events if event.kind not in STORY]


@in_virtual_time
async def test_the_story_of_a_node() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        story = Story(meeting, a)
        await together(a, b)
        await anyio.sleep(1)
        meeting.start(c)
        await anyio.sleep(1)
        await together(a, b)
        await anyio.sleep(1)
        await c.leave()
        await anyio.sleep(1)
        await b.close("done")
        await anyio.sleep(1)
        await a.leave()
        await anyio.sleep(1)
        assert story.kinds == [
            "arrived",
            "joined",
            "nodes_waiting",
            "arrived",
            "joined",
            "member_lost",
            "closed",
            "left",
        ]
        joined = [event for event in story.events if event.kind is EventKind.JOINED]
        assert [(event.round, event.at) for event in joined] == [(1, 30), (2, 32)]
        assert a.world is not None
        assert joined[1].detail == f"rank {a.world.rank} of 3"


@in_virtual_time
async def test_events_are_there_from_the_call_on_not_from_the_first_read() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        stream = a.events()
        await a.join()
        kinds = [(await anext(stream)).kind for _ in range(4)]
        assert sorted(kinds) == ["arrived", "coordinating", "joined", "joining"]


@in_virtual_time
async def test_returning_to_the_barrier_is_no_eviction() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        story = Story(meeting, a)
        for _ in range(3):
            await together(a, b)
            await anyio.sleep(1)
        assert story.kinds == ["arrived", "joined"] * 3


@in_virtual_time
async def test_leaving_is_no_eviction() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        story = Story(meeting, a)
        await a.join()
        await anyio.sleep(1)
        await a.leave()
        await anyio.sleep(1)
        assert story.kinds == ["arrived", "joined", "left"]
        assert story.events[-1].round == 1


@in_virtual_time
async def test_an_eviction_is_told_once() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        story = Story(meeting, a)
        await together(a, b)
        meeting.end_session_of("nodes/a")
        await anyio.sleep(5)
        assert [kind for kind in story.kinds if kind != "member_lost"] == [
            "arrived",
            "joined",
            "evicted",
            "session_lost",
        ]


@in_virtual_time
async def test_a_close_is_told_at_the_barrier_too() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        story = Story(meeting, a)
        joining = meeting.start(a)
        await anyio.sleep(1)
        await b.close("done")
        await until(lambda: joining.ended)
        assert isinstance(joining.error, RendezvousClosedError)
        await anyio.sleep(1)
        assert story.kinds == ["arrived", "closed"]


@in_virtual_time
async def test_coordinating_and_resigning() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        story = Story(meeting, a)
        meeting.start(a)
        await anyio.sleep(1)
        await b.join()
        await until(lambda: a.world is not None)
        await a.leave()
        await anyio.sleep(1)
        assert [event.kind for event in story.events] == [
            EventKind.JOINING,
            EventKind.ARRIVED,
            EventKind.COORDINATING,
            EventKind.JOINED,
            EventKind.RESIGNED,
            EventKind.LEFT,
        ]


@in_virtual_time
async def test_the_stream_ends_with_the_rendezvous() -> None:
    async with Meeting() as meeting:
        async with meeting.node("a", "1") as a:
            first, second = Story(meeting, a), Story(meeting, a)
            await a.join()
        await until(lambda: first.ended and second.ended)
        assert first.events == second.events != []
        late = a.events()
        with pytest.raises(StopAsyncIteration):
            await anext(late)


@in_virtual_time
async def test_a_slow_reader_loses_the_oldest() -> None:
    events = Events()
    reader = events.read()
    for number in range(MAX_QUEUED + 10):
        events.emit(EventKind.JOINED, number)
    events.end()
    rounds = [event.round async for event in reader]
    assert rounds == list(range(10, MAX_QUEUED + 10))


@in_virtual_time
async def test_a_reader_that_is_given_up_costs_nothing() -> None:
    events = Events()
    for _ in range(100):
        stream = events.read()
        events.emit(EventKind.JOINED)
        async for _event in stream:
            break
    del stream
    assert len(events._readers) == 0


@in_virtual_time
async def test_a_read_can_be_cancelled_and_loses_nothing() -> None:
    events = Events()
    stream = events.read()
    with anyio.move_on_after(5):
        await anext(stream)
    assert now() == 5
    events.emit(EventKind.LEFT)
    assert (await anext(stream)).kind is EventKind.LEFT


@in_virtual_time
async def test_listeners_are_called_as_it_happens() -> None:
    events = Events()
    seen: list[Event] = []
    events.listen(seen.append)
    events.emit(EventKind.CLOSED, 3, "why")
    assert seen == [Event(EventKind.CLOSED, 0.0, 3, "why")]


async def test_a_node_that_finds_a_closed_run_is_told_so_over_a_socket() -> None:
    """Here the news come with the answer to the first request, before anybody waits for them."""
    async with rdzv.serve("127.0.0.1", 0) as server:
        async with rdzv.connect(server.endpoint, run_id="job", nodes=1) as first:
            await first.close("done")
        async with rdzv.connect(server.endpoint, run_id="job", nodes=1) as late:
            heard: list[rdzv.Event] = []
            late.listen(heard.append)
            with pytest.raises(rdzv.RendezvousClosedError):
                await late.join()
        assert EventKind.CLOSED in [event.kind for event in heard]


async def test_a_listener_that_fails_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: rdzv.Event) -> None:
        raise ZeroDivisionError(event.kind)

    async with (
        rdzv.serve("127.0.0.1", 0) as server,
        rdzv.connect(server.endpoint, run_id="job", nodes=1) as rendezvous,
    ):
        rendezvous.listen(fail)
        assert (await rendezvous.join()).size == 1
    assert "a listener failed" in caplog.text
