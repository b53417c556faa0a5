"""The two clocks, and the timer for many things. The loop is asyncio's own or one in virtual time."""

from __future__ import annotations

import asyncio
import contextvars
from datetime import UTC, datetime

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.aio.clock import Alarm
from rendezvous_async.testing import run


def test_a_lease_clock_shows_what_the_loop_shows_until_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process that began on a machine that had slept before: that is the offset."""
    slept = 7200.0
    true = clock._awake_and_asleep
    monkeypatch.setattr(clock, "_awake_and_asleep", lambda: true() + slept)
    monkeypatch.setattr(clock, "_SLEPT_BEFORE", clock._SLEPT_BEFORE + slept)

    async def read() -> None:
        nonlocal slept
        assert clock.lease_now() == pytest.approx(clock.now(), abs=1)
        slept += 500
        assert clock.lease_now() == pytest.approx(clock.now() + 500, abs=1)

    asyncio.run(read())


def test_another_thread_asks_for_the_time_of_a_loop() -> None:
    loop = asyncio.new_event_loop()
    try:
        assert clock.lease_now(loop) == pytest.approx(loop.time(), abs=1)
    finally:
        loop.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        clock.lease_now()


def test_in_virtual_time_the_lease_clock_is_the_loops() -> None:
    async def read() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            assert clock.lease_now() == clock.lease_now(loop) == clock.now()
            await anyio.sleep(12.5)

    run(read)


def test_who_is_not_on_asyncio_is_told_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"needs asyncio.* start your program with asyncio.run\(main\(\)\)"):
        clock.check_asyncio()
    asyncio.run(_checked())


async def _checked() -> None:
    clock.check_asyncio()


class Rung:
    """An alarm and when it rang: seconds since the beginning, and how late it said it was."""

    def __init__(self) -> None:
        self.began = clock.now()
        self.alarm = Alarm(self._ring)
        self.times: list[tuple[float, float]] = []
        self.rang_at: list[float] = []

    def _ring(self, now: float, late: float) -> None:
        self.times.append((now - self.began, late))
        self.rang_at.append(clock.now() - self.began)

    def set_by(self, seconds: float) -> None:
        self.alarm.set_by(self.began + seconds)


def test_an_alarm_rings_at_the_earliest_time_that_it_was_set_to() -> None:
    async def play() -> None:
        rung = Rung()
        for seconds in (4.0, 2.0, 8.0, 2.0):
            rung.set_by(seconds)
        assert rung.alarm.at == rung.began + 2
        await anyio.sleep(20)
        assert rung.times == [(2.0, 0.0)]
        assert rung.alarm.at is None
        rung.set_by(32)
        await anyio.sleep(20)
        assert rung.times == [(2.0, 0.0), (32.0, 0.0)]

    run(play)


def test_a_timer_that_is_replaced_does_not_ring() -> None:
    """It would find no time that was set, or ring before the one that was."""

    async def play() -> None:
        rung = Rung()
        rung.set_by(4)
        rung.set_by(2)
        await anyio.sleep(3)
        rung.set_by(6)
        await anyio.sleep(10)
        assert rung.times == [(2.0, 0.0), (6.0, 0.0)]
        assert rung.rang_at == [2.0, 6.0]

    run(play)


def test_setting_an_alarm_to_the_time_that_it_has_costs_no_timer() -> None:
    """A busy server does so for each request."""

    class Counting(asyncio.SelectorEventLoop):
        timers = 0

        def call_at(self, *arguments: object, **options: object) -> asyncio.TimerHandle:
            self.timers += 1
            return super().call_at(*arguments, **options)  # type: ignore[arg-type]

    async def play() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Counting)
        rung = Rung()
        for _ in range(3):
            rung.set_by(1000)
        assert loop.timers == 1
        rung.alarm.cancel()

    with asyncio.Runner(loop_factory=Counting) as runner:
        runner.run(play())


def test_an_alarm_that_is_cancelled_does_not_ring_and_may_be_set_again() -> None:
    async def play() -> None:
        rung = Rung()
        rung.alarm.cancel()
        rung.set_by(2)
        rung.alarm.cancel()
        assert rung.alarm.at is None
        await anyio.sleep(4)
        assert rung.times == []
        rung.set_by(8)
        await anyio.sleep(8)
        assert rung.times == [(8.0, 0.0)]

    run(play)


def test_an_alarm_for_a_time_that_is_over_rings_soon_and_says_how_late_it_is() -> None:
    async def play() -> None:
        rung = Rung()
        await anyio.sleep(4)
        rung.set_by(1.5)
        assert rung.times == [], "never before set_by() returns"
        await anyio.sleep(1)
        assert rung.times == [(4.0, 2.5)]

    run(play)


def test_a_timer_that_is_early_tells_the_time_that_was_set() -> None:
    """Uvloop's may be: who looked at the loop's clock would find nothing due, and set the same alarm again."""

    class Early(asyncio.SelectorEventLoop):
        def call_at(self, when: float, *arguments: object, **options: object) -> asyncio.TimerHandle:
            return super().call_at(when - 1000, *arguments, **options)  # type: ignore[arg-type]

    async def play() -> None:
        rung = Rung()
        rung.set_by(256.0)
        await asyncio.sleep(0.001)
        [(when, late)] = rung.times
        assert when == pytest.approx(256)
        assert late == 0

    with asyncio.Runner(loop_factory=Early) as runner:
        runner.run(play())


def test_an_alarm_rings_in_the_context_that_it_was_given() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    async def play() -> None:
        variable.set("the alarm's")
        context = contextvars.copy_context()
        variable.set("the setter's")
        seen: list[str] = []
        for given in (context, None):
            alarm = Alarm(lambda now, late: seen.append(variable.get()), given)
            alarm.set_by(clock.now() + 1)
        await anyio.sleep(2)
        assert sorted(seen) == ["the alarm's", "the setter's"]

    run(play)


async def test_the_time_of_day_is_that_of_this_machine() -> None:
    before = datetime.now(tz=UTC).timestamp()  # noqa: TID251 - what it is compared with
    assert before <= clock.wall() <= before + 60


def test_in_virtual_time_the_time_of_day_begins_in_1970() -> None:
    async def main() -> float:
        await anyio.sleep(100)
        return clock.wall()

    assert run(main) == pytest.approx(100, abs=1)
