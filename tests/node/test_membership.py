"""A node's session: keep-alives, stalls of the event loop, and a node that is cut off."""

from __future__ import annotations

import logging

import anyio
import pytest

from rendezvous_async import (
    Change,
    Delete,
    Event,
    EventKind,
    Put,
    RendezvousFencedError,
    RendezvousStateError,
    Timeouts,
)
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Granted, Opening
from rendezvous_async.backends.table.table import Table
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.testing import virtual_loop
from tests.meeting import Line, Meeting, in_virtual_time, now, session_of, together, until


def listen(rendezvous: Rendezvous) -> list[Event]:
    events: list[Event] = []
    rendezvous.listen(events.append)
    return events


@in_virtual_time
async def test_keep_alives_keep_a_quiet_node_in() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        await anyio.sleep(300)
        assert world.change is None
        assert session_of(a).deadline == pytest.approx(now() + 0.75 * 5, abs=1)


@in_virtual_time
async def test_keep_alives_do_not_touch_the_state() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        await together(a, b)
        await anyio.sleep(1)
        revision = meeting.server.table.revision
        await anyio.sleep(100)
        assert meeting.server.table.revision == revision


@pytest.mark.parametrize(("interval", "attempts"), [(1.0, 5), (0.5, 2), (2.0, 3), (0.1, 100)])
@in_virtual_time
async def test_a_node_cut_off_is_out_by_its_own_clock_at_three_quarters_of_its_ttl(
    interval: float, attempts: int
) -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "1", backend=line, keep_alive_interval=interval, keep_alive_max_attempt=attempts)
        world = await a.join()
        await anyio.sleep(10 * interval + 0.01)
        line.cut()
        last_answered = now() - 0.01
        async with world.until_changed() as block:
            await anyio.sleep_forever()
        assert block.change is Change.EVICTED
        assert now() == pytest.approx(last_answered + 0.75 * interval * attempts, abs=1e-6)
        with pytest.raises(RendezvousFencedError, match="by its own clock this node is out"):
            await world.store.set("key", b"value")
        assert await world.changed() is Change.EVICTED
        line.mend()
        await until(lambda: meeting.server.table.sessions == 0)
        assert now() == pytest.approx(last_answered + interval * attempts, abs=0.02), (
            "the backend is later, never sooner"
        )


@in_virtual_time
async def test_a_keep_alive_without_an_answer_is_followed_by_the_next_at_once() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "1", backend=line)
        world = await a.join()
        await anyio.sleep(0.5)
        line.cut()
        await anyio.sleep(2)
        line.mend()
        await anyio.sleep(0.4)
        assert session_of(a).deadline == pytest.approx(2 + 3.75, abs=0.01)
        assert world.change is None


@in_virtual_time
async def test_a_short_cut_does_no_harm() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "1", backend=line)
        world = await a.join()
        for _ in range(10):
            line.cut()
            await anyio.sleep(2)
            line.mend()
            await anyio.sleep(1)
        assert world.change is None


@in_virtual_time
async def test_a_stalled_loop_is_named_in_a_warning_and_an_event() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        events = listen(a)
        world = await a.join()
        virtual_loop()._now += 3.2
        await anyio.sleep(0.01)
        assert [(event.kind, event.detail) for event in events if event.kind is EventKind.STALLED] == [
            (EventKind.STALLED, "2.200 s")
        ]
        assert world.change is None


