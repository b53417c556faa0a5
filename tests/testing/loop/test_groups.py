"""Groups of a virtual loop: frozen as by SIGSTOP, killed as by SIGKILL, and nothing of them left at the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from rendezvous_async.testing.loop.clock import GROUP, DeadlockError, VirtualLoop, run, virtual_loop

SEEDS = [None, 1, 2, 3]


async def tick(seen: list[tuple[str, float]], name: str, count: int = 5) -> None:
    for _ in range(count):
        await anyio.sleep(1)
        seen.append((name, anyio.current_time()))


class TestBelonging:
    def test_what_a_group_starts_belongs_to_it(self) -> None:
        async def main() -> list[object]:
            loop, seen = virtual_loop(), list[object]()

            async def process() -> None:
                seen.append(GROUP.get())
                loop.call_soon(lambda: seen.append(GROUP.get()))
                loop.call_later(1, lambda: seen.append(GROUP.get()))
                async with anyio.create_task_group() as group:
                    group.start_soon(child)

            async def child() -> None:
                seen.append(GROUP.get())

            seen.append(GROUP.get())
            await loop.start("a", process, name="process a")
            await anyio.sleep(2)
            seen.append(GROUP.get())
            return seen

        assert run(main) == [None, "a", "a", "a", "a", None]

    def test_a_kill_looks_at_the_tasks_and_timers_of_its_group_only(self) -> None:
        """Else a cluster that loses many of its nodes takes a time that grows with their number squared."""
        compared = 0

        class Name:
            def __hash__(self) -> int:
                return id(self)

            def __eq__(self, other: object) -> bool:
                nonlocal compared
                compared += 1
                return self is other

        async def main() -> None:
            names = [Name() for _ in range(100)]
            for name in names:
                virtual_loop().start(name, anyio.sleep, 1000)
            await anyio.sleep(1)
            before = compared
            virtual_loop().kill(names[50])
            assert compared - before < 10

        run(main)

    def test_the_world_outside_can_be_neither_frozen_nor_killed(self) -> None:
        async def main() -> None:
            for stop in (virtual_loop().freeze, virtual_loop().kill):
                with pytest.raises(ValueError, match="None is the world outside"):
                    stop(None)

        run(main)


@pytest.mark.parametrize("seed", SEEDS)
class TestFreezing:
    def test_timers_of_a_frozen_group_run_late(self, seed: int | None) -> None:
        async def main() -> list[tuple[str, float]]:
            loop, seen = virtual_loop(), list[tuple[str, float]]()
            loop.start("a", tick, seen, "a", 3)
            loop.start("b", tick, seen, "b", 3)
            await anyio.sleep(1.5)
            loop.freeze("a")
            assert (loop.is_frozen("a"), loop.is_frozen("b")) == (True, False)
            await anyio.sleep(10)
            loop.thaw("a")
            await anyio.sleep(5)
            return sorted(seen)

        assert run(main, seed=seed) == [("a", 1), ("a", 11.5), ("a", 12.5), ("b", 1), ("b", 2), ("b", 3)]

    def test_callbacks_that_are_queued_and_that_come_later_are_held(self, seed: int | None) -> None:
        async def main() -> list[tuple[str, float]]:
            loop, seen = virtual_loop(), list[tuple[str, float]]()
            event = anyio.Event()

            async def wait() -> None:
                loop.call_soon(seen.append, ("queued", 0))
                loop.freeze("a")
                await event.wait()
                seen.append(("woken", anyio.current_time()))

            loop.start("a", wait)
            await anyio.sleep(1)
            event.set()
            await anyio.sleep(1)
            assert seen == []
            loop.thaw("a")
            loop.thaw("a")
            await checkpoint()
            await checkpoint()
            return sorted(seen)

        assert run(main, seed=seed) == [("queued", 0), ("woken", 2)]

    def test_a_deadline_that_passed_while_frozen_strikes_when_thawed(self, seed: int | None) -> None:
        async def main() -> list[object]:
            loop, seen = virtual_loop(), list[object]()

            async def process() -> None:
                try:
                    with anyio.fail_after(5):
                        await anyio.sleep_forever()
                except TimeoutError:
                    seen.append(anyio.current_time())
                with anyio.move_on_after(5):
                    seen.append(await asyncio.wait_for(asyncio.sleep(1, "asyncio"), 3))

            loop.start("a", process)
            await anyio.sleep(1)
            loop.freeze("a")
            await anyio.sleep(100)
            loop.thaw("a")
            await anyio.sleep(100)
            return seen

        assert run(main, seed=seed) == [101, "asyncio"]

    def test_an_answer_that_came_while_frozen_beats_the_deadline_or_not_but_never_both(self, seed: int | None) -> None:
        async def main() -> str:
            loop = virtual_loop()
            answer = anyio.Event()

            async def process() -> str:
                with anyio.move_on_after(5) as scope:
                    await answer.wait()
                return "late" if scope.cancelled_caught else "answered"

            task = loop.start("a", process)
            await anyio.sleep(1)
            loop.freeze("a")
            answer.set()
            await anyio.sleep(10)
            loop.thaw("a")
            return await task

        assert run(main, seed=seed) in ("late", "answered")

    def test_a_scope_around_a_frozen_group_can_be_cancelled_from_outside(self, seed: int | None) -> None:
        """anyio asks again at every turn while a cancelled task cannot run; time must go on all the same."""

        async def main() -> list[float]:
            loop, seen = virtual_loop(), list[float]()

            async def process() -> None:
                GROUP.set("a")
                try:
                    await checkpoint()
                    await anyio.sleep_forever()
                finally:
                    seen.append(anyio.current_time())

            async with anyio.create_task_group() as group:
                scope = anyio.CancelScope()

                async def scoped() -> None:
                    with scope:
                        await process()

                group.start_soon(scoped)
                await anyio.sleep(1)
                loop.freeze("a")
                scope.cancel()
                await anyio.sleep(10)
                assert seen == []
                loop.thaw("a")
            return seen

        assert run(main, seed=seed, spin_limit=10_000) == [11]

    def test_a_deadline_of_the_living_strikes_while_a_frozen_task_is_being_cancelled(self, seed: int | None) -> None:
        """Both are callbacks of cancel scopes: one asks again at each turn, the other must have its turn."""

        async def main() -> float:
            loop, scope = virtual_loop(), anyio.CancelScope()

            async def frozen() -> None:
                with scope:
                    await anyio.sleep_forever()

            task = loop.start("a", frozen)
            await anyio.sleep(1)
            loop.freeze("a")
            scope.cancel()
            with pytest.raises(TimeoutError):
                with anyio.fail_after(5):
                    await anyio.sleep_forever()
            struck_at = anyio.current_time()
            loop.thaw("a")
            await task
            return struck_at

        assert run(main, seed=seed, spin_limit=10_000) == 6

    def test_scopes_inside_a_frozen_group(self, seed: int | None) -> None:
        async def main() -> list[object]:
            loop, seen = virtual_loop(), list[object]()

            async def process() -> None:
                with anyio.move_on_after(3):
                    async with anyio.create_task_group() as group:
                        for _ in range(3):
                            group.start_soon(anyio.sleep_forever)
                seen.append(("left the group", anyio.current_time()))
                with anyio.CancelScope() as scope:
                    loop.call_later(1, scope.cancel)
                    await anyio.sleep_forever()
                seen.append(("left the scope", anyio.current_time()))

            loop.start("a", process)
            for _ in range(8):
                loop.freeze("a")
                await anyio.sleep(1)
                loop.thaw("a")
                await checkpoint()
            await anyio.sleep(10)
            return seen

        (left_group, left_scope) = run(main, seed=seed, spin_limit=10_000)
        assert left_group[0] == "left the group" and 3 <= left_group[1] <= 8  # type: ignore[index]
        assert left_scope[0] == "left the scope" and left_scope[1] >= left_group[1] + 1  # type: ignore[index]

    def test_a_deadlock_tells_who_is_frozen(self, seed: int | None) -> None:
        async def main() -> None:
            virtual_loop().start("a", anyio.sleep, 5)
            await anyio.sleep(1)
            virtual_loop().freeze("a")
            await anyio.Event().wait()

        with pytest.raises(DeadlockError, match=r"(?s)at 5 .*group a \(frozen\): .*sleep"):
            run(main, seed=seed, grace=0.02)

    def test_what_is_frozen_at_the_end_is_thawed_and_cancelled(self, seed: int | None) -> None:
        seen = []

        async def process() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                seen.append("finally")

        async def main() -> None:
            tasks.append(virtual_loop().start("a", process))
            await anyio.sleep(1)
            virtual_loop().freeze("a")

        tasks: list[object] = []
        run(main, seed=seed)
        assert seen == ["finally"]


class World:
    """What simulated processes act on: a record, and a lock that they hold."""

    def __init__(self) -> None:
        self.record: list[str] = []
        self.events: list[asyncio.Event] = []

    def note(self, what: str) -> None:
        self.record.append(what)

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        self.note(f"{name} enters")
        try:
            yield
        finally:
            await checkpoint()
            self.note(f"{name} leaves")

    async def ticks(self, name: str) -> AsyncIterator[int]:
        try:
            for number in range(1000):
                await anyio.sleep(1)
                yield number
        finally:
            await checkpoint()
            self.note(f"{name} ends its ticks")

    async def process(self, name: str) -> None:
        """Use everything whose clean-up could be heard of by others."""

        async def child(number: int) -> None:
            try:
                with anyio.move_on_after(1000):
                    await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)
                    self.note(f"{name} child {number} ends")

        try:
            async with self.held(name), anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(child, number)
                orphan = asyncio.get_running_loop().create_task(asyncio.sleep(500))
                event = asyncio.Event()
                self.events.append(event)
                async for number in self.ticks(name):
                    self.note(f"{name} ticks {number}")
                await orphan
        finally:
            await asyncio.get_running_loop().create_task(asyncio.sleep(1))
            self.note(f"{name} ends")


@pytest.mark.parametrize("seed", SEEDS)
class TestKilling:
    def test_nothing_of_a_killed_group_ever_runs_again(
        self, seed: int | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        world = World()
        at_the_end: list[str] = []

        async def main() -> None:
            loop = virtual_loop()
            loop.start("a", world.process, "a")
            loop.start("b", world.process, "b")
            await anyio.sleep(3.5)
            loop.kill("a")
            assert (loop.is_killed("a"), loop.is_killed("b")) == (True, False)
            assert all(getattr(task, "group", None) != "a" for task in loop.tasks())
            gc.collect()
            await anyio.sleep(3)
            for event in world.events:
                event.set()
            loop.kill("a")
            loop.freeze("a")
            loop.thaw("a")
            await anyio.sleep(2000)
            at_the_end.extend(world.record)

        with caplog.at_level(logging.DEBUG, "asyncio"):
            run(main, seed=seed)
            gc.collect()
        assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
        of_a = [what for what in at_the_end if what.startswith("a ")]
        assert of_a == ["a enters", "a ticks 0", "a ticks 1", "a ticks 2"]
        assert "b ends" in at_the_end
        assert "b ends its ticks" in at_the_end
        assert [what for what in world.record if what.startswith("a ")] == of_a, "the end let it run"

    def test_killed_before_it_started(self, seed: int | None) -> None:
        async def main() -> None:
            task = virtual_loop().start("a", world.process, "a")
            virtual_loop().kill("a")
            await anyio.sleep(10)
            assert not task.done()

        world = World()
        run(main, seed=seed)
        assert world.record == []

    def test_killed_by_itself_it_runs_to_its_next_await(self, seed: int | None) -> None:
        async def suicide() -> None:
            try:
                virtual_loop().kill("a")
                virtual_loop().create_task(world.process("child of the dead"))
                world.note("last words")
                async for _ in world.ticks("a"):
                    world.note("a ticks")
            finally:
                await anyio.sleep(1)
                world.note("a ends")

        async def main() -> None:
            virtual_loop().start("a", suicide)
            await anyio.sleep(10)

        world = World()
        run(main, seed=seed)
        assert world.record == ["last words"]

    def test_a_task_that_became_part_of_the_group_dies_with_it(self, seed: int | None) -> None:
        async def join_the_group() -> None:
            GROUP.set("a")
            await world.process("a")

        async def main() -> None:
            task = virtual_loop().create_task(join_the_group())
            await anyio.sleep(1.5)
            virtual_loop().kill("a")
            await anyio.sleep(5)
            assert not task.done()

        world = World()
        run(main, seed=seed)
        assert world.record == ["a enters", "a ticks 0"]

    def test_killed_while_frozen(self, seed: int | None) -> None:
        async def main() -> None:
            loop = virtual_loop()
            loop.start("a", world.process, "a")
            await anyio.sleep(1.5)
            loop.freeze("a")
            await anyio.sleep(5)
            loop.kill("a")
            loop.thaw("a")
            await anyio.sleep(5)

        world = World()
        run(main, seed=seed)
        assert world.record == ["a enters", "a ticks 0"]

    def test_timers_of_the_dead_do_not_move_the_clock(self, seed: int | None) -> None:
        async def main() -> None:
            virtual_loop().start("a", anyio.sleep, 1000)
            await anyio.sleep(1)
            virtual_loop().kill("a")
            await anyio.Event().wait()

        with pytest.raises(DeadlockError, match=r"^at 1 ") as caught:
            run(main, seed=seed, grace=0.02)
        assert "group a" not in str(caught.value)

    def test_errors_that_the_dead_never_saw_are_silent(
        self, seed: int | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail(event: asyncio.Event) -> None:
            await event.wait()
            raise LookupError("nobody cares")

        async def process(future: asyncio.Future[None], event: asyncio.Event) -> None:
            failing = asyncio.get_running_loop().create_task(fail(event))
            await future
            await failing

        async def main() -> None:
            loop = virtual_loop()
            future: asyncio.Future[None] = loop.create_future()
            events = asyncio.Event(), asyncio.Event()
            for name, event in zip("ab", events, strict=True):
                loop.start(name, process, future, event)
            await anyio.sleep(1)
            events[0].set()  # its task fails, and the one that would look at it is killed
            await anyio.sleep(1)
            loop.kill("a")
            loop.kill("b")
            events[1].set()
            future.set_exception(LookupError("nobody waits"))
            await anyio.sleep(1)

        run(main, seed=seed)
        gc.collect()
        assert not caplog.records

    def test_a_scope_that_waits_for_the_dead_lets_time_go_on(self, seed: int | None) -> None:
        async def main() -> None:
            async with anyio.create_task_group() as group:

                async def doomed() -> None:
                    GROUP.set("a")
                    await checkpoint()
                    await anyio.sleep_forever()

                group.start_soon(doomed)
                await anyio.sleep(1)
                virtual_loop().kill("a")
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(10)

        with pytest.raises(DeadlockError, match=r"^at 11 "):
            run(main, seed=seed, grace=0.02, spin_limit=1000)

    def test_a_stubborn_coroutine_is_brought_to_its_end(self, seed: int | None) -> None:
        async def stubborn() -> None:
            while True:
                try:
                    await anyio.sleep(1)
                except BaseException:
                    thrown.append(1)
                    if len(thrown) < 10:
                        continue
                    raise

        async def main() -> None:
            virtual_loop().start("a", stubborn)
            await anyio.sleep(2)
            virtual_loop().kill("a")

        thrown: list[int] = []
        run(main, seed=seed)
        assert len(thrown) == 10

    def test_tasks_that_the_dead_start_while_they_go_never_run(self, seed: int | None) -> None:
        """Nor does Python complain that their coroutines were never awaited, now or when it collects them."""

        async def act(what: str) -> None:
            seen.append(what)

        async def owner(owned: list[TaskGroup]) -> None:
            async with anyio.create_task_group() as group:
                owned.append(group)
                group.start_soon(user, group)
                await anyio.sleep_forever()

        async def user(group: TaskGroup) -> None:
            cycle: list[object] = [group]
            cycle.append(cycle)
            try:
                await anyio.sleep_forever()
            finally:
                group.start_soon(act, "in the task group")
                cycle.append(act("never"))
                await virtual_loop().create_task(act("as a task"))

        async def main() -> None:
            virtual_loop().start("a", owner, [])
            await anyio.sleep(1)
            virtual_loop().kill("a")
            await anyio.sleep(1)

        seen: list[str] = []
        run(main, seed=seed)
        gc.collect()
        assert seen == []

    def test_memory_is_given_back(self, seed: int | None) -> None:
        class Big:
            pass

        async def process() -> None:
            big = Big()
            references.append(ref(big))
            try:
                async with world.held("a"):
                    await anyio.sleep_forever()
            finally:
                del big

        async def main() -> None:
            loops.append(ref(virtual_loop()))
            for number in range(20):
                virtual_loop().start(number, process)
            await anyio.sleep(1)
            for number in range(20):
                virtual_loop().kill(number)
            await anyio.sleep(1)

        world = World()
        loops: list[ref[VirtualLoop]] = []
        references: list[ref[Big]] = []
        run(main, seed=seed)
        gc.collect()
        assert len(references) == 20
        assert [reference() for reference in references] == [None] * 20
        assert [loop() for loop in loops] == [None]


SCRIPT = """
import gc, anyio
from rendezvous_async.testing.loop.clock import run, virtual_loop
from tests.testing.loop.test_groups import World

async def main():
    loop = virtual_loop()
    for round in range(30):
        for name in "abc":
            loop.start((name, round), world.process, name)
        await anyio.sleep(5.5)
        loop.freeze(("b", round))
        loop.kill(("a", round))
        await anyio.sleep(1)
        loop.kill(("b", round))

world = World()
for seed in (None, 1, 2):
    run(main, seed=seed)
del main
gc.collect()
print("quiet")
"""


def test_crashes_make_no_noise() -> None:
    """In a process of its own, with all warnings on: nothing but the last line is printed."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("quiet\n", "", 0)


def test_a_crash_is_repeatable() -> None:
    def history(seed: int) -> list[Any]:
        async def main() -> None:
            loop = virtual_loop()
            for name in "abcd":
                loop.start(name, world.process, name)
            await anyio.sleep(2.5)
            loop.kill("b")
            loop.freeze("c")
            await anyio.sleep(3)
            loop.thaw("c")
            await anyio.sleep(3)

        world = World()
        run(main, seed=seed)
        return world.record

    assert all(history(seed) == history(seed) for seed in range(20))
    assert len({tuple(history(seed)) for seed in range(20)}) == 20
