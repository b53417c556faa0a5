"""A world: its members, how it learns of changes, and the block that is cancelled by one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rendezvous_async import Change, Put, RendezvousFencedError, RendezvousStateError
from rendezvous_async.backends.base import Delete, Entry, Listing
from rendezvous_async.node.world import Glance, UntilChanged, World
from tests.meeting import Meeting, in_virtual_time, now, session_of, together, until


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


# A block, or a wait, for some changes only

ALL_WANTED = [wanted for count in range(len(Change) + 1) for wanted in itertools.combinations(Change, count)]
THE_END = {Change.CLOSED, Change.EVICTED}


@asynccontextmanager
async def a_world_with(happened: set[Change]) -> AsyncIterator[World]:
    """A world to which all of this has happened."""
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "1:3")
        world, _ = await together(a, b)
        if Change.NODES_WAITING in happened:
            meeting.start(c)
            await until(lambda: world.change is Change.NODES_WAITING)
        if Change.MEMBER_LOST in happened:
            await b.leave()
            await until(lambda: world.change is Change.MEMBER_LOST)
        if Change.EVICTED in happened:
            await a.leave()
        if Change.CLOSED in happened:
            await b.close()
            await until(lambda: world.change is Change.CLOSED or Change.EVICTED in happened)
        yield world


@pytest.mark.parametrize("wanted", ALL_WANTED, ids=lambda wanted: "-".join(change.value for change in wanted) or "any")
@pytest.mark.parametrize(
    "happened",
    [
        {Change.NODES_WAITING},
        {Change.MEMBER_LOST},
        {Change.NODES_WAITING, Change.MEMBER_LOST},
        {Change.NODES_WAITING, Change.MEMBER_LOST, Change.EVICTED},
        {Change.NODES_WAITING, Change.MEMBER_LOST, Change.CLOSED},
        {Change.EVICTED},
        {Change.CLOSED},
    ],
    ids=lambda happened: "+".join(change.value for change in Change if change in happened),
)
@in_virtual_time
async def test_a_block_ends_for_what_is_wanted_and_for_the_end_of_the_world(
    happened: set[Change], wanted: tuple[Change, ...]
) -> None:
    expected: Change | None = None
    for change in Change:  # The most final first.
        if change in happened and (change in THE_END or not wanted or change in wanted):
            expected = change
            break
    async with a_world_with(happened) as world:
        async with world.until_changed(*wanted) as block:
            await anyio.sleep(10)
        assert block.change is expected
        with anyio.move_on_after(10) as waited:
            assert await world.changed(*wanted) is expected
        assert waited.cancelled_caught is (expected is None)


@in_virtual_time
async def test_a_block_that_goes_on_for_one_change_ends_with_a_wanted_one() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        world, _ = await together(a, b)
        block, ended = world.until_changed(Change.MEMBER_LOST), list[str]()
        async with anyio.create_task_group() as group:
            group.start_soon(hold, world, block, ended)
            meeting.start(c)
            assert await world.changed() is Change.NODES_WAITING
            await anyio.sleep(10)
            assert not ended, "a newcomer is not a lost member"
            await b.leave()
        assert ended == ["cancelled", "after"]
        assert block.change is Change.MEMBER_LOST


@pytest.mark.parametrize("wrong", ["closed", None, 1, Change])
@in_virtual_time
async def test_what_is_no_change_is_refused_at_once(wrong: Any) -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        with pytest.raises(TypeError, match=r"a change must be one of Change\.CLOSED, .*, not "):
            world.until_changed(wrong)
        with pytest.raises(TypeError, match="a change must be one of"):
            await world.changed(Change.CLOSED, wrong)


@in_virtual_time
async def test_a_block_that_needs_every_member_ends_when_one_goes_back_but_not_for_a_newcomer() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        world, _ = await together(a, b)
        block, ended = world.while_whole(), list[str]()
        async with anyio.create_task_group() as group:
            group.start_soon(hold, world, block, ended)
            meeting.start(c)
            assert await world.changed() is Change.NODES_WAITING
            await anyio.sleep(10)
            assert not ended
            meeting.start(b)
        assert ended == ["cancelled", "after"]
        assert block.change is Change.NODES_WAITING


@in_virtual_time
async def test_a_block_that_needs_every_member_does_not_end_because_the_run_was_scaled() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world, _ = await together(a, b)
        block, ended = world.while_whole(), list[str]()
        async with anyio.create_task_group() as group:
            group.start_soon(hold, world, block, ended)
            await a.scale(target=1)
            assert await world.changed() is Change.RESIZED
            await anyio.sleep(10)
            assert not ended, "both are still here"
            meeting.start(b)
        assert ended == ["cancelled", "after"]
        assert block.change is Change.RESIZED


@pytest.mark.parametrize("change", [Change.MEMBER_LOST, Change.EVICTED, Change.CLOSED])
@in_virtual_time
async def test_a_block_that_needs_every_member_ends_for_everything_else(change: Change) -> None:
    async with a_world_with({change}) as world:
        async with world.while_whole() as block:
            await anyio.sleep(10)
        assert block.change is change


# At a glance, from any thread


@in_virtual_time
async def test_a_glance_shows_who_waits_and_who_is_lost() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        world, _ = await together(a, b)
        soon = session_of(a).deadline - 0.001
        assert world.glance(soon) == Glance(None, out=False, pending=0)
        meeting.start(c)
        await until(lambda: world.change is Change.NODES_WAITING)
        assert world.glance(soon) == Glance(None, out=False, pending=1)
        await b.leave()
        await until(lambda: world.change is Change.MEMBER_LOST)
        assert world.glance(soon) == Glance(None, out=False, pending=2)


@in_virtual_time
async def test_a_glance_shows_that_the_time_of_the_session_is_over() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        assert world.glance(session_of(a).deadline).out is True


@in_virtual_time
async def test_a_glance_shows_that_the_node_has_left_or_gone_on() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        old = await a.join()
        new = await a.join()
        soon = session_of(a).deadline - 0.001
        assert old.glance(soon).out is True
        assert new.glance(soon).out is False
        await a.leave()
        assert new.glance(soon).out is True


@in_virtual_time
async def test_a_glance_shows_who_closed_the_run() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        await b.close()
        await until(lambda: world.change is Change.CLOSED)
        closed = world.glance(now()).closed
        assert closed is not None
        assert closed.by == "b"


@in_virtual_time
async def test_a_world_whose_run_was_erased_is_over_and_has_nobody_pending() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        soon = session_of(a).deadline - 0.001
        erased = await meeting.backend().commit(Delete("state"))
        world._membership.view.take(Listing((Entry("state", None, erased.token),), erased.token, complete=False))
        assert world.change is Change.EVICTED
        assert world.glance(soon) == Glance(None, out=True, pending=0)
        await a.leave()
        assert world.change is Change.EVICTED
