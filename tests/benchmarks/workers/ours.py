"""Some nodes of this library, as tasks of one event loop.

python -m tests.benchmarks.workers.ours COUNT ENDPOINT RUN_ID NODES [KEEP_ALIVE_INTERVAL [LAST_CALL]]
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import rendezvous_async as rdzv
import rendezvous_async.backends.tcp
from tests.benchmarks.workers.commands import Profiler, collect_no_garbage, obey, traffic


class Nodes:
    """The nodes of this worker."""

    def __init__(self, count: int, endpoint: str, run_id: str, nodes: str, interval: float, last_call: float) -> None:
        timeouts = rdzv.Timeouts(join=110, last_call=last_call, regroup=0.001)
        self.meetings = [
            rdzv.connect(
                endpoint,
                run_id=run_id,
                nodes=nodes,
                timeouts=timeouts,
                keep_alive_interval=interval,
                keep_alive_max_attempt=30,
                is_host=False,
                connect_timeout=100,
            )
            for _ in range(count)
        ]
        self.worlds: list[rdzv.World] = []
        self.changes: list[asyncio.Task[float]] = []
        self._stack = AsyncExitStack()

    async def enter(self) -> Any:
        """Enter all; nothing is sent yet."""
        for meeting in self.meetings:
            await self._stack.enter_async_context(meeting)
        return {}

    async def connect(self) -> Any:
        """Connect all, a few at a time."""
        for first in range(0, len(self.meetings), 64):
            await asyncio.gather(*(meeting.status() for meeting in self.meetings[first : first + 64]))
        return {}

    async def join(self) -> Any:
        """Join with all of them at once."""
        self.worlds = await asyncio.gather(*(meeting.join() for meeting in self.meetings))
        return {
            "done": time.monotonic(),
            "ranks": [world.rank for world in self.worlds],
            "worlds": list({(world.round, world.size) for world in self.worlds}),
        }

    async def watch(self) -> Any:
        """From now on note when each learns that its world has changed."""

        async def noted(world: rdzv.World) -> float:
            await world.changed()
            return time.monotonic()

        self.changes = [asyncio.ensure_future(noted(world)) for world in self.worlds]  # noqa: TID251
        return {}

    async def changed(self) -> Any:
        """Return when the first and the last of them learned it."""
        times = await asyncio.gather(*self.changes)
        return {"first": min(times), "done": max(times)}

    async def traffic(self) -> Any:
        """Return what went over the wire so far."""
        return traffic()

    async def commit(self, count: str) -> Any:
        """Have each commit so often to the round's store, all at once."""

        async def commits(number: int, world: rdzv.World) -> None:
            for _ in range(int(count)):
                await world.store.set(f"key/{number}", b"0")

        await asyncio.gather(*(commits(number, world) for number, world in enumerate(self.worlds)))
        return {"done": time.monotonic()}

    async def store(self, seconds: str) -> Any:
        """Return how many operations a second the round's store does, one after the other."""
        store = self.worlds[0].store
        await store.set("key", b"0")
        value = b"0"
        rates = {}
        for name in ("set", "get", "add", "compare_set"):
            count, begin = 0, time.perf_counter()
            while (now := time.perf_counter()) - begin < float(seconds):
                if name == "set":
                    await store.set("key", b"0")
                elif name == "get":
                    await store.get("key")
                elif name == "add":
                    await store.add("number", 1)
                else:
                    new = str(count).encode()
                    await store.compare_set("key", value, new)
                    value = new
                count += 1
            rates[name] = count / (now - begin)
        return rates


class Timers:
    """How late the callbacks of others run: a timer that is set each 2 ms, from ``timers`` to ``lateness``."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def timers(self) -> Any:
        """Begin."""
        self._late.clear()
        self._task = asyncio.ensure_future(self._run())  # noqa: TID251
        return {}

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.002
            await asyncio.sleep(0.002)
            self._late.append(loop.time() - due)

    async def lateness(self) -> Any:
        """End; returns the median, the 99th percentile and the most of how late it was."""
        assert self._task is not None
        self._task.cancel()
        late = sorted(self._late)
        return {"median": late[len(late) // 2], "p99": late[len(late) * 99 // 100], "most": late[-1]}


async def main(
    count: str, endpoint: str, run_id: str, nodes: str, interval: str = "1", last_call: str = "0.001"
) -> None:
    logging.disable(logging.WARNING)
    collect_no_garbage()
    fleet = Nodes(int(count), endpoint, run_id, nodes, float(interval), float(last_call))
    names = ("enter", "connect", "join", "watch", "changed", "traffic", "commit", "store")
    profiler, timers = Profiler(), Timers()
    commands = {name: getattr(fleet, name) for name in names}
    commands |= {"timers": timers.timers, "lateness": timers.lateness}
    await obey({**commands, "profile": profiler.profile, "profiled": profiler.profiled})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
