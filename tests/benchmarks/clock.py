"""How fast the virtual loop runs callbacks and timers, next to asyncio's own loop; one JSON line for each figure.

python -m tests.benchmarks.clock
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

import anyio

from rendezvous_async.testing.loop.clock import run

TASKS, STEPS, REPEATS = 100, 2000, 5


async def hop() -> None:
    """Let many tasks take turns."""

    async def work() -> None:
        for _ in range(STEPS):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(work())


async def sleep() -> None:
    """Let many tasks sleep again and again, each time under a deadline."""

    async def work() -> None:
        for _ in range(STEPS // 4):
            with anyio.fail_after(5):
                await anyio.sleep(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(work())


def measure(what: str, count: int, call: Callable[[], object]) -> None:
    rates = []
    for _ in range(REPEATS):
        started = perf_counter()
        call()
        rates.append(count / (perf_counter() - started))
    print(json.dumps({"what": what, "per_second": round(statistics.median(rates))}), flush=True)


def main() -> None:
    def virtual(function: Callable[[], Coroutine[Any, Any, None]], seed: int | None) -> Callable[[], object]:
        return lambda: run(function, seed=seed)

    measure("callbacks, asyncio", TASKS * STEPS, lambda: asyncio.run(hop()))
    measure("callbacks, virtual, in order", TASKS * STEPS, virtual(hop, None))
    measure("callbacks, virtual, seeded", TASKS * STEPS, virtual(hop, 1))
    measure("sleeps under a deadline, virtual, in order", TASKS * STEPS // 4, virtual(sleep, None))
    measure("sleeps under a deadline, virtual, seeded", TASKS * STEPS // 4, virtual(sleep, 1))


if __name__ == "__main__":
    main()
