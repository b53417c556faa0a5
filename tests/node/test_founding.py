"""Who founds a run: some nodes do at once, the others put their records and wait for one of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from rendezvous_async import Change, Delete, RendezvousClosedError, RendezvousError, Timeouts
from rendezvous_async.admin import close_run, purge_run
from rendezvous_async.node.coordinator import Coordinator
from tests.meeting import Meeting, in_virtual_time, now, until

NODES = "9"
NAMES = "abcdefghi"


class Unlucky(random.Random):
    """Draws so high that a node of nine is no founder."""

    def random(self) -> float:
        return 0.95


class Lucky(random.Random):
    def random(self) -> float:
        return 0.05


@in_virtual_time
async def test_who_is_no_founder_puts_its_record_and_waits() -> None:
    async with Meeting() as meeting:
        waiting = [meeting.start(await meeting.enter(name, NODES, rng=Unlucky())) for name in NAMES[1:]]
        await until(lambda: len(meeting.server.table) == 8)
        assert await meeting.entry("state") is None
        founder = meeting.start(await meeting.enter("a", NODES, rng=Lucky()))
        await until(lambda: founder.ended and all(joining.ended for joining in waiting))
        worlds = [joining.world for joining in (founder, *waiting)]
        assert sorted(world.rank for world in worlds if world is not None) == list(range(9))
        assert now() < 1, "nobody had to wait for a timer"
        assert set(await meeting.keys("nodes/")) == {f"nodes/{name}" for name in NAMES}


@in_virtual_time
async def test_if_no_founder_comes_one_who_waited_founds_the_run() -> None:
    async with Meeting() as meeting:
        waiting = [meeting.start(await meeting.enter(name, NODES, rng=Unlucky())) for name in NAMES]
        await until(lambda: all(joining.ended for joining in waiting))
        assert all(joining.world is not None for joining in waiting)
        assert 1 < now() < 2.1


@in_virtual_time
async def test_a_run_that_is_not_founded_yet_explains_itself_and_is_not_purged() -> None:
    async with Meeting() as meeting:
        node = await meeting.enter("b", NODES, rng=Unlucky())
        meeting.start(node)
        await until(lambda: len(meeting.server.table) == 1)
        status = await node.status()
        assert str(status).splitlines()[0] == "run 'job': one of the nodes here is about to found it"
        assert [present.node for present in status.here] == ["b"]
        assert not await purge_run(meeting.backend())
        assert await meeting.keys() == ["nodes/b"]


@in_virtual_time
async def test_a_close_reaches_those_who_wait_for_a_founder() -> None:
    async with Meeting() as meeting:
        joining = meeting.start(await meeting.enter("b", NODES, rng=Unlucky()))
        await until(lambda: len(meeting.server.table) == 1)
        await close_run(meeting.backend(), "enough", "an operator")
        await until(lambda: joining.ended)
        assert isinstance(joining.error, RendezvousClosedError)


@in_virtual_time
async def test_who_lost_its_record_before_the_run_was_founded_puts_it_again() -> None:
    async with Meeting() as meeting:
        waiting = [meeting.start(await meeting.enter(name, NODES, rng=Unlucky())) for name in NAMES]
        await until(lambda: len(meeting.server.table) == 9)
        for name in NAMES:
            await meeting.backend().commit(Delete(f"nodes/{name}"))
        await until(lambda: all(joining.ended for joining in waiting))
        assert all(joining.world is not None and joining.world.size == 9 for joining in waiting)


# What must not end the owner, and what happens if it does end


@in_virtual_time
async def test_a_stray_cancellation_in_the_coordinator_ends_only_the_membership(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "1:2", timeouts=Timeouts(last_call=0.1))
        first = await a.join()

        async def cancelled(*_: Any) -> None:
            raise asyncio.CancelledError

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "_carry_out", cancelled)
            meeting.start(await meeting.enter("b", "1:2", timeouts=Timeouts(last_call=0.1)))
            assert await first.changed() is Change.EVICTED
        second = await a.join()
        assert second.round > first.round


@in_virtual_time
async def test_a_join_after_its_owner_was_ended_by_force_says_so_at_once() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        await a.join()
        assert a._supervisor is not None
        a._supervisor._task.cancel()
        await asyncio.wait({a._supervisor._task})
        with pytest.raises((RendezvousError, RuntimeError), match="async with"):
            await a.join()
        meeting._all.clear()
        await until(lambda: meeting.server.table.sessions == 0)
