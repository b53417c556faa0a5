"""The driver over one value keeps every promise of the contract: in memory, with faults, and on a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from examples.redis_backend import RedisBackend
from rendezvous_async.backends import Backend
from rendezvous_async.backends.cas import CasDriver, over_state
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check, Make, check_backend
from rendezvous_async.testing.loop.clock import run
from tests.backends.cas.values import FaultyValue, MemoryValue


def in_memory() -> Make:
    value = MemoryValue()

    @asynccontextmanager
    async def make(run_id: str) -> AsyncIterator[Backend]:
        async with Backend(CasDriver(value), run_id) as backend:
            yield backend

    return make


def with_faults(seed: int, clients: list[FaultyValue], rate: float = 0.1) -> Make:
    """A store of which every tenth call fails, and the others take up to 20 ms twice."""
    value, rng = MemoryValue(), Random(seed)

    @asynccontextmanager
    async def make(run_id: str) -> AsyncIterator[Backend]:
        clients.append(FaultyValue(value, rng, rate, 0.02))
        async with Backend(CasDriver(clients[-1], rng=rng, call_timeout=0.05), run_id) as backend:
            yield backend

    return make


@pytest.mark.parametrize("check", BACKEND_CHECKS)
async def test_it_keeps_its_promises(check: Check) -> None:
    await check(in_memory())


@pytest.mark.parametrize("seed", range(3))
def test_it_keeps_its_promises_in_virtual_time(seed: int) -> None:
    """Each call takes a while, as anywhere: else tasks that never wait would stop the clock, and with it all looks."""

    async def main() -> None:
        await check_backend(with_faults(seed, [], rate=0.0))

    run(main, seed=seed)


@pytest.mark.parametrize("check", BACKEND_CHECKS)
def test_it_keeps_its_promises_on_a_store_that_fails(check: Check) -> None:
    async def main() -> None:
        await check(with_faults(7, []))

    run(main, seed=7)


@pytest.mark.parametrize("check", BACKEND_CHECKS)
async def test_it_keeps_its_promises_on_redis(check: Check, redis_server: int) -> None:
    @asynccontextmanager
    async def make(run_id: str) -> AsyncIterator[Backend]:
        async with over_state(RedisBackend("127.0.0.1", redis_server, check.__name__), run_id) as backend:
            yield backend

    await check(make)


def test_the_faults_happen() -> None:
    clients: list[FaultyValue] = []
    chosen = [check for check in BACKEND_CHECKS if check.__name__ == "concurrent_increments_add_up"]

    async def main() -> None:
        await chosen[0](with_faults(7, clients, rate=0.3))

    run(main, seed=7)
    for kind in clients[0].failed:
        assert sum(client.failed[kind] for client in clients) > 0, kind
