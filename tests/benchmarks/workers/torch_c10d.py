"""Some nodes of torch's DynamicRendezvousHandler on a TCPStore, each in a thread of its own.

    python -m tests.benchmarks.workers.torch_c10d COUNT PORT RUN_ID NODES best|shipped

``best`` switches off the recording of events, which is most of what it does at large sizes, and the sharing of stores
between agents and workers, which breaks its second rounds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch.distributed.elastic.rendezvous.dynamic_rendezvous as dynamic
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from tests.benchmarks.workers.commands import collect_no_garbage, obey, traffic

POLL = 0.1


class Nodes:
    """The nodes of this worker."""

    def __init__(self, count: int, port: int, run_id: str, low: int, high: int) -> None:
        self.count = count
        self.port = port
        self.run_id = run_id
        self.low, self.high = low, high
        self.handlers: list[Any] = []
        self.changes: list[float] = []
        self.pool = ThreadPoolExecutor(count + 1)

    async def _all(self, act: Callable[[int], Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(
            *(loop.run_in_executor(self.pool, act, number) for number in range(len(self.handlers)))
        )

    async def enter(self) -> Any:
        return {}

    async def connect(self) -> Any:
        for _ in range(self.count):
            store = TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=60))
            backend = C10dRendezvousBackend(store, self.run_id)
            params = RendezvousParameters(
                "c10d",
                f"127.0.0.1:{self.port}",
                self.run_id,
                self.low,
                self.high,
                local_addr="127.0.0.1",
                join_timeout=110,
                last_call_timeout=1,
            )
            self.handlers.append(dynamic.create_handler(store, backend, params))
        return {}

    async def join(self) -> Any:
        infos = await self._all(lambda number: self.handlers[number].next_rendezvous())
        return {
            "done": time.monotonic(),
            "ranks": [info.rank for info in infos],
            "worlds": list({(0, info.world_size) for info in infos}),  # it does not say which round
        }

    async def watch(self) -> Any:
        """Poll each 0.1 s, as torchrun's agent does."""
        self.changes = []

        def look(number: int) -> None:
            while self.handlers[number].num_nodes_waiting() == 0:
                time.sleep(POLL)  # noqa: TID251 - as the agent does
            self.changes.append(time.monotonic())

        self._watching = asyncio.ensure_future(self._all(look))  # noqa: TID251
        return {}

    async def miss(self) -> Any:
        """Poll in the same way, until each sees fewer members than now: the agent itself never looks at that."""
        self.changes = []

        def members(number: int) -> int:
            self.handlers[number].num_nodes_waiting()  # brings its view up to date
            return len(self.handlers[number]._state_holder.state.participants)

        def look(number: int) -> None:
            before = members(number)
            while members(number) >= before:
                time.sleep(POLL)  # noqa: TID251 - as the agent does
            self.changes.append(time.monotonic())

        self._watching = asyncio.ensure_future(self._all(look))  # noqa: TID251
        return {}

    async def changed(self) -> Any:
        await self._watching
        return {"first": min(self.changes), "done": max(self.changes)}

    async def traffic(self) -> Any:
        return traffic()

    async def store(self, seconds: str) -> Any:
        store = TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=60))
        store.set("key", "0")
        value = "0"
        rates = {}
        for name in ("set", "get", "add", "compare_set"):
            count, begin = 0, time.perf_counter()
            while (now := time.perf_counter()) - begin < float(seconds):
                if name == "set":
                    store.set("key", "0")
                elif name == "get":
                    store.get("key")
                elif name == "add":
                    store.add("number", 1)
                else:
                    new = str(count)
                    store.compare_set("key", value, new)
                    value = new
                count += 1
            rates[name] = count / (now - begin)
        return rates


async def main(count: str, port: str, run_id: str, nodes: str, kind: str) -> None:
    logging.disable(logging.ERROR)
    if kind == "best":
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # as shipped, a newcomer to a second round dies
        for part in vars(dynamic).values():
            if isinstance(part, type) and "_record" in vars(part):
                setattr(part, "_record", lambda *_, **__: None)  # noqa: B010 - it is torch's
    collect_no_garbage()
    low, _, high = nodes.partition(":")
    fleet = Nodes(int(count), int(port), run_id, int(low), int(high or low))
    names = ("enter", "connect", "join", "watch", "miss", "changed", "traffic", "store")
    await obey({name: getattr(fleet, name) for name in names})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
