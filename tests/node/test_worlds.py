"""``worlds()``: the loop of a job, from its first round to the close."""

from __future__ import annotations

import anyio
import pytest

from rendezvous_async import Change, RendezvousSettingsError, RendezvousTimeoutError, Timeouts
from rendezvous_async.node.rendezvous import Rendezvous
from tests.meeting import Meeting, in_virtual_time, until


async def follow(rendezvous: Rendezvous, seen: list[int]) -> None:
    """Be in every world of a run, until it is closed."""
    async for world in rendezvous.worlds():
        seen.append(world.round)
        await world.changed()
    seen.append(-1)


@in_virtual_time
async def test_worlds_follow_one_another_until_the_run_is_closed() -> None:
    async with Meeting() as meeting, anyio.create_task_group() as group:
        a, b, c = await meeting.enter_all("abc", "2:3")
        seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        group.start_soon(follow, a, seen["a"])
        group.start_soon(follow, b, seen["b"])
        await until(lambda: seen["a"] == seen["b"] == [1])
        group.start_soon(follow, c, seen["c"])
        await until(lambda: seen["a"] == seen["b"] == [1, 2])
        await c.close("done")
        await until(lambda: seen == {"a": [1, 2, -1], "b": [1, 2, -1], "c": [2, -1]})


@in_virtual_time
async def test_worlds_end_for_a_spare_when_the_run_is_closed() -> None:
    async with Meeting() as meeting, anyio.create_task_group() as group:
        a, b = await meeting.enter_all("ab", "1")
        await a.join()
        seen: list[int] = []
        group.start_soon(follow, b, seen)
        await anyio.sleep(1)
        assert seen == []
        await a.close("done")
        await until(lambda: seen == [-1])


@in_virtual_time
async def test_worlds_of_a_run_that_is_closed_already_are_none() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1")
        await a.close()
        worlds = b.worlds()
        assert [world async for world in worlds] == []
        assert [world async for world in worlds] == [], "and it stays so"


@in_virtual_time
async def test_who_asks_for_the_next_world_of_one_that_holds_returns_to_the_barrier() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        rounds = []
        async for world in a.worlds():
            assert world.change is None
            rounds.append(world.round)
            if len(rounds) == 3:
                break
        assert rounds == [1, 2, 3]
        assert a.world is not None
        assert a.world.change is None, "a break leaves this node in its world"


@in_virtual_time
async def test_a_join_that_fails_ends_the_loop_with_its_error() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2", timeouts=Timeouts(join=5))
        with pytest.raises(RendezvousTimeoutError, match="no round with node a formed"):
            await anext(a.worlds())
        b = await meeting.enter("b", "1")
        await b.join()
        with pytest.raises(RendezvousSettingsError):
            async for _ in a.worlds():
                pass


@in_virtual_time
async def test_a_cancelled_loop_leaves_no_ghost() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "2")
        with anyio.move_on_after(5):
            async for _ in a.worlds():
                pass
        assert (await meeting.backend().list("nodes/")).entries == ()


@in_virtual_time
async def test_an_exception_of_the_body_comes_out_as_itself() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        with pytest.raises(ZeroDivisionError):
            async for world in a.worlds():
                async with world.until_changed():
                    raise ZeroDivisionError


@in_virtual_time
async def test_an_evicted_node_is_in_the_next_world() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1")
        rounds = []
        async for world in a.worlds():
            rounds.append(world.round)
            if len(rounds) == 2:
                break
            await b.evict("a")
            assert await world.changed() is Change.EVICTED
        assert rounds == [1, 2]