def test_the_warning_of_a_stall(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rendezvous_async"):
        test_a_stalled_loop_is_named_in_a_warning_and_an_event()
    assert "node a: the event loop stalled for 2.2 s: something blocks it" in caplog.text


@pytest.mark.parametrize(("stall", "change"), [(2.74, None), (2.76, Change.EVICTED)])
@in_virtual_time
async def test_a_loop_may_be_blocked_for_three_quarters_of_the_ttl_less_one_interval(
    stall: float, change: Change | None
) -> None:
    """In the worst case the next keep-alive was about to be sent."""
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        await anyio.sleep(0.9999)
        virtual_loop()._now += stall
        await anyio.sleep(0.001)
        assert world.change is change


@pytest.mark.parametrize("learned", ["by its own clock", "by the backend"])
@in_virtual_time
async def test_a_stall_is_named_also_when_the_eviction_is_learned_first(learned: str) -> None:
    """The program comes back to the barrier, or the news is read, before the keep-alive that is late has its turn."""
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        events = listen(a)
        world = await a.join()
        virtual_loop()._now += 30
        if learned == "by the backend":
            session_of(a).lost.set()
        assert await world.changed() is Change.EVICTED
        await a.join()
        assert [event.detail for event in events if event.kind is EventKind.STALLED] == ["29.000 s"]


@in_virtual_time
async def test_after_a_stall_beyond_its_deadline_a_node_is_out_before_anything_else() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        virtual_loop()._now += 4
        assert world.change is Change.EVICTED
        with pytest.raises(RendezvousFencedError):
            await world.store.set("key", b"value")
        assert (await a.join()).round == 2


@in_virtual_time
async def test_a_session_that_the_backend_ended_is_an_event() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        events = listen(a)
        world = await a.join()
        meeting.end_session_of("nodes/a")
        await anyio.sleep(2)
        assert world.change is Change.EVICTED
        (lost,) = [event for event in events if event.kind is EventKind.SESSION_LOST]
        assert f"the backend has ended session {session_of(a).id}" in lost.detail


@pytest.mark.parametrize("key", ["state", "coordinator", "seats/a"])
@in_virtual_time
async def test_a_damaged_record_evicts_and_is_named_at_the_next_join(key: str) -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        await meeting.backend().commit(Put(key, b"\x01?damaged"))
        await until(lambda: world.change is Change.EVICTED)
        with pytest.raises(RendezvousFencedError, match=key):
            world.check()
        with pytest.raises(RendezvousStateError, match=f"the record at '{key}' is not a "):
            await a.join()
        await meeting.backend().commit(Delete(key))


@in_virtual_time
async def test_the_heartbeat_timeout_bounds_a_keep_alive() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "1", backend=line, keep_alive_interval=10, timeouts=Timeouts(heartbeat=2))
        await a.join()
        await anyio.sleep(9.99)
        line.cut()
        await anyio.sleep(2.5)
        line.mend()
        await anyio.sleep(7)
        assert session_of(a).deadline == pytest.approx(37.5), "the keep-alive of t=10 was given up at t=12"
        await anyio.sleep(1)
        assert session_of(a).deadline == pytest.approx(20 + 37.5)


@in_virtual_time
async def test_a_task_that_fails_for_an_unknown_reason_ends_the_membership() -> None:
    class Broken(Line):
        broken = False

        async def table(self) -> Table:
            if self.broken:
                raise OSError("a bug")
            return await super().table()

    async with Meeting() as meeting:
        backend = Broken(meeting.server)
        a = await meeting.enter("a", "1", backend=backend)
        world = await a.join()
        backend.broken = True
        await until(lambda: world.change is Change.EVICTED)
        with pytest.raises(RendezvousFencedError, match=r"a background task failed: OSError\('a bug'\)") as raised:
            world.check()
        assert raised.value.__cause__ is not None
        assert isinstance(raised.value.__cause__.__cause__, OSError), "with its traceback"
        await a.leave()
        assert await meeting.keys("nodes/") == ["nodes/a"], "it could not be told"
        backend.broken = False
        assert (await a.join()).round == 2, "what was left behind is ended before the next session"


@in_virtual_time
async def test_a_membership_describes_itself() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        membership = world._membership
        assert repr(membership) == "<Membership node='a' session=memory.1>"
        await a.leave()
        assert repr(membership) == "<Membership node='a' session=memory.1 over>"


@in_virtual_time
async def test_a_post_that_falls_vacant_while_a_node_comes_is_taken() -> None:
    """The answer to its first commit still tells of the coordinator, and the first thing that it is shown no longer."""

    class Meanwhile(Line):
        async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
            granted = await super().open(opening, deadline)
            await meeting.backend().end_session(session_of(a).id)
            return granted

    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1:2")
        await a.join()
        b = await meeting.enter("b", "1:2", backend=Meanwhile(meeting.server))
        assert (await b.join()).round == 2
