"""Cancelled at every await: nothing is left behind, whoever cancels, however often.

``checkpoints`` drives a coroutine by hand and cancels the task that runs it when it has awaited k times: k = 0, 1, 2
and so on, until it gets to its end before. Each k is a test of its own, in virtual time: after it the node leaves, and
there must be no record, no session, no post, no watch and no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import anyio
import pytest

from rendezvous_async import Timeouts
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.testing import run
from tests.meeting import PREFIX, Meeting, bounded, together, until

Scenario = Callable[[Meeting, "Knife"], Coroutine[Any, Any, None]]
MAX_CHECKPOINTS = 400


class Counted:
    """Awaits something, and calls back at each of its suspensions, before and after."""

    def __init__(self, awaitable: Awaitable[object], at_suspension: Callable[[], None]) -> None:
        self._awaitable = awaitable
        self._at_suspension = at_suspension

    def __await__(self) -> Generator[Any, Any, object]:
        inner = self._awaitable.__await__()
        value: object = None
        error: BaseException | None = None
        while True:
            try:
                yielded = inner.throw(error) if error is not None else inner.send(value)
            except StopIteration as stop:
                return stop.value
            self._at_suspension()
            try:
                value, error = (yield yielded), None
            except BaseException as thrown:
                value, error = None, thrown


class Knife:
    """Runs an awaitable in a task of its own and cancels it at its k-th suspension.

    Args:
        at: Which suspension, counted from 0.
        native: With ``task.cancel()``, not by a cancel scope.
        twice: And again at the next turn of the loop.
    """

    def __init__(self, at: int, native: bool, twice: bool) -> None:
        self.at = at
        self.native = native
        self.twice = twice
        self.seen = 0
        self.cut = False
        self.finished = False

    async def __call__(self, awaitable: Awaitable[object]) -> None:
        scope = anyio.CancelScope()
        loop = asyncio.get_running_loop()

        async def body() -> None:
            try:
                with scope:
                    await Counted(awaitable, at_suspension)
                    self.finished = True
            except asyncio.CancelledError:
                assert self.native, "a cancellation came out of the scope that it was meant for"

        def cancel() -> None:
            self.cut = True
            if self.native:
                task.cancel()
            else:
                scope.cancel()

        def at_suspension() -> None:
            if self.seen == self.at:
                loop.call_soon(cancel)
                if self.twice:
                    loop.call_soon(loop.call_soon, cancel)
            self.seen += 1

        task = loop.create_task(body())
        await asyncio.wait([task])
        task.result()


def cut_at_every_checkpoint(scenario: Scenario) -> Callable[[bool, bool, bool], None]:
    """Turn a scenario into a test that runs it once for each suspension of what the knife is given."""

    @pytest.mark.parametrize("native", [False, True], ids=["scope", "task"])
    @pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
    @pytest.mark.parametrize("slow", [False, True], ids=["near", "far"])
    def test(native: bool, twice: bool, slow: bool) -> None:
        for at in range(MAX_CHECKPOINTS):
            knife = Knife(at, native, twice)

            async def once(knife: Knife = knife) -> None:
                async with Meeting(slow=slow) as meeting:
                    await scenario(meeting, knife)

            run(bounded, once)
            if knife.finished and not knife.cut:
                assert at > 0, "there was nothing to cancel"
                return
        raise AssertionError(f"not finished after {MAX_CHECKPOINTS} suspensions")

    test.__doc__ = scenario.__doc__
    test.__name__ = scenario.__name__
    return test


@cut_at_every_checkpoint
async def test_a_first_join_that_forms_at_once(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "1") as a:
        await knife(a.join())
        await expect_usable(a)


@cut_at_every_checkpoint
async def test_a_first_join_that_waits_for_another(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "2") as a, meeting.node("b", "2") as b:
        other = meeting.start(b)
        await knife(a.join())
        if knife.finished:
            await until(lambda: other.ended)
            assert other.world is not None
        else:
            await until(lambda: "nodes/a" not in present(meeting))
            other.scope.cancel()
            await anyio.sleep(1)
            await together(a, b)


@cut_at_every_checkpoint
async def test_a_join_of_a_member_that_returns(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "1:2") as a, meeting.node("b", "1:2") as b:
        await together(a, b)
        await b.leave()
        await knife(a.join())
        await expect_usable(a)


@cut_at_every_checkpoint
async def test_a_join_after_a_lost_session(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "1") as a:
        await a.join()
        meeting.end_session_of("nodes/a")
        await knife(a.join())
        await expect_usable(a)


@cut_at_every_checkpoint
async def test_a_join_that_times_out(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "2", timeouts=Timeouts(join=0.5)) as a:

        async def join() -> None:
            with pytest.raises(TimeoutError):
                await a.join()

        await knife(join())


@cut_at_every_checkpoint
async def test_a_leave(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "1") as a:
        await a.join()
        await knife(a.leave())
        await a.leave()
        assert "nodes/a" not in present(meeting)
        await expect_usable(a)


@cut_at_every_checkpoint
async def test_a_close(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "1") as a:
        await a.join()
        await knife(a.close("done"))
        await a.close("done")
        assert (await meeting.head()).closed is not None


@cut_at_every_checkpoint
async def test_an_exit(meeting: Meeting, knife: Knife) -> None:
    a = meeting.node("a", "1")
    await a.__aenter__()
    await a.join()
    await knife(a.__aexit__(None, None, None))
    assert knife.cut or knife.finished
    await meeting.expect_nothing_left()


@cut_at_every_checkpoint
async def test_a_whole_block(meeting: Meeting, knife: Knife) -> None:
    async def block() -> None:
        async with meeting.node("a", "1") as a:
            world = await a.join()
            await world.store.set("key", b"value")
            await world.store.barrier()
            await world.members()
            await a.status()

    await knife(block())
    await meeting.expect_nothing_left()


@cut_at_every_checkpoint
async def test_a_block_that_waits_for_a_change(meeting: Meeting, knife: Knife) -> None:
    async with meeting.node("a", "2") as a, meeting.node("b", "2") as b:
        world, _ = await together(a, b)

        async def hold() -> None:
            async with world.until_changed() as block:
                await anyio.sleep_forever()
            assert block.change is not None

        meeting._group.start_soon(b.leave)
        await knife(hold())


def present(meeting: Meeting) -> list[str]:
    """Return the keys of the run, without an await."""
    prefix = PREFIX
    return [entry.key.removeprefix(prefix) for entry in meeting.server.table.list(prefix).entries]


async def expect_usable(rendezvous: Rendezvous) -> None:
    """After whatever was cancelled, the node can join."""
    with anyio.fail_after(60):
        world = await rendezvous.join()
    assert world.change is None
    await world.store.set("key", b"value")
