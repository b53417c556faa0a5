"""What ``test_sniffed.py`` runs where ``sniffio`` can be imported: ``python -m tests.sniffed KIND [ENDPOINT]``."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack

import anyio
import sniffio  # type: ignore[import-not-found, unused-ignore]
import uvloop

from rendezvous_async import Change, Timeouts, connect
from rendezvous_async.backends.tcp import serve
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.testing.scenarios import scenario_of, simulate

TIMEOUTS = Timeouts(join=20, last_call=0.2)
INTERVAL, ATTEMPTS = 0.5, 6
HOLD = 0.85 * INTERVAL * ATTEMPTS
"""Seconds for which a world is held: a node that sends no keep-alive is out, by its own clock, after 0.75 TTL."""


def library() -> str | None:
    """Return which library ``sniffio`` finds here."""
    try:
        return str(sniffio.current_async_library())
    except sniffio.AsyncLibraryNotFoundError:
        return None


def enter(endpoint: str, node: str) -> Rendezvous:
    return connect(
        endpoint,
        run_id="sniffed",
        nodes="2:3",
        node=node,
        timeouts=TIMEOUTS,
        keep_alive_interval=INTERVAL,
        keep_alive_max_attempt=ATTEMPTS,
    )


async def meet(nodes: list[Rendezvous]) -> None:
    """Form a world of them all."""
    while True:
        worlds = await asyncio.gather(*(node.join() for node in nodes))
        if {world.size for world in worlds} == {len(nodes)}:
            return


async def hold(endpoint: str) -> None:
    """Hold a world by keep-alives; then let each node leave and come back, the coordinator too, and evict one."""
    failures: list[object] = []
    found: list[str | None] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    loop.call_soon(lambda: found.append(library()))
    async with AsyncExitStack() as stack:
        if endpoint == "tcp":
            endpoint = (await stack.enter_async_context(serve("127.0.0.1", 0))).endpoint
        nodes = [await stack.enter_async_context(enter(endpoint, name)) for name in "abc"]
        await meet(nodes)
        assert found == [None], f"a bare callback knows its library: {found}"
        a, b, _ = nodes
        assert a.world is not None
        with anyio.move_on_after(HOLD):
            raise AssertionError(f"the world has changed: {await a.world.changed()}")
        for node in nodes:
            await node.leave()
            await meet(nodes)
        evicted = b.world
        assert evicted is not None
        assert await a.evict("b")
        with anyio.fail_after(30):
            while evicted.change is not Change.EVICTED:
                await evicted.changed()
                await anyio.sleep(0.01)
        await meet(nodes)
    assert not failures, failures


def main(kind: str, endpoint: str = "") -> None:
    logging.basicConfig(level=logging.WARNING)
    if kind == "simulate":
        for seed in (0, 1, 3, 4):  # No world of 2 can be whole.
            assert simulate(scenario_of(seed)).rounds
    elif kind == "uvloop":
        uvloop.run(hold(endpoint))
    else:
        asyncio.run(hold(endpoint))


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("held")
