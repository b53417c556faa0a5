"""The TCP backend keeps every promise of the contract: on real sockets, protected, durable, through a bad network."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.tcp import Limits, serve
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check, Make
from rendezvous_async.testing.conformance.commits import the_limits_are_what_they_say
from tests.backends.tcp.support import Certificates, through_proxy


def maker(endpoint: str, **options: Any) -> Make:
    def make(run_id: str) -> AbstractAsyncContextManager[Backend]:
        return open_backend(endpoint, run_id=run_id, is_host=False, **options)

    return make


async def check_all_at_once(make: Make) -> None:
    """Every check in a run of its own, side by side on one server: they must not disturb each other either.

    Only the one that deletes more keys than a table remembers is left out: it would make others' watches start over.
    """
    async with anyio.create_task_group() as group:
        for check in BACKEND_CHECKS:
            if check is not the_limits_are_what_they_say:
                group.start_soon(check, make)


@pytest.mark.parametrize("check", BACKEND_CHECKS)
async def test_tcp_keeps_its_promises(check: Check) -> None:
    async with serve(port=0) as server:
        await check(maker(server.endpoint))


async def test_with_a_secret() -> None:
    async with serve(port=0, secret="open sesame") as server:
        await check_all_at_once(maker(server.endpoint, secret="open sesame"))


async def test_with_mutual_tls(certificates: Certificates) -> None:
    async with serve(port=0, **certificates.tls_options) as server:
        await check_all_at_once(maker(server.endpoint, **certificates.tls_options))


async def test_on_disk(tmp_path: Path) -> None:
    async with serve(port=0, data_dir=tmp_path) as server:
        await check_all_at_once(maker(server.endpoint))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
async def test_through_a_bad_network(seed: int, tmp_path: Path) -> None:
    """Connections are delayed, cut, half-closed and stalled all the time; nothing but time is lost."""
    # Sessions that outlive the faults: the checks ask for one second, and not all of them keep theirs alive.
    limits = Limits(shortest_ttl=5)
    async with (
        serve(port=0, data_dir=tmp_path, disconnect_grace=5, limits=limits) as server,
        through_proxy(server) as proxy,
        anyio.create_task_group() as group,
    ):
        group.start_soon(proxy.disturb, random.Random(seed), 0.6, 0.3)
        await check_all_at_once(maker(f"tcp://127.0.0.1:{proxy.port}", stall_timeout=1.0))
        assert proxy.accepted > 100
        group.cancel_scope.cancel()
