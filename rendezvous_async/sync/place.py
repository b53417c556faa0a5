"""What a blocking handler has on the loop between its first call and its ``shutdown``: a backend and a rendezvous."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.tcp import TcpBackend
from rendezvous_async.clock import answer_within
from rendezvous_async.control import read_head
from rendezvous_async.core.state import STATE, Head
from rendezvous_async.handler import Rendezvous
from rendezvous_async.settings import Endpoint
from rendezvous_async.world import Glance, World

__all__ = ["Place"]

LOOK_SECONDS = 10.0


class Place:
    """A node's place in a run, on the loop.

    Args:
        endpoint: Where the run's state lives.
        run_id: Which run.
        options: Of the endpoint.
        connect: Makes the rendezvous from a backend.
        close_seconds: How long a host stays for the others to see that the run is closed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        run_id: str,
        options: Mapping[str, Any],
        connect: Callable[[Backend], Rendezvous],
        close_seconds: float,
    ) -> None:
        self._endpoint = endpoint
        self._run_id = run_id
        self._options = options
        self._connect = connect
        self._world: World | None = None
        self._backend: Backend | None = None
        self._rendezvous: Rendezvous | None = None
        self._close_seconds = close_seconds
        self._linger = 0.0
        self._opening = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Place {self._endpoint} {self._rendezvous}>"

    def glance(self) -> Glance | None:
        """Return what was pushed to this node; None before it has joined. Any thread may call it."""
        world = self._world
        return None if world is None else world.glance(self._loop.time())

    async def join(self) -> World:
        """Join the next round."""
        rendezvous, _ = await self._open()
        self._world = await rendezvous.join()
        return self._world

    async def read_head(self) -> Head | None:
        """Ask the backend for the run's head."""
        _, backend = await self._open()
        with answer_within(LOOK_SECONDS, f"look at run {self._run_id!r}"):
            return read_head(await backend.get(STATE))

    async def close_run(self, reason: str) -> None:
        """Close the run, for everyone and for good."""
        rendezvous, _ = await self._open()
        await rendezvous.close(reason)
        self._linger = self._close_seconds

    async def leave(self) -> None:
        """Leave the run and let go of everything.

        A node that hosts the server waits for the others to see that the run is closed; if it is not, it takes the
        server along at once, so that they can host it again and form the next round there, and not twice.
        """
        async with self._opening:
            rendezvous, self._rendezvous = self._rendezvous, None
            backend, self._backend = self._backend, None
        if rendezvous is not None:
            await rendezvous.__aexit__(None, None, None)
        if isinstance(backend, TcpBackend) and backend.host is not None:
            backend.host.linger = self._linger
        if backend is not None:
            await backend.aclose()

    async def _open(self) -> tuple[Rendezvous, Backend]:
        async with self._opening:
            if self._backend is None or self._rendezvous is None:
                self._loop = asyncio.get_running_loop()
                self._backend = await start_backend(self._endpoint, self._run_id, **self._options)
                self._rendezvous = await self._connect(self._backend).__aenter__()
            return self._rendezvous, self._backend
