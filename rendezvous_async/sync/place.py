"""What a blocking handler has on the loop between its first call and its ``shutdown``: a backend and a rendezvous."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

import anyio
import anyio.to_thread

from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.tcp import TcpBackend
from rendezvous_async.control import read_head
from rendezvous_async.core.state import STATE, Head
from rendezvous_async.handler import Rendezvous
from rendezvous_async.settings import Endpoint
from rendezvous_async.sync.addresses import find_local_address
from rendezvous_async.view import answer_within
from rendezvous_async.world import Glance, World

__all__ = ["Place"]

LOOK_SECONDS = 10.0


class Place:
    """A node's place in a run, on the loop.

    Args:
        endpoint: Where the run's state lives.
        run_id: Which run.
        options: Of the endpoint.
        connect: Makes the rendezvous, from a backend and this node's address.
        local_addr: This node's address; None means find it out.
        close_seconds: How long a host stays for the others to see that the run is closed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        run_id: str,
        options: Mapping[str, Any],
        connect: Callable[[Backend, str], Rendezvous],
        local_addr: str | None,
        close_seconds: float,
    ) -> None:
        self._endpoint = endpoint
        self._run_id = run_id
        self._options = options
        self._connect = connect
        self._address = local_addr
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

    async def join(self) -> tuple[World, str]:
        """Join the next round; returns its world, and the address by which others reach this node."""
        rendezvous, _ = await self._open()
        assert self._address is not None
        self._world = await rendezvous.join()
        return self._world, self._address

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
                if self._address is None:
                    self._address = await anyio.to_thread.run_sync(_address_toward, self._endpoint)
                self._backend = await start_backend(self._endpoint, self._run_id, **self._options)
                self._rendezvous = await self._connect(self._backend, self._address).__aenter__()
            return self._rendezvous, self._backend


def _address_toward(endpoint: Endpoint) -> str:
    """Return the address of this machine that the other nodes can reach, as far as the endpoint tells."""
    if endpoint.scheme == "memory":
        return "127.0.0.1"
    host, port = endpoint.hosts[0] if endpoint.hosts else (None, 0)
    address = find_local_address(host, port)
    # All nodes of tcp://localhost are here. A local etcd may be one of a cluster, and the others may be elsewhere.
    return find_local_address() if endpoint.scheme != "tcp" and ip_address(address).is_loopback else address
