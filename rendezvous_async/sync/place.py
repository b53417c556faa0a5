"""What a blocking handler has on the loop between its first call and its ``shutdown``: a backend and a rendezvous.

It must not refer to the handler: one that is dropped is to be found by the garbage collector.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio

from rendezvous_async.addresses import address_toward, is_elsewhere, is_loopback, known_address
from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.tcp import TcpBackend
from rendezvous_async.clock import answer_within, lease_now
from rendezvous_async.control import read_head
from rendezvous_async.core.state import STATE, Head, Member
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.handler import Rendezvous
from rendezvous_async.settings import Endpoint
from rendezvous_async.texts import printable
from rendezvous_async.world import Glance, World

__all__ = ["Place"]

_log = logging.getLogger("rendezvous_async.sync")

LOOK_SECONDS = 10.0


class Place:
    """A node's place in a run, on the loop.

    Args:
        endpoint: Where the run's state lives.
        run_id: Which run.
        options: Of the endpoint.
        connect: Makes the rendezvous from the node's address and a backend.
        close_seconds: How long a host stays for the others to see that the run is closed.
        address: By which others reach this node; empty: found out once the backend was reached.

    Attributes:
        address: The same, found out by the first ``join()``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        run_id: str,
        options: Mapping[str, Any],
        connect: Callable[[str, Backend], Rendezvous],
        close_seconds: float,
        address: str,
    ) -> None:
        self.address = address
        self._endpoint = endpoint
        self._run_id = run_id
        self._options = options
        self._connect = connect
        self._world: World | None = None
        self._backend: Backend | None = None
        self._rendezvous: Rendezvous | None = None
        self._close_seconds = close_seconds
        self._linger = 0.0
        self._nat: str | None = None
        self._opening = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Place {self._endpoint} {self._rendezvous}>"

    def glance(self) -> Glance | None:
        """Return what was pushed to this node; None before it has joined. Any thread may call it."""
        world = self._world
        return None if world is None else world.glance(lease_now(self._loop))

    async def join(self) -> World:
        """Join the next round.

        Raises:
            RendezvousConnectionError: Others are elsewhere, and cannot reach this node at the address that it has.
        """
        rendezvous, _ = await self._open()
        self._world = world = await rendezvous.join()
        if world.size > 1 and (is_loopback(self.address) or self._nat is not None):
            try:
                await self._check_address(world)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await rendezvous.leave()
                raise
        return world

    async def _check_address(self, world: World) -> None:
        """See whether members that are elsewhere can reach this node: raise if they cannot, warn if it is doubtful."""
        try:
            members = await world.members()
        except RendezvousError:
            return  # The round is over, or the backend is away: whoever uses the world will see.
        far: Member | None = None
        others = [member for member in members if not is_loopback(member.address)]
        with anyio.move_on_after(LOOK_SECONDS):
            far = await anyio.to_thread.run_sync(_first_elsewhere, others, abandon_on_cancel=True) if others else None
        if far is None:
            return
        node, address = printable(far.node), printable(far.address)
        if is_loopback(self.address):
            raise RendezvousConnectionError(
                f"run {self._run_id!r}: node {world.node} has the address {self.address}, which only its own machine "
                f"can reach, but node {node} is elsewhere, at {address}: give node {world.node} an address "
                "that the others can reach (local_addr=, or torchrun --local-addr)"
            )
        _log.warning(
            "run %r: node %s has the address %s, but the server sees it at %s: there is NAT or a proxy between them. "
            "If node %s at %s and others cannot reach it at %s, give it an address that they can reach (local_addr=, "
            "or torchrun --local-addr)",
            *(self._run_id, world.node, self.address, self._nat, node, address, self.address),
        )
        self._nat = None  # It is said once.

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

    async def leave(self, is_closed: bool = False) -> None:
        """Leave the run and let go of everything.

        A node that hosts the server waits for the others to see that the run is closed; if it is not, it takes the
        server along at once, so that they can host it again and form the next round there, and not twice.

        Args:
            is_closed: The run is known to be closed, though perhaps not from here.
        """
        async with self._opening:
            seen = self.glance()
            if is_closed or (seen is not None and seen.closed is not None):
                self._linger = self._close_seconds
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
                if self._backend is None:
                    self._backend = await start_backend(self._endpoint, self._run_id, **self._options)
                await self._find_address(self._backend)
                self._rendezvous = await self._connect(self.address, self._backend).__aenter__()
            return self._rendezvous, self._backend

    async def _find_address(self, backend: Backend) -> None:
        """Find out by which address others reach this node, unless it was given one."""
        if self.address:
            return
        source, seen = backend.local_address, backend.seen_address
        self.address = known_address(self._endpoint, source) or await anyio.to_thread.run_sync(
            address_toward, self._endpoint, source, abandon_on_cancel=True
        )
        if self.address == source != seen and _is_address(seen) and not is_loopback(seen):
            self._nat = seen


def _is_address(text: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(text)
        return True
    return False


def _first_elsewhere(members: Sequence[Member]) -> Member | None:
    return next((member for member in members if is_elsewhere(member.address)), None)
