"""Server and client on uvloop, whose transports are not asyncio's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rendezvous_async as rdzv
from tests.backends.tcp.support import Certificates

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: pip install '.[uvloop]'")


async def meet(**options: Any) -> list[int]:
    async with rdzv.serve("127.0.0.1", 0, **options) as server:

        async def one() -> int:
            async with rdzv.connect(server.endpoint, run_id="job", nodes=2, is_host=False, **options) as rendezvous:
                world = await rendezvous.join()
                await world.store.barrier("done")
                return world.rank

        return sorted(await asyncio.gather(one(), one()))


def test_nodes_meet_on_uvloop() -> None:
    assert uvloop.run(meet(secret="known to both")) == [0, 1]


def test_nodes_meet_on_uvloop_with_tls(certificates: Certificates) -> None:
    assert uvloop.run(meet(**certificates.tls_options)) == [0, 1]
