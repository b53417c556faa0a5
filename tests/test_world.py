"""A world: its members, how it learns of changes, and the block that is cancelled by one."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from rendezvous_async import Change, Put, RendezvousFencedError, RendezvousStateError
from rendezvous_async.world import UntilChanged, World
from tests.meeting import Meeting, in_virtual_time, now, together, until


class Boom(Exception):
    """What a test's body raises."""


async def hold(world: World, block: UntilChanged, ended: list[str]) -> None:
    """Stay in a block for ever, and note how it ends."""
    async with block:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")
    ended.append("after")


# What a world says


@in_virtual_time
async def test_members_are_in_the_order_of_their_ranks() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2", address="10.0.0.1", labels={"rack": "red"})
        b = await meeting.enter("b", "2", address="10.0.0.2")
        worlds = await together(a, b)
        members = await worlds[0].members()
        assert await worlds[1].members() == members
        assert [member.rank for member in members] == [0, 1]
        assert {(m.node, m.address, tuple(m.labels.items())) for m in members} == {
            ("a", "10.0.0.1", (("rack", "red"),)),
            ("b", "10.0.0.2", ()),
        }
        assert members[worlds[0].rank].node == "a"


@in_virtual_time
async def test_members_are_read_once() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        members = await world.members()
        await b.leave()
        await a.leave()
        assert await world.members() is members


@in_virtual_time
async def test_members_of_a_round_that_is_over_are_refused() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        old = await a.join()
        await a.join()
        with pytest.raises(RendezvousFencedError, match="round 1 is over; join\\(\\) again"):
            await old.members()
        await a.leave()
        with pytest.raises(RendezvousFencedError, match="node a has left"):
            await old.members()


@in_virtual_time
async def test_a_damaged_seat_is_named() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        await meeting.backend().commit(Put("seats/b", b"\x01S\xff"))
        with pytest.raises(RendezvousStateError, match="the record at 'seats/b' is damaged"):
            await world.members()


@in_virtual_time
async def test_a_world_describes_itself() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        assert repr(world) == "<World run='job' round=1 rank=0 size=1>"
        assert repr(world.store) == "<Store run='job' round=1 rank=0>"
        assert world.node == "a"
        assert world.run_id == "job"
        assert a.world is world


# Changes


@in_virtual_time
async def test_changed_waits_and_then_answers_at_once() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        world, _ = await together(a, b)
        assert world.change is None
        start = now()
        with anyio.move_on_after(500) as scope:
            await world.changed()
        assert scope.cancelled_caught
        assert now() == start + 500, "nothing wakes it for nothing"
        meeting.start(c)
        assert await world.changed() is Change.NODES_WAITING
        assert await world.changed() is Change.NODES_WAITING
        await b.leave()
        await until(lambda: world.change is Change.MEMBER_LOST)
        assert await world.changed() is Change.MEMBER_LOST
        await a.close()
        assert await world.changed() is Change.CLOSED


@in_virtual_time
async def test_a_change_can_go_away_again() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world = await a.join()
        joining = meeting.start(b)
        assert await world.changed() is Change.NODES_WAITING
        joining.scope.cancel()
        await until(lambda: world.change is None)


@in_virtual_time
async def test_closed_beats_evicted() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        await b.close()
        await until(lambda: world.change is Change.CLOSED)
        await a.leave()
        assert world.change is Change.CLOSED


# until_changed


@in_virtual_time
async def test_the_body_is_cancelled_by_a_change() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        block, ended = world.until_changed(), list[str]()
        async with anyio.create_task_group() as group:
            group.start_soon(hold, world, block, ended)
            await anyio.sleep(100)
            assert ended == []
            await b.leave()
        assert ended == ["cancelled", "after"]
        assert block.change is Change.MEMBER_LOST
        assert now() == pytest.approx(100, abs=0.01)


@in_virtual_time
async def test_the_body_finishes_by_itself() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        async with world.until_changed() as block:
            await anyio.sleep(1)
        assert block.change is None
        await a.close()
        assert block.change is None


@in_virtual_time
async def test_the_body_of_a_world_that_has_changed_ends_at_its_first_await() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        await a.close()
        reached = False
        async with world.until_changed() as block:
            reached = True
            await anyio.sleep_forever()
        assert reached
        assert block.change is Change.CLOSED


@in_virtual_time
async def test_a_body_without_an_await_finishes_by_itself_even_in_a_changed_world() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        await a.close()
        async with world.until_changed() as block:
            pass
        assert block.change is None
        await anyio.lowlevel.checkpoint()


@in_virtual_time
async def test_what_cancelled_the_body_is_remembered_though_it_went_away() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world = await a.join()
        joining = meeting.start(b)
        async with world.until_changed() as block:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    joining.scope.cancel()
                    await until(lambda: world.change is None)
        assert block.change is Change.NODES_WAITING


@in_virtual_time
async def test_a_more_final_change_during_the_clean_up_of_the_body_counts() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world = await a.join()
        meeting.start(b)
        async with world.until_changed() as block:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await b.close()
                    await until(lambda: world.change is Change.CLOSED)
        assert block.change is Change.CLOSED


@in_virtual_time
async def test_exceptions_of_the_body_come_out_as_themselves() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        with pytest.raises(Boom) as caught:
            async with world.until_changed() as block:
                raise Boom
        assert caught.value.__context__ is None
        assert block.change is None
        with pytest.raises(Boom):
            async with world.until_changed() as block:
                await b.leave()
                try:
                    await anyio.sleep_forever()
                finally:
                    raise Boom
        assert block.change is None
        await anyio.lowlevel.checkpoint()


@in_virtual_time
async def test_the_bodys_timeout_is_its_own() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        with pytest.raises(TimeoutError):
            async with world.until_changed() as block, asyncio.timeout(5):
                await anyio.sleep_forever()
        assert block.change is None
        async with world.until_changed() as block:
            with anyio.move_on_after(5) as scope:
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert block.change is None


@in_virtual_time
async def test_blocks_nest() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        after_inner = False
        async with world.until_changed() as outer:
            async with world.until_changed() as inner:
                await b.leave()
                await anyio.sleep_forever()
            after_inner = True
            await anyio.lowlevel.checkpoint()
            raise AssertionError("the outer body went on")
        assert outer.change is Change.MEMBER_LOST
        assert inner.change in (None, Change.MEMBER_LOST)
        assert after_inner == (inner.change is not None)


@in_virtual_time
async def test_an_outer_cancel_wins() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        with anyio.CancelScope() as scope:
            async with world.until_changed() as block:
                scope.cancel()
                await a.close()
                await anyio.sleep_forever()
            raise AssertionError("the cancellation was swallowed")
        assert scope.cancelled_caught
        assert block.change is None


@in_virtual_time
async def test_a_cancelled_task_stays_cancelled() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        ended: list[str] = []
        for also_changed in (False, True):
            block = world.until_changed()
            task = asyncio.get_running_loop().create_task(hold(world, block, ended))
            await anyio.sleep(1)
            task.cancel()
            if also_changed:
                await b.leave()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert block.change is None
        assert ended == ["cancelled", "cancelled"]


@in_virtual_time
async def test_many_blocks_at_once() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        blocks, ended = [world.until_changed() for _ in range(10)], list[str]()
        async with anyio.create_task_group() as group:
            for block in blocks:
                group.start_soon(hold, world, block, ended)
            await anyio.sleep(1)
            await b.leave()
        assert {block.change for block in blocks} == {Change.MEMBER_LOST}
        assert len(ended) == 20
