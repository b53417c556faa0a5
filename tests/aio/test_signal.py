"""Waiting for something to happen: once and for good, or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.aio.signal import Latch, Notice
from rendezvous_async.testing import run
from tests.meeting import in_virtual_time


@in_virtual_time
async def test_a_notice_wakes_all_that_wait_and_nobody_who_comes_later() -> None:
    notice, woken = Notice(), list[bool]()
    notice.fire()
    async with anyio.create_task_group() as group:

        async def wait(seconds: float | None) -> None:
            woken.append(await notice.wait(seconds))

        for seconds in (None, 8.0, 16.0):
            group.start_soon(wait, seconds)
        await anyio.sleep(4)
        assert woken == [], "what fired before counts for nobody"
        notice.fire()
        await anyio.sleep(0.5)
        assert woken == [True, True, True]
        group.start_soon(wait, 2.0)
        await anyio.sleep(1)
        assert woken == [True, True, True]
    assert woken == [True, True, True, False]


@pytest.mark.parametrize("seconds", [None, 0.5])
@in_virtual_time
async def test_who_has_waited_is_forgotten(seconds: float | None) -> None:
    """A node waits for the same notice for as long as it lives."""
    notice, loop = Notice(), asyncio.get_running_loop()
    for _ in range(100):
        if seconds is None:
            loop.call_later(1, notice.fire)
        await notice.wait(seconds)
    assert not notice._waiters


def test_a_wait_that_ends_early_leaves_no_timer_behind() -> None:
    class Recording(asyncio.SelectorEventLoop):
        timers: ClassVar[list[asyncio.TimerHandle]] = []

        def call_at(self, when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            self.timers.append(super().call_at(when, *arguments, **options))
            return self.timers[-1]

    async def play() -> None:
        notice = Notice()
        asyncio.get_running_loop().call_soon(notice.fire)
        assert await notice.wait(1000)
        assert [timer.cancelled() for timer in Recording.timers] == [True]

    with asyncio.Runner(loop_factory=Recording) as runner:
        runner.run(play())


@in_virtual_time
async def test_a_wait_ends_when_its_seconds_are_over() -> None:
    notice, began = Notice(), clock.now()
    assert await notice.wait(2.5) is False
    assert clock.now() == began + 2.5


def test_what_fires_at_the_very_end_of_a_wait_breaks_nothing() -> None:
    """The timer and the notice meet in one turn of the loop: the first of them counts, the other does nothing."""

    async def play() -> set[bool]:
        errors: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        outcomes = set()
        for _ in range(20):
            notice = Notice()
            loop.call_later(1, notice.fire)
            outcomes.add(await notice.wait(1))
            await anyio.sleep(1)
        assert errors == []
        return outcomes

    assert set[bool]().union(*(run(play, seed=seed) for seed in range(3))) == {True, False}


@in_virtual_time
async def test_callbacks_are_called_at_each_fire_for_as_long_as_their_block_lasts() -> None:
    notice, calls = Notice(), list[str]()
    notice.call(lambda: calls.append("always"))
    with notice.calling(lambda: calls.append("in the block")):
        notice.fire()
        notice.fire()
    notice.fire()
    assert calls == ["always", "in the block", "always", "in the block", "always"]
    with pytest.raises(KeyError), notice.calling(lambda: calls.append("in the other block")):
        raise KeyError
    notice.fire()
    assert calls[-1] == "always"
    assert "in the other block" not in calls


@in_virtual_time
async def test_a_callback_may_end_its_own_block() -> None:
    notice, calls = Notice(), list[str]()

    def leave() -> None:
        calls.append("left")
        block.__exit__(None, None, None)

    block = notice.calling(leave)
    block.__enter__()
    notice.call(lambda: calls.append("other"))
    notice.fire()
    notice.fire()
    assert calls == ["left", "other", "other"]


@in_virtual_time
async def test_a_latch_lets_through_who_waits_and_who_comes_later() -> None:
    latch, through = Latch(), list[str]()

    async def wait(name: str) -> None:
        await latch.wait()
        through.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "a")
        group.start_soon(wait, "b")
        await anyio.sleep(1)
        assert not latch.is_set()
        assert through == []
        latch.set()
        assert latch.is_set()
    assert sorted(through) == ["a", "b"]
    await wait("late")
    latch.set()
    assert latch.is_set()


@in_virtual_time
async def test_a_latch_calls_once_when_it_is_set_and_at_once_if_it_is() -> None:
    latch, calls = Latch(), list[str]()
    latch.call(lambda: calls.append("replaced"))
    latch.call(lambda: calls.append("first"))
    assert calls == []
    latch.set()
    latch.set()
    assert calls == ["first"]
    latch.call(lambda: calls.append("second"))
    assert calls == ["first", "second"]


@pytest.mark.parametrize("kind", [Notice, Latch])
@in_virtual_time
async def test_who_is_cancelled_waits_no_longer(kind: type[Notice] | type[Latch]) -> None:
    """Also in the turn in which it happens: waking those that have gone would be an error."""
    signal = kind()
    wait: Callable[[], Awaitable[object]] = signal.wait
    happen = signal.fire if isinstance(signal, Notice) else signal.set
    woken = list[str]()

    async def stay() -> None:
        await wait()
        woken.append("stayed")

    async with anyio.create_task_group() as group:
        group.start_soon(stay)
        tasks = [asyncio.ensure_future(wait()) for _ in range(3)]  # noqa: TID251 - ended below
        await anyio.sleep(1)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        tasks[1].cancel()
        happen()
        await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert woken == ["stayed"]
