"""Programs for simulated nodes: what a node does with its rendezvous. They use the public interface only."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from rendezvous_async.core.rules import Change
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousFencedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World

__all__ = ["Program", "elastic", "worker"]

Program = Callable[[Rendezvous], Coroutine[Any, Any, None]]
WRITE_EVERY = 1.0


async def elastic(rendezvous: Rendezvous) -> None:
    """Join, hold the world until it changes, and join again, until the run is closed."""
    while (world := await _join(rendezvous)) is not None:
        if await world.changed() is Change.CLOSED:
            return


async def worker(rendezvous: Rendezvous) -> None:
    """Do the same, and write to the store of each world while holding it."""
    while (world := await _join(rendezvous)) is not None:
        async with world.until_changed() as block:
            await _write(world)
        if block.change is Change.CLOSED:
            return


async def _join(rendezvous: Rendezvous) -> World | None:
    """Join, and retry after a timeout; None if the run is over or does not need this node."""
    while True:
        try:
            return await rendezvous.join()
        except (RendezvousClosedError, RendezvousGracefulExitError):
            return None
        except RendezvousTimeoutError:
            continue


async def _write(world: World) -> None:
    while True:
        try:
            await world.store.set(f"progress of {world.rank}", "some")
        except RendezvousConnectionError:
            pass
        except RendezvousFencedError:
            await world.changed()
        await anyio.sleep(WRITE_EVERY)
