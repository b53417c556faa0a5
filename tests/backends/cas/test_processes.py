"""Real processes over a real Redis: they form a world, one is killed, and the rest form the next one."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio

from tests.backends.file.processes import Process, started

SIZE = 16
TTL = 10.0
"""Long, since 16 processes may have two busy cores."""


async def everyone(workers: list[Process], what: str) -> None:
    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(worker.until, what)


async def test_sixteen_processes_form_a_world_and_miss_one_that_is_killed(redis_server: int) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                started(
                    "join",
                    module="tests.backends.cas.worker",
                    port=redis_server,
                    nodes=f"{SIZE - 1}:{SIZE}",
                    ttl=TTL,
                )
            )
            for _ in range(SIZE)
        ]
        await everyone(workers, "ready")
        for worker in workers:
            worker.tell()
        await everyone(workers, "joined")
        worlds = [worker.said[-1] for worker in workers]
        assert {(world[3], world[5]) for world in worlds} == {(1, SIZE)}
        assert sorted(world[4] for world in worlds) == list(range(SIZE))
        killed_at = time.monotonic()
        await workers[0].kill()
        rest = workers[1:]
        await everyone(rest, "changed")
        assert {worker.said[-1][1] for worker in rest} == {"MEMBER_LOST"}
        for worker in rest:  # Its last sign of life was at most an interval before.
            assert worker.said[-1][2] - killed_at > TTL - TTL / 5 - 0.1
        await everyone(rest, "joined")
        assert {(worker.said[-1][3], worker.said[-1][5]) for worker in rest} == {(2, SIZE - 1)}
        assert sorted(worker.said[-1][4] for worker in rest) == list(range(SIZE - 1))
        for worker in rest:
            worker.tell()
        async with anyio.create_task_group() as group:
            for worker in rest:
                group.start_soon(worker.rest)
        assert [worker.process.returncode for worker in rest] == [0] * (SIZE - 1)
