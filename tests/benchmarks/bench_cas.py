"""How long 8, 32 and 64 nodes take to form a world over one value in Redis: ``python -m tests.benchmarks.bench_cas``.

All nodes are tasks of this process, each with a backend of its own: its own copy of the value, and its own thread. What
is timed begins when all have read the value once, and ends when the last node has its world. Next to it stands torch's
c10d at its best (see README.md here), whose nodes are threads of one process, from open connections too.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

import anyio

from examples.redis_backend import RedisBackend
from rendezvous_async import Timeouts, connect
from rendezvous_async.backends.cas import over_state
from tests.backends.cas.redis import start_redis
from tests.benchmarks.fleet import fleet, server

SIZES = (8, 32, 64)
REPEATS = 3
TIMEOUTS = Timeouts(join=120, last_call=120)


async def formation(port: int, nodes: int) -> float:
    """Return the seconds until all have their world."""
    key = uuid.uuid4().hex
    async with AsyncExitStack() as stack:
        places = []
        for _ in range(nodes):
            backend = await stack.enter_async_context(over_state(RedisBackend("127.0.0.1", port, key), key))
            await backend.list("")
            place = connect(backend=backend, run_id=key, nodes=nodes, timeouts=TIMEOUTS, keep_alive_interval=5)
            places.append(await stack.enter_async_context(place))
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(place.join)
        return anyio.current_time() - began


async def formation_of_c10d(nodes: int) -> float | None:
    """Return the same of torch's; None if it takes too long."""
    async with (
        server("torch_store") as (_, port),
        fleet("torch_c10d", nodes, port, "run", nodes, "best", processes=1) as threads,
    ):
        await threads.ask("connect")
        return await threads.form(nodes)


def shown(what: str, times: Sequence[float | None]) -> str:
    """Return the median of some times and each of them."""
    done = [each for each in times if each is not None]
    all_of_them = ", ".join("too long" if each is None else f"{each:.2f}" for each in times)
    return f"{what} {statistics.median(done) if done else float('inf'):.2f} s ({all_of_them})"


async def main(port: int) -> None:
    has_torch = find_spec("torch") is not None
    for nodes in SIZES:
        texts = [shown("one value in Redis", [await formation(port, nodes) for _ in range(REPEATS)])]
        if has_torch:
            texts.append(shown("c10d", [await formation_of_c10d(nodes) for _ in range(REPEATS)]))
        print(f"{nodes} nodes: {', '.join(texts)}")
        sys.stdout.flush()
    print(f"load of the machine at the end: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, start_redis(Path(directory)) as redis_port:
        anyio.run(main, redis_port)
