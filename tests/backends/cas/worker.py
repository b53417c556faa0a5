"""A node in a process of its own: ``python -m tests.backends.cas.worker join <json arguments>``.

It says what happens on its standard output, one JSON value a line, and reads what to do next from its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from examples.redis_backend import RedisBackend
from rendezvous_async import Change, Timeouts, connect
from rendezvous_async.backends.cas import over_state
from tests.backends.file.worker import hear, say


async def join(port: int, nodes: str, ttl: float) -> None:
    """Form a world with others, and another one when a member is lost; say each."""
    timeouts = Timeouts(join=100, last_call=100, regroup=0.001)
    async with (
        over_state(RedisBackend("127.0.0.1", port, "world"), "world") as backend,
        connect(
            backend=backend, run_id="world", nodes=nodes, timeouts=timeouts, keep_alive_interval=ttl / 5
        ) as rendezvous,
    ):
        await backend.list("")
        say("ready")
        await hear()
        began = time.monotonic()
        world = await rendezvous.join()
        say("joined", began, time.monotonic(), world.round, world.rank, world.size)
        change = await world.changed(Change.MEMBER_LOST)
        say("changed", change.name, time.monotonic())
        world = await rendezvous.join()
        say("joined", began, time.monotonic(), world.round, world.rank, world.size)
        await hear()
        await rendezvous.leave()


if __name__ == "__main__":
    assert sys.argv[1] == "join"
    asyncio.run(join(**json.loads(sys.argv[2])))
