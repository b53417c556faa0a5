"""Server and client on uvloop, whose transports are not asyncio's."""

from __future__ import annotations

import asyncio

import pytest

import rendezvous_async as rdzv

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: pip install '.[uvloop]'")


async def meet() -> list[int]:
    async def one(endpoint: str) -> int:
        async with rdzv.connect(endpoint, run_id="job", nodes=2, is_host=False) as rendezvous:
            world = await rendezvous.join()
            await world.store.barrier("done")
            return world.rank

    async with rdzv.serve("127.0.0.1", 0, secret="known to both") as server:
        endpoint = f"{server.endpoint}?secret=known to both".replace(" ", "%20")
        return sorted(await asyncio.gather(one(endpoint), one(endpoint)))


def test_nodes_meet_on_uvloop() -> None:
    assert uvloop.run(meet()) == [0, 1]
