"""The virtual loop: time, seeds, deadlocks, livelocks, threads, files, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import ref

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous_async.testing.loop.clock import DeadlockError, LivelockError, VirtualLoop, run, virtual_loop


class TestTime:
    def test_an_hour_takes_a_moment(self) -> None:
        async def main() -> float:
            await anyio.sleep(3600)
            await asyncio.sleep(3600)
            return anyio.current_time()

        started = monotonic()
        assert run(main) == 7200
        assert monotonic() - started < 5

    def test_it_starts_where_it_is_told(self) -> None:
        async def main() -> tuple[float, float]:
            return asyncio.get_running_loop().time(), anyio.current_time()

        assert run(main) == (0, 0)
        assert run(main, start=17.5) == (17.5, 17.5)

    def test_it_stands_still_while_code_runs(self) -> None:
        async def main() -> float:
            for _ in range(100):
                await asyncio.sleep(0)
            return anyio.current_time()

        assert run(main) == 0

    def test_timers_run_at_their_time_and_in_its_order(self) -> None:
        async def main() -> list[tuple[float, str]]:
            loop, seen = asyncio.get_running_loop(), list[tuple[float, str]]()

            def note(what: str) -> None:
                seen.append((loop.time(), what))

            loop.call_later(3, note, "c")
            loop.call_at(1, note, "a")
            loop.call_later(2, note, "b")
            loop.call_later(-5, note, "past")
            loop.call_later(2, note, "cancelled").cancel()
            await asyncio.sleep(10)
            return seen

        assert run(main) == [(0, "past"), (1, "a"), (2, "b"), (3, "c")]

    def test_a_cancelled_timer_does_not_move_the_clock(self) -> None:
        async def main() -> float:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(1000, print)
            assert (handle.when(), handle.cancelled()) == (1000, False)
            handle.cancel()
            handle.cancel()
            assert handle.cancelled()
            await asyncio.sleep(1)
            return loop.time()

        assert run(main) == 1

    def test_cancelled_timers_do_not_pile_up(self) -> None:
        async def main() -> None:
            loop = virtual_loop()
            for _ in range(2000):
                with anyio.fail_after(600):
                    await asyncio.sleep(0.01)
                assert len(loop._timers) < 200

        run(main)

    @given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=300))
    def test_timers_against_a_model(self, plan: list[tuple[float, bool]]) -> None:
        async def main() -> list[tuple[float, int]]:
            loop, seen = asyncio.get_running_loop(), list[tuple[float, int]]()

            def note(number: int) -> None:
                seen.append((loop.time(), number))

            handles = [loop.call_at(when, note, number) for number, (when, _) in enumerate(plan)]
            for handle, (_, cancel) in zip(handles, plan, strict=True):
                if cancel:
                    handle.cancel()
            await asyncio.sleep(101)
            return seen

        assert run(main) == sorted((when, number) for number, (when, cancel) in enumerate(plan) if not cancel)

    def test_timeouts_of_asyncio_and_anyio(self) -> None:
        async def main() -> float:
            with pytest.raises(TimeoutError):
                with anyio.fail_after(10):
                    await anyio.sleep_forever()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await asyncio.Event().wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 10)
            with anyio.move_on_after(10) as scope:
                await anyio.Event().wait()
            assert scope.cancelled_caught
            with anyio.fail_after(10):
                await anyio.sleep(9)
            return anyio.current_time()

        assert run(main) == 49

    def test_virtual_loop_is_for_virtual_time_only(self) -> None:
        async def main() -> VirtualLoop:
            return virtual_loop()

        assert isinstance(run(main), VirtualLoop)
        with pytest.raises(RuntimeError, match="needs virtual time"):
            asyncio.run(main())


class TestStructure:
    """anyio and asyncio work on it as they do in real time."""

    def test_task_groups_events_and_results(self) -> None:
        async def main() -> list[str]:
            seen: list[str] = []
            event = anyio.Event()

            async def waiter(name: str) -> None:
                await event.wait()
                seen.append(name)

            async with anyio.create_task_group() as group:
                for name in "abc":
                    group.start_soon(waiter, name)
                await anyio.sleep(5)
                event.set()
            assert list(await asyncio.gather(asyncio.sleep(1, "x"), asyncio.sleep(2, "y"))) == ["x", "y"]
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(asyncio.sleep(1, "z"), name="named")
            assert (task.result(), task.get_name()) == ("z", "named")
            return seen

        assert run(main) == ["a", "b", "c"]

    def test_an_error_in_a_task_group_cancels_the_others(self) -> None:
        async def fail() -> None:
            await anyio.sleep(1)
            raise LookupError("boom")

        async def main() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                group.start_soon(fail)

        with pytest.raises(ExceptionGroup) as caught:
            run(main)
        assert caught.group_contains(LookupError)

    def test_shielded_scopes_and_nested_deadlines(self) -> None:
        async def main() -> list[float]:
            seen = []
            with anyio.move_on_after(5):
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(3)
                        seen.append(anyio.current_time())
            seen.append(anyio.current_time())
            return seen

        assert run(main) == [8, 8]

    def test_memory_streams_locks_and_conditions(self) -> None:
        async def main() -> list[int]:
            send, receive = anyio.create_memory_object_stream[int](3)
            lock, seen = anyio.Lock(), list[int]()

            async def produce() -> None:
                async with send:
                    for number in range(10):
                        async with lock:
                            await send.send(number)

            async with anyio.create_task_group() as group, receive:
                group.start_soon(produce)
                async for number in receive:
                    seen.append(number)
                    await anyio.sleep(1)
            return seen

        assert run(main) == list(range(10))

    def test_context_variables(self) -> None:
        variable = ContextVar("variable", default="unset")

        async def main() -> list[str]:
            loop, seen = asyncio.get_running_loop(), list[str]()
            variable.set("main")

            async def child() -> None:
                seen.append(variable.get())
                variable.set("child")
                loop.call_soon(lambda: seen.append(variable.get()))
                loop.call_later(1, lambda: seen.append(variable.get()))
                await asyncio.sleep(2)

            await asyncio.gather(child())
            seen.append(variable.get())
            return seen

        assert run(main) == ["main", "child", "child", "main"]

    def test_the_result_and_the_error_come_out(self) -> None:
        async def give(value: str) -> str:
            return value

        async def fail() -> None:
            raise LookupError("boom")

        assert run(give, "value") == "value"
        with pytest.raises(LookupError, match="boom"):
            run(fail)

    def test_a_task_factory_is_used(self) -> None:
        async def main() -> str:
            loop = asyncio.get_running_loop()
            loop.set_task_factory(lambda loop, coroutine, **kwargs: asyncio.Task(coroutine, loop=loop, **kwargs))
            return (await asyncio.gather(asyncio.sleep(1, "x")))[0]

        assert run(main) == "x"

    def test_an_error_in_a_callback_is_reported_and_the_loop_goes_on(self) -> None:
        async def main() -> list[dict[str, Any]]:
            reports: list[dict[str, Any]] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda loop, context: reports.append(context))
            loop.call_soon(divmod, 1, 0)
            await asyncio.sleep(1)
            return reports

        (report,) = run(main)
        assert isinstance(report["exception"], ZeroDivisionError)
        assert "divmod" in report["message"]

    def test_a_loop_can_be_stopped_and_run_again(self) -> None:
        loop = VirtualLoop()
        seen: list[str] = []
        loop.call_soon(seen.append, "first")
        loop.call_soon(loop.stop)
        loop.call_soon(seen.append, "same turn")
        loop.call_soon(lambda: loop.call_soon(seen.append, "next turn"))
        loop.run_forever()
        assert seen == ["first", "same turn"]
        loop.stop()
        loop.run_forever()
        assert seen == ["first", "same turn", "next turn"]
        loop.close()
        loop.close()
        for call in (loop.call_soon, loop.call_soon_threadsafe):
            with pytest.raises(RuntimeError, match="closed"):
                call(print)
        with pytest.raises(RuntimeError, match="closed"):
            loop.call_later(1, print)


def interleaving(seed: int | None, tasks: int = 6, steps: int = 4) -> str:
    """Return the order in which some tasks take their steps, timers and cancellations among them."""

    async def main() -> str:
        seen: list[str] = []

        async def work(name: str) -> None:
            try:
                for step in range(steps):
                    seen.append(f"{name}{step}")
                    await asyncio.sleep(0)
                asyncio.get_running_loop().call_later(1, seen.append, name)
                await anyio.sleep_forever()
            finally:
                seen.append(f"-{name}")

        async with anyio.create_task_group() as group:
            for number in range(tasks):
                group.start_soon(work, chr(ord("a") + number))
            await anyio.sleep(2)
            group.cancel_scope.cancel()
        return " ".join(seen)

    return run(main, seed=seed)


class TestSeeds:
    def test_without_a_seed_the_order_is_that_of_scheduling(self) -> None:
        wanted = [f"{name}{step}" for step in range(4) for name in "abcdef"] + list("abcdef")
        assert interleaving(None).split()[:30] == wanted

    def test_one_seed_gives_one_interleaving(self) -> None:
        for seed in range(20):
            assert interleaving(seed) == interleaving(seed)

    def test_other_seeds_give_other_interleavings(self) -> None:
        assert len({interleaving(seed) for seed in range(50)}) == 50

    def test_all_orders_of_a_turn_come_up(self) -> None:
        seen = {interleaving(seed, tasks=3, steps=1)[:8] for seed in range(200)}
        assert len(seen) == 6

    def test_a_callback_of_this_turn_runs_before_those_of_the_next(self) -> None:
        async def main() -> list[str]:
            loop, seen = asyncio.get_running_loop(), list[str]()

            def twice(what: str) -> None:
                seen.append(what)
                loop.call_soon(seen.append, f"{what}!")

            for number in range(10):
                loop.call_soon(twice, f"{number}")
            await asyncio.sleep(1)
            return seen

        seen = run(main, seed=3)
        assert all("!" not in item for item in seen[:10])
        assert seen[:10] != sorted(seen[:10])

    def test_another_process_sees_the_same(self) -> None:
        """Neither the hash seed nor the addresses of objects matter, not even when anyio cancels a set of tasks."""
        code = "from tests.testing.loop.test_clock import interleaving; print([interleaving(s, 12) for s in range(10)])"
        root = Path(__file__).parents[3]
        outputs = set()
        for hash_seed in ("0", "1", "2"):
            environment = {
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONMALLOC": "malloc" if hash_seed == "2" else "",
            }
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=True, timeout=60
            )
            outputs.add(done.stdout)
        assert len(outputs) == 1
        assert outputs == {f"{[interleaving(seed, 12) for seed in range(10)]}\n".encode()}

    def test_task_names_are_the_same_in_every_run(self) -> None:
        async def main() -> str:
            task = asyncio.current_task()
            assert task is not None
            return task.get_name()

        assert run(main) == run(main) == "Task-1"


class TestNoProgress:
    def test_a_deadlock_names_who_is_blocked_where(self) -> None:
        async def forever() -> None:
            await asyncio.Event().wait()

        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(forever(), name="the waiter")
                await anyio.sleep(7)
                with anyio.CancelScope():
                    await anyio.Event().wait()

        with pytest.raises(DeadlockError) as caught:
            run(main, grace=0.05)
        text = str(caught.value)
        assert "at 7 every task is blocked" in text
        assert (
            "the waiter: TestNoProgress.test_a_deadlock_names_who_is_blocked_where.<locals>.forever (test_clock" in text
        )
        assert "Task-1: " in text and "Event.wait" in text

    def test_a_deadlock_of_nested_calls_is_shortened(self) -> None:
        async def deep(depth: int) -> None:
            if depth:
                await deep(depth - 1)
            else:
                await asyncio.get_running_loop().create_future()

        with pytest.raises(DeadlockError, match=r"> \.\.\. >") as caught:
            run(deep, 50, grace=0.05)
        assert len(str(caught.value)) < 1500

    def test_clean_up_runs_after_a_deadlock(self) -> None:
        seen = []

        async def main() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(10)
                seen.append(anyio.current_time())

        with pytest.raises(DeadlockError):
            run(main, grace=0.05)
        assert seen == [10]

    def test_a_task_that_refuses_to_end_does_not_hang_the_end(self, caplog: pytest.LogCaptureFixture) -> None:
        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

        async def main() -> None:
            tasks.append(asyncio.get_running_loop().create_task(stubborn()))
            await asyncio.sleep(1)

        tasks: list[asyncio.Task[None]] = []
        with pytest.raises(DeadlockError, match="stubborn"):
            run(main, grace=0.05)
        tasks.clear()
        gc.collect()
        assert not caplog.records

    def test_a_livelock_names_the_last_callbacks(self) -> None:
        async def spin() -> None:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(0)

        async def main() -> None:
            await anyio.sleep(3)
            await spin()

        with pytest.raises(LivelockError, match=r"(?s)1\d\d\d callbacks .* stood still at 3.*step of Task-1.*spin"):
            run(main, spin_limit=1000)

    def test_a_livelock_of_callbacks(self) -> None:
        async def main() -> None:
            def again() -> None:
                asyncio.get_running_loop().call_soon(again)

            again()
            await asyncio.sleep(1)

        with pytest.raises(LivelockError, match=r"main\.<locals>\.again"):
            run(main, spin_limit=1000)

    def test_a_livelock_of_timers_that_are_due_at_once(self) -> None:
        """Whoever waits until now spins just as well."""

        async def main() -> None:
            await anyio.sleep(1)
            while True:
                now = asyncio.Event()
                asyncio.get_running_loop().call_at(anyio.current_time(), now.set)
                await now.wait()

        with pytest.raises(LivelockError, match="stood still at 1"):
            run(main, spin_limit=1000)

    def test_work_is_no_livelock_as_long_as_time_goes_on(self) -> None:
        async def main() -> None:
            for _ in range(50):
                for _ in range(50):
                    await asyncio.sleep(0)
                await asyncio.sleep(1)

        run(main, spin_limit=100)


class TestTheWorldOutside:
    def test_a_thread_can_call_in(self) -> None:
        async def main() -> str:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[str] = loop.create_future()
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(future.set_result, "from a thread"))
            thread.start()
            try:
                return await future
            finally:
                thread.join()

        assert run(main, grace=10) == "from a thread"
        assert run(main, grace=10, seed=1) == "from a thread"

    def test_a_thread_can_call_in_while_the_loop_is_busy(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            called = asyncio.Event()
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(called.set,))
            thread.start()
            while not called.is_set():  # noqa: ASYNC110
                await asyncio.sleep(1)
            thread.join()

        run(main)

    def test_a_call_from_a_thread_can_be_cancelled(self) -> None:
        async def main() -> list[str]:
            loop, seen = asyncio.get_running_loop(), list[str]()
            loop.call_soon_threadsafe(seen.append, "cancelled").cancel()
            loop.call_soon_threadsafe(seen.append, "called")
            await asyncio.sleep(1)
            return seen

        assert run(main) == ["called"]

    def test_worker_threads(self) -> None:
        async def main() -> list[int]:
            return [
                await anyio.to_thread.run_sync(lambda: 1),
                await asyncio.to_thread(lambda: 2),
                await asyncio.get_running_loop().run_in_executor(None, lambda: 3),
            ]

        assert run(main, grace=10) == [1, 2, 3]

    def test_a_file_that_becomes_readable_wakes_the_loop(self) -> None:
        async def main() -> bytes:
            loop = asyncio.get_running_loop()
            left, right = socket.socketpair()
            with left, right:
                left.setblocking(False)
                right.setblocking(False)
                read = loop.create_task(loop.sock_recv(left, 10))
                await asyncio.sleep(0)
                thread = threading.Thread(target=right.send, args=(b"hello",))
                thread.start()
                data = await read
                thread.join()
                return data

        assert run(main) == b"hello"

    def test_real_sockets_work_without_a_seed(self) -> None:
        async def main() -> list[bytes]:
            served = asyncio.Event()

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while line := await reader.readline():
                    writer.write(line.upper())
                    await asyncio.sleep(10)
                writer.close()
                await writer.wait_closed()
                served.set()

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            answers = []
            for line in (b"one\n", b"two\n"):
                writer.write(line)
                answers.append(await reader.readline())
            writer.close()
            await writer.wait_closed()
            await served.wait()
            server.close()
            await server.wait_closed()
            return answers

        assert run(main) == [b"ONE\n", b"TWO\n"]


class TestTheEnd:
    def test_left_over_tasks_are_cancelled_in_the_order_of_their_making(self) -> None:
        def ends(seed: int | None) -> list[str]:
            seen: list[str] = []

            async def forever(name: str) -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    seen.append(name)

            async def main() -> None:
                loop = asyncio.get_running_loop()
                references.extend(loop.create_task(forever(f"{number}")) for number in range(20))
                await anyio.sleep(1)

            references: list[asyncio.Task[None]] = []
            run(main, seed=seed)
            assert all(task.cancelled() for task in references)
            return seen

        assert ends(None) == [f"{number}" for number in range(20)]
        assert ends(5) == ends(5) != ends(None)

    def test_async_generators_are_closed(self) -> None:
        seen = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await anyio.sleep(1)
                seen.append("closed")

        async def main() -> None:
            generator = numbers()
            references.append(generator)
            async for _ in generator:
                break

        references: list[object] = []
        run(main)
        assert seen == ["closed"]

    def test_an_async_generator_that_is_dropped_is_closed(self) -> None:
        seen = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                seen.append("closed")

        async def main() -> None:
            async for _ in numbers():
                break
            gc.collect()
            await asyncio.sleep(1)
            assert seen == ["closed"]

        run(main)

    def test_an_error_in_a_left_over_task_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        async def fail_at_the_end() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise LookupError("boom")

        async def main() -> None:
            references.append(asyncio.get_running_loop().create_task(fail_at_the_end()))
            await asyncio.sleep(1)

        references: list[object] = []
        with caplog.at_level(logging.ERROR):
            run(main)
        assert "unhandled exception during run() shutdown" in caplog.text

    def test_nothing_stays_in_memory(self) -> None:
        async def main() -> None:
            loops.append(ref(virtual_loop()))
            with anyio.fail_after(100):
                await anyio.sleep(1)

        loops: list[ref[VirtualLoop]] = []
        run(main)
        gc.collect()
        assert [loop() for loop in loops] == [None]

    @pytest.mark.parametrize("seed", [None, 1])
    @pytest.mark.parametrize("busy", ["timers", "spin", "blocked"])
    def test_ctrl_c_ends_it(self, busy: str, seed: int | None) -> None:
        seen = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            interrupt: Callable[[], None] = lambda: signal.raise_signal(signal.SIGINT)  # noqa: E731
            if busy == "blocked":
                thread = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
                thread.start()
            else:
                loop.call_later(5, interrupt)
            try:
                while busy != "blocked":
                    await asyncio.sleep(0.01)
                    if busy == "spin" and loop.time() > 5:
                        await asyncio.sleep(0)
                await asyncio.Event().wait()
            finally:
                seen.append("finally")

        with pytest.raises(KeyboardInterrupt):
            run(main, seed=seed, grace=10)
        assert seen == ["finally"]

    def test_an_exit_in_a_callback_ends_it(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(sys.exit, 3)
            for number in range(3):
                loop.call_soon(seen.append, number)
            await asyncio.sleep(1)

        seen: list[int] = []
        with pytest.raises(SystemExit):
            run(main)
        assert seen == [0, 1, 2], "what was ready runs while the loop winds up"


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 20))
def test_time_never_goes_back(seed: int, tasks: int) -> None:
    async def main() -> None:
        last = 0.0

        async def work(number: int) -> None:
            nonlocal last
            for step in range(20):
                await asyncio.sleep((number * step) % 7 / 10)
                now = anyio.current_time()
                assert now >= last
                last = now

        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(work(number))

    run(main, seed=seed)


def test_a_coroutine_in_place_of_its_function_is_refused() -> None:
    async def main() -> None:
        raise AssertionError("this never runs")

    with pytest.raises(TypeError, match=r"give it main, not main\(\)"):
        run(main())  # type: ignore[arg-type]
