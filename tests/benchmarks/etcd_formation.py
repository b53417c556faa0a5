"""One client process of the formation benchmark in bench_etcd.py: some nodes, through the handler or over bare stubs.

    python -m tests.benchmarks.etcd_formation handler|bare ENDPOINT RUN NODES FIRST COUNT

It says ``ready`` once it is connected, starts its nodes when it reads a line, prints when the last of them had joined
(by the monotonic clock, which all processes of a machine share), and then holds the world until it is killed.

The bare nodes do the least that any such protocol must do on etcd: for each node a lease, a record under it and a
watch; and when all records are there, somebody writes a seat for each, as many in a transaction as etcd takes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter

import anyio
from aetcd import rpc
from anyio import to_thread

import rendezvous_async as rdzv
from rendezvous_async.backends import open_backend

SEATS_AT_ONCE = 120
RECORD = b"r" * 150
SEAT = b"s" * 100


class Nodes:
    """Those of this process: ``FIRST`` to ``FIRST + COUNT`` of a world of ``NODES``."""

    def __init__(self, endpoint: str, run: str, nodes: int, first: int, count: int) -> None:
        self.endpoint = endpoint
        self.run = run
        self.nodes = nodes
        self.first = first
        self.count = count
        self.joined = 0
        self.all_joined = anyio.Event()

    def join(self, count: int = 1) -> None:
        """Note that ``count`` more have joined."""
        self.joined += count
        if self.joined == self.count:
            self.all_joined.set()


class HandlerNodes(Nodes):
    """Nodes that use ``connect()`` and ``join()``, and share one client."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        async with open_backend(self.endpoint, run_id=self.run) as self._backend:
            yield

    async def work(self) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(self.count):
                group.start_soon(self._node)

    async def _node(self) -> None:
        async with rdzv.connect(
            backend=self._backend,
            run_id=self.run,
            nodes=self.nodes,
            timeouts=rdzv.Timeouts(heartbeat=60),
            keep_alive_interval=10,
        ) as rendezvous:
            await rendezvous.join()
            self.join()
            await anyio.sleep_forever()


class BareNodes(Nodes):
    """Nodes over bare stubs."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        channel = rpc.insecure_channel(self.endpoint.removeprefix("etcd://"), options=[("grpc.enable_http_proxy", 0)])
        self._store, self._leases = rpc.KVStub(channel), rpc.LeaseStub(channel)
        self._seats, self._roster = rpc.WatchStub(channel).Watch(), rpc.WatchStub(channel).Watch()
        await self._store.Range(rpc.RangeRequest(key=b"/bare"))
        yield
        self._seats.cancel()
        self._roster.cancel()
        await channel.close()

    async def work(self) -> None:
        self._rng = random.Random()
        self._writing = anyio.Lock()
        async with anyio.create_task_group() as group:
            if self.first == 0:
                create = rpc.WatchCreateRequest(key=self._key("nodes/"), range_end=self._key("nodes0"))
                await self._roster.write(rpc.WatchRequest(create_request=create))
                group.start_soon(self._coordinate)
            group.start_soon(self._read_seats)
            for number in range(self.first, self.first + self.count):
                group.start_soon(self._node, number)

    async def _node(self, number: int) -> None:
        lease = self._rng.getrandbits(62)
        await self._leases.LeaseGrant(rpc.LeaseGrantRequest(TTL=60, ID=lease))
        async with self._writing:
            create = rpc.WatchCreateRequest(key=self._key(f"seats/{number}"))
            await self._seats.write(rpc.WatchRequest(create_request=create))
        key = self._key(f"nodes/{number}")
        absent = rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=0)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=RECORD, lease=lease))
        await self._store.Txn(rpc.TxnRequest(compare=[absent], success=[put]))

    async def _read_seats(self) -> None:
        while True:
            self.join(len((await self._seats.read()).events))

    async def _coordinate(self) -> None:
        """Wait for all records, and write the seats."""
        arrived = 0
        while arrived < self.nodes:
            arrived += len((await self._roster.read()).events)
        for start in range(0, self.nodes, SEATS_AT_ONCE):
            keys = [self._key(f"seats/{n}") for n in range(start, min(start + SEATS_AT_ONCE, self.nodes))]
            puts = [rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=SEAT)) for key in keys]
            await self._store.Txn(rpc.TxnRequest(success=puts))

    def _key(self, name: str) -> bytes:
        return f"/bare/{self.run}/{name}".encode()


async def main(kind: str, endpoint: str, run: str, nodes: str, first: str, count: str) -> None:
    mine = (HandlerNodes if kind == "handler" else BareNodes)(endpoint, run, int(nodes), int(first), int(count))
    async with mine.connected():
        print("ready", flush=True)
        await to_thread.run_sync(sys.stdin.readline)
        async with anyio.create_task_group() as group:
            group.start_soon(mine.work)
            await mine.all_joined.wait()
            print(perf_counter(), flush=True)


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
