"""The async side of a blocking handler, from its first call to its ``shutdown``: a backend and a rendezvous.

It must not refer to the handler, so that the garbage collector can find a dropped one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio

from rendezvous_async.admin import read_head
from rendezvous_async.aio.clock import lease_now
from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.tcp import TcpDriver
from rendezvous_async.core.state import STATE, Head, Member
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.logs import log_fields
from rendezvous_async.node.addresses import address_toward, find_local_address, is_elsewhere, is_loopback, known_address
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import Glance, World
from rendezvous_async.settings import Endpoint
from rendezvous_async.sync.carrier import Carrier
from rendezvous_async.texts import printable

__all__ = ["Place"]

_log = logging.getLogger("rendezvous_async.sync")

LOOK_SECONDS = 10.0


class Place:
    """A node's place in a run, on the loop.

    Args:
        carrier: Where the run lives.
        run_id: The run's id.
        connect: Makes the rendezvous from the node's address and a backend.
        close_seconds: How long a host keeps serving so that the others see that the run is closed.
        address: This node's address for the others; empty to detect it once the backend is connected.

    Attributes:
        address: The same, detected at the latest by the first ``join()``.
    """

    def __init__(
        self,
        carrier: Carrier,
        run_id: str,
        connect: Callable[[str, Backend], Rendezvous],
        close_seconds: float,
        address: str,
    ) -> None:
        self.address = address
        self._carrier = carrier
        self._run_id = run_id
        self._connect = connect
        self._world: World | None = None
        self._backend: Backend | None = None
        self._rendezvous: Rendezvous | None = None
        self._close_seconds = close_seconds
        self._linger = 0.0
        self._nat: str | None = None
        self._opening = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Place {self._carrier.place} {self._rendezvous}>"

    def glance(self) -> Glance | None:
        """Return the latest pushed state of this node's round; None before it has joined. Thread-safe."""
        world = self._world
        return None if world is None else world.glance(lease_now(self._loop))

    async def join(self) -> World:
        """Join the next round.

        Raises:
            RendezvousConnectionError: Members on other machines cannot reach this node's address.
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
        """Raise if members on other machines cannot reach this node; warn if it is doubtful."""
        try:
            members = await world.members()
        except RendezvousError:
            return  # The round is over or the backend is unreachable; the next call on the world reports it.
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
                f"can reach, but node {node} is on another machine, at {address}: give node {world.node} an address "
                "that the others can reach (local_addr=, or torchrun --local-addr)"
            )
        _log.warning(
            "run %r: node %s has the address %s, but the server sees it at %s: there is NAT or a proxy between them. "
            "If node %s at %s or others cannot reach it at %s, give it an address that they can reach (local_addr=, "
            "or torchrun --local-addr)",
            *(self._run_id, world.node, self.address, self._nat, node, address, self.address),
            extra=log_fields(self._run_id, world.node, world.round),
        )
        self._nat = None  # Warn only once.

    async def read_head(self) -> Head | None:
        """Read the run's head from the backend."""
        _, backend = await self._open()
        with answer_within(LOOK_SECONDS, f"read the state of run {self._run_id!r}", lambda: backend.trouble):
            return read_head(await backend.get(STATE))

    async def close_run(self, reason: str) -> None:
        """Close the run permanently for all nodes."""
        rendezvous, _ = await self._open()
        await rendezvous.close(reason)
        self._linger = self._close_seconds

    async def leave(self, is_closed: bool = False) -> None:
        """Leave the run and close the connection.

        A node that hosts the server keeps serving until the others see that the run is closed. If the run is open, it
        stops serving at once, so that another node hosts the server and the next round forms there.

        Args:
            is_closed: Whether the run is known to be closed, perhaps from elsewhere.
        """
        async with self._opening:
            seen = self.glance()
            if is_closed or (seen is not None and seen.closed is not None):
                self._linger = self._close_seconds
            rendezvous, self._rendezvous = self._rendezvous, None
            backend, self._backend = self._backend, None
        if rendezvous is not None:
            await rendezvous.__aexit__(None, None, None)
        if backend is not None and isinstance(backend.driver, TcpDriver) and backend.driver.host is not None:
            backend.driver.host.linger = self._linger
        if backend is not None:
            await backend.aclose()

    async def _open(self) -> tuple[Rendezvous, Backend]:
        async with self._opening:
            if self._backend is None or self._rendezvous is None:
                self._loop = asyncio.get_running_loop()
                if self._backend is None:
                    self._backend = await self._carrier.open(self._run_id)
                await self._find_address(self._backend)
                self._rendezvous = await self._connect(self.address, self._backend).__aenter__()
            return self._rendezvous, self._backend

    async def _find_address(self, backend: Backend) -> None:
        """Detect this node's address for the others, unless one was given."""
        if self.address:
            return
        source, seen, endpoint = backend.local_address, backend.seen_address, self._carrier.endpoint
        known = "" if endpoint is None else known_address(endpoint, source)
        self.address = known or await anyio.to_thread.run_sync(_look_up_own, endpoint, source, abandon_on_cancel=True)
        if self.address == source != seen and _is_address(seen) and not is_loopback(seen):
            self._nat = seen


def _look_up_own(endpoint: Endpoint | None, source: str) -> str:
    return find_local_address() if endpoint is None else address_toward(endpoint, source)


def _is_address(text: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(text)
        return True
    return False


def _first_elsewhere(members: Sequence[Member]) -> Member | None:
    return next((member for member in members if is_elsewhere(member.address)), None)
