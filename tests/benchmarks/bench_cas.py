"""How long 8, 32 and 64 nodes take to form a world over one value in Redis: ``python -m tests.benchmarks.bench_cas``.

All nodes are tasks of this process, each with a backend of its own: its own copy of the value, and its own thread. What
is timed begins when all have read the value once, and ends when the last node has its world.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from examples.redis_backend import RedisBackend
from rendezvous_async import Timeouts, connect
from rendezvous_async.backends.cas import over_state
from tests.backends.cas.redis import start_redis

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


async def main(port: int) -> None:
    for nodes in SIZES:
        times = [await formation(port, nodes) for _ in range(REPEATS)]
        print(f"{nodes} nodes: {statistics.median(times):.2f} s, of {', '.join(f'{each:.2f}' for each in times)}")
        sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, start_redis(Path(directory)) as redis_port:
        anyio.run(main, redis_port)
