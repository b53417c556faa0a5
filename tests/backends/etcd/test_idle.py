"""A run at rest writes nothing: 64 nodes hold a round and keep their sessions, and etcd's revision stands still."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio import to_thread

import rendezvous_async as rdzv
from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Delete
from rendezvous_async.testing.etcd import EtcdCluster

NODES = 64
CLIENTS = 4
FORMED_WITHIN = 60


class Rest:
    """Nodes that join and then expect that nothing happens."""

    def __init__(self, interval: float, attempts: int) -> None:
        self._interval = interval
        self._attempts = attempts
        self._joined = 0
        self.formed = anyio.Event()
        self.disturbed = anyio.Event()
        self.news = ""

    async def node(self, backend: Backend) -> None:
        async with rdzv.connect(
            backend=backend,
            run_id=backend.run_id,
            nodes=NODES,
            keep_alive_interval=self._interval,
            keep_alive_max_attempt=self._attempts,
        ) as rendezvous:
            world = await rendezvous.join()
            self._joined += 1
            if self._joined == NODES:
                self.formed.set()
            self.news = f"node {rendezvous.node}: {await world.changed()}"
            self.disturbed.set()


async def rest(etcd: EtcdCluster, seconds: float, interval: float, attempts: int) -> None:
    """Let a world of 64 rest for so long, and see what etcd has counted meanwhile."""
    member = etcd.members[0]

    def look() -> tuple[int, float, str]:
        """Return etcd's revision, its count of puts, and how far its log has come."""
        puts = member.metric("etcd_mvcc_put_total") + member.metric("etcd_debugging_mvcc_put_total")
        return etcd.revision(), puts, str(member.ask("/v3/maintenance/status")["raftIndex"])

    def kept() -> float:
        return member.metric("grpc_server_msg_received_total", grpc_method="LeaseKeepAlive")

    async with AsyncExitStack() as stack:
        opening = (open_backend(etcd.endpoint, run_id=f"rest for {seconds:g}") for _ in range(CLIENTS))
        backends = [await stack.enter_async_context(backend) for backend in opening]
        nodes = Rest(interval, attempts)
        async with anyio.create_task_group() as group:
            for number in range(NODES):
                group.start_soon(nodes.node, backends[number % CLIENTS])
            with anyio.fail_after(FORMED_WITHIN):
                await nodes.formed.wait()
            before, kept_before = await to_thread.run_sync(look), await to_thread.run_sync(kept)
            with anyio.move_on_after(seconds):
                await nodes.disturbed.wait()
                pytest.fail(f"the world was to rest, but {nodes.news}")
            assert await to_thread.run_sync(look) == before, "somebody has written"
            assert await to_thread.run_sync(kept) - kept_before >= NODES * seconds / interval / 4
            group.cancel_scope.cancel()
        await backends[0].commit(Delete(""))


async def test_a_run_at_rest_writes_nothing(etcd: EtcdCluster) -> None:
    await rest(etcd, seconds=3, interval=0.5, attempts=60)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_run_at_rest_for_ten_minutes_writes_nothing(etcd: EtcdCluster) -> None:
    await rest(etcd, seconds=600, interval=1, attempts=5)  # The defaults: the machine must be able to keep them.
