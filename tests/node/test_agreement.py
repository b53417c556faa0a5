"""Whose settings hold: one stray node never throws out the many that agree, and a clear mismatch is told soon."""

from __future__ import annotations

import os
import random
from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import RendezvousSettingsError
from rendezvous_async.core.agreement import AGREE_WITHIN
from rendezvous_async.testing import run
from tests.meeting import Meeting, bounded, in_virtual_time, now, together, until

PATIENCE = float(os.environ.get("RENDEZVOUS_TEST_PATIENCE", "60"))
SEEDS = range(300)
SPREAD = (0.0, 0.001, 0.3)
"""Seconds over which nodes come that are started at about the same time."""


async def one_stray_and_many(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 7)
    many, stray = str(count), rng.choice(["1:9", "2:9", "500"])
    stale = rng.choice([None, "1", many, stray])
    async with Meeting(slow=rng.random() < 0.5) as meeting:
        if stale is not None:
            await leave_a_head(meeting, stale)
        nodes = [await meeting.enter(f"n{number}", many) for number in range(count)]
        nodes.insert(rng.randint(0, count), await meeting.enter("stray", stray))
        spread, start = rng.choice(SPREAD), now()
        joins = {}
        for node in nodes:
            joins[node.node] = meeting.start(node)
            await anyio.sleep(rng.random() * spread / count)
        odd = joins.pop("stray")
        await until(lambda: all(join.ended for join in (odd, *joins.values())))
        assert isinstance(odd.error, RendezvousSettingsError)
        assert [join.error for join in joins.values()] == [None] * count
        assert {join.world.size for join in joins.values() if join.world is not None} == {count}
        assert now() - start < 10, "nobody waited for a timeout"


async def leave_a_head(meeting: Meeting, nodes: str) -> None:
    """Leave the head of an earlier run behind, of a round if so few nodes can form one."""
    low = int(nodes.partition(":")[0])
    old = [await meeting.enter(f"old{number}", nodes) for number in range(min(low, 9))]
    joins = [meeting.start(node) for node in old]
    await anyio.sleep(40)  # The last call is over.
    assert all(join.ended for join in joins) is (low <= 9)
    for join in joins:
        join.scope.cancel()
    await anyio.sleep(1)
    for node in old:
        await node.leave()


@pytest.mark.parametrize("block", range(6))
def test_one_stray_does_not_throw_out_the_many_that_agree(block: int) -> None:
    for seed in SEEDS[block::6]:
        try:
            run(bounded, partial(one_stray_and_many, seed), seed=seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@in_virtual_time
async def test_a_node_with_other_settings_than_a_formed_world_is_refused_at_once() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        start = now()
        joins = [meeting.start(node) for node in await meeting.enter_all("xyz", "3")]
        await until(lambda: all(join.ended for join in joins))
        assert {join.ended_at for join in joins} == {start}
        assert {type(join.error) for join in joins} == {RendezvousSettingsError}, "however many they are"
        assert world.change is None


@in_virtual_time
async def test_a_node_with_other_settings_than_those_who_wait_is_refused_soon() -> None:
    async with Meeting() as meeting:
        waiting = [meeting.start(node) for node in await meeting.enter_all("abc", "4")]
        await anyio.sleep(100)
        start, stray = now(), await meeting.enter("x", "2")
        with pytest.raises(RendezvousSettingsError, match="like 3 other nodes here, but node x has '2:2 sticky"):
            await stray.join()
        assert now() == start + AGREE_WITHIN
        assert not any(join.ended for join in waiting)
        assert await meeting.keys("nodes/") == ["nodes/a", "nodes/b", "nodes/c"]


@in_virtual_time
async def test_one_that_has_waited_alone_gives_way_to_many_that_agree() -> None:
    async with Meeting() as meeting:
        stray = meeting.start(await meeting.enter("x", "9"))
        await anyio.sleep(100)
        start = now()
        worlds = await together(*await meeting.enter_all("abc", "3"))
        assert now() < start + 1, "nobody waits for the stray to be told"
        assert {world.size for world in worlds} == {3}
        await until(lambda: stray.ended)
        assert isinstance(stray.error, RendezvousSettingsError)
        assert [world.change for world in worlds] == [None] * 3


@in_virtual_time
async def test_of_two_the_earlier_one_stays() -> None:
    async with Meeting() as meeting:
        first = meeting.start(await meeting.enter("a", "2"))
        await anyio.sleep(1)
        with pytest.raises(RendezvousSettingsError):
            await (await meeting.enter("b", "3")).join()
        assert not first.ended


@in_virtual_time
async def test_whoever_waits_to_be_outvoted_takes_over_when_the_others_leave() -> None:
    async with Meeting() as meeting:
        first = meeting.start(await meeting.enter("a", "2"))
        await anyio.sleep(1)
        second = meeting.start(await meeting.enter("b", "1"))
        await anyio.sleep(1)
        assert not second.ended
        first.scope.cancel()
        await until(lambda: second.ended)
        assert second.error is None
        assert second.ended_at == 2


@in_virtual_time
async def test_the_settings_of_a_run_that_has_a_past_hold() -> None:
    """A lone survivor of a running job is not thrown out by more numerous newcomers."""
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        await together(a, b)
        await b.leave()
        survivor = meeting.start(a)
        await anyio.sleep(1)
        joins = [meeting.start(node) for node in await meeting.enter_all("xyz", "3")]
        await until(lambda: all(join.ended for join in joins))
        assert {join.ended_at for join in joins} == {1}
        assert {type(join.error) for join in joins} == {RendezvousSettingsError}
        await b.join()
        await until(lambda: survivor.ended)
        assert survivor.error is None


@in_virtual_time
async def test_the_many_are_counted_although_each_of_them_came_too_early() -> None:
    """Two strays outnumber the first of the many, who must not be gone when the others come."""
    async with Meeting() as meeting:
        early = meeting.start(await meeting.enter("a", "4"))
        await anyio.sleep(0.1)
        strays = [meeting.start(node) for node in await meeting.enter_all("xy", "3")]
        await anyio.sleep(1)
        assert (await meeting.head()).settings.max_nodes == 3
        worlds = await together(*await meeting.enter_all("bcd", "4"))
        await until(lambda: early.ended and all(stray.ended for stray in strays))
        assert early.world is not None
        assert {world.size for world in (early.world, *worlds)} == {4}
        assert {type(stray.error) for stray in strays} == {RendezvousSettingsError}


async def test_one_stray_and_many_over_tcp() -> None:
    async with rdzv.serve("127.0.0.1", 0) as server, AsyncExitStack() as stack:

        async def enter(name: str, nodes: str) -> rdzv.Rendezvous:
            return await stack.enter_async_context(
                rdzv.connect(server.endpoint, run_id="job", nodes=nodes, node=name, is_host="false")
            )

        stray = await enter("stray", "2:9")
        arrived = anyio.Event()
        stray.listen(lambda event: arrived.set() if event.kind is rdzv.EventKind.ARRIVED else None)
        many = [await enter(name, "3") for name in "abc"]
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:

                async def be_refused() -> None:
                    with pytest.raises(RendezvousSettingsError, match="like 3 other nodes here, but node stray has"):
                        await stray.join()

                group.start_soon(be_refused)
                await arrived.wait()
                worlds = await together(*many)
            assert {world.size for world in worlds} == {3}
