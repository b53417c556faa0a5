"""A backend behind a simulated network: delays, lost requests, lost replies, late writes, partitions.

Every node has a ``SimulatedBackend`` of its own. A call travels to the server and back, and each leg may take its time
or fail; a call without an answer raises ``RendezvousConnectionError`` after ``CALL_TIMEOUT``, though the server may
have done it, or may still do it later. That is harsher than TCP, which repeats a commit under its id: here the
library itself must cope with every unknown outcome. Watches lag, and go on where they were after a partition.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

import anyio
import msgspec

from rendezvous_async import clock
from rendezvous_async.backends.base import (
    Backend,
    Commit,
    Condition,
    Entry,
    Listing,
    Session,
    Token,
    Watch,
    Write,
    owned,
)
from rendezvous_async.backends.memory import MemoryServer
from rendezvous_async.backends.table import Table
from rendezvous_async.clock import Patience, answer_within
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError

__all__ = ["Faults", "Network", "SimulatedBackend"]

CALL_TIMEOUT = 0.5
T = TypeVar("T")


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How bad the simulated network is.

    Attributes:
        delay: The longest time that one leg takes, in seconds; each takes a random part of it.
        drop_request: The probability that a request never arrives.
        drop_reply: The probability that the answer to a request that was done never arrives.
        late: The probability that a request arrives up to ``lateness`` later, long after its caller gave up.
        lateness: See ``late``.
    """

    delay: float = 0.001
    drop_request: float = 0.0
    drop_reply: float = 0.0
    late: float = 0.0
    lateness: float = 5.0

    def __post_init__(self) -> None:
        for name in ("drop_request", "drop_reply", "late"):
            if not (_is_number(chance := getattr(self, name)) and 0 <= chance <= 1):
                raise ValueError(f"{name} must be a probability from 0 to 1, not {chance!r}")
        for name in ("delay", "lateness"):
            if not (_is_number(seconds := getattr(self, name)) and 0 <= seconds < math.inf):
                raise ValueError(f"{name} must be a finite number of seconds, 0 or more, not {seconds!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Network:
    """The server, and what lies between it and the nodes.

    Attributes:
        server: The one that all nodes talk to; ``lose_server()`` replaces what it knows.
        faults: How bad things are now; may be changed at any time.
    """

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self.server = MemoryServer("epoch-1")
        self.faults = faults
        self._rng = rng
        self._cut: set[str] = set()
        self._watches: dict[_SimulatedWatch, None] = {}
        self._context = copy_context()
        self._epochs = 1

    def reaches(self, node: str) -> bool:
        """Tell whether a node and the server reach each other."""
        return node not in self._cut

    def cut(self, *nodes: str) -> None:
        """Cut these nodes off the server."""
        self._cut.update(nodes)

    def heal(self, *nodes: str) -> None:
        """Let these nodes, or all, reach the server again."""
        self._cut.difference_update(nodes or tuple(self._cut))
        for watch in tuple(self._watches):
            watch.pump()

    def forget(self, node: str) -> None:
        """Cut off a node that is no more, for good."""
        self._cut.add(node)
        for watch in [watch for watch in self._watches if watch.backend.node == node]:
            watch.end()

    def lose_server(self) -> None:
        """Replace the server by an empty one of a new epoch, as a restart without a data directory does."""
        self._epochs += 1
        revision = self.server.table.revision
        self.server.table = Table(f"epoch-{self._epochs}")
        self.server.table.raise_revision(revision)
        self.server.settle()
        for watch in tuple(self._watches):
            watch.pump()

    def later(self, delay: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Do something in the network's own time, whatever happens to the node that asked for it."""
        return asyncio.get_running_loop().call_later(delay, action, context=self._context)

    def leg(self) -> float:
        """Draw how long one leg takes."""
        return self._rng.uniform(0, self.faults.delay)

    async def call(self, node: str, operation: Callable[[Table], T]) -> T:
        """Carry a request to the server, do it there, and carry the answer back, if all goes well."""
        faults, rng = self.faults, self._rng
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        there = self.leg()
        if faults.late and rng.random() < faults.late:
            there += rng.uniform(0, faults.lateness)
        lost = bool(faults.drop_request) and rng.random() < faults.drop_request
        unanswered = bool(faults.drop_reply) and rng.random() < faults.drop_reply

        def arrive() -> None:
            if not self.reaches(node):
                return
            try:
                result = operation(self.server.table)
            except RendezvousSessionError as error:
                refusal: Exception = error
                self.later(self.leg(), lambda: reply(lambda: refuse(refusal)))
            else:
                self.server.settle()
                self.later(self.leg(), lambda: reply(lambda: answer.set_result(result)))

        def reply(give: Callable[[], None]) -> None:
            if self.reaches(node) and not unanswered and not answer.done():
                give()

        def give_up() -> None:
            refuse(RendezvousConnectionError(f"node {node}: the simulated network lost a request or its reply"))

        def refuse(error: Exception) -> None:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # It counts as seen, even if whoever asked is no more.

        if self.reaches(node) and not lost:
            self.later(there, arrive)
        timer = self.later(CALL_TIMEOUT, give_up)
        try:
            return await answer
        finally:
            timer.cancel()


class SimulatedBackend(Backend):
    """One node's view of the server, through the network.

    Args:
        network: What lies between.
        node: Whose it is.
        run_id: Which run.
        max_writes: A small number makes formations go in batches.
    """

    name = "simulated"
    max_bytes = 1024 * 1024

    def __init__(self, network: Network, node: str, run_id: str, max_writes: int = 1024) -> None:
        super().__init__(run_id)
        self.network = network
        self.node = node
        self.max_writes = max_writes
        self.heard_at = clock.now()

    async def _get(self, key: str) -> Entry | None:
        return await self._call(lambda table: table.get(key))

    async def _list(self, name: str) -> Listing:
        return await self._call(lambda table: table.list(name))

    async def _commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        return await self._call(lambda table: table.commit(writes, when))

    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch:
        return _SimulatedWatch(self, names, after)

    async def open_session(self, ttl: float) -> Session:
        sent_at = clock.lease_now()
        id = await self._call(lambda table: table.open_session(ttl, clock.now()))
        return _SimulatedSession(id, ttl, sent_at, self)

    async def _begin(
        self,
        ttl: float,
        patience: Patience,
        writes: tuple[Write, ...],
        when: tuple[Condition, ...],
        watch: Watch | None,
    ) -> tuple[Session, Commit | None]:
        sent_at = clock.lease_now()

        def begin(table: Table) -> tuple[str, Commit]:
            id = table.open_session(ttl, clock.now())
            return id, table.commit(owned(writes, id), when)

        with answer_within(*patience):
            id, commit = await self._call(begin)
        return _SimulatedSession(id, ttl, sent_at, self), commit

    async def end_session(self, session: str) -> None:
        await self._call(lambda table: table.end_session(session))

    async def aclose(self) -> None:
        for watch in [watch for watch in self.network._watches if watch.backend is self]:
            await watch.aclose()

    async def _call(self, operation: Callable[[Table], T]) -> T:
        result = await self.network.call(self.node, operation)
        self.heard_at = clock.now()
        return result


class _SimulatedSession(Session):
    def __init__(self, id: str, ttl: float, sent_at: float, backend: SimulatedBackend) -> None:
        super().__init__(id, ttl, sent_at)
        self._backend = backend

    async def _refresh(self) -> None:
        if not await self._backend._call(lambda table: table.keep_alive(self.id, clock.now())):
            self.lost.set()
            raise RendezvousSessionError(f"session {self.id} has ended")

    async def aclose(self) -> None:
        await self._backend.end_session(self.id)


class _SimulatedWatch(Watch):
    """At most one listing is under way to the node; what changes meanwhile goes with the next one."""

    def __init__(self, backend: SimulatedBackend, names: tuple[str, ...], after: Token | None) -> None:
        super().__init__(after)
        self.backend = backend
        self._names = names
        self._under_way = False
        self._inbox: Listing | None = None
        self._delivered = anyio.Event()
        self._ended = False
        backend.network.server.fanout.add(names, self.pump)
        backend.network._watches[self] = None

    @property
    def current_at(self) -> float:
        return self.backend.heard_at

    def pump(self) -> None:
        """Send what has changed, if anything has, nothing is under way and the node can be reached."""
        network = self.backend.network
        if self._under_way or self._inbox is not None or self._ended or not network.reaches(self.backend.node):
            return
        listing = network.server.table.changes(self._names, self._position)
        if listing is not None:
            self._under_way = True
            network.later(network.leg(), lambda: self._deliver(listing))

    def _deliver(self, listing: Listing) -> None:
        self._under_way = False
        if self.backend.network.reaches(self.backend.node):
            self._inbox = listing
            self.backend.heard_at = clock.now()
            self._delivered.set()

    async def _next(self) -> Listing:
        while not self._ended:
            if self._inbox is not None:
                listing, self._inbox = self._inbox, None
                return listing
            self.pump()
            self._delivered = anyio.Event()
            await self._delivered.wait()
        raise StopAsyncIteration

    def end(self) -> None:
        """Send no more."""
        self._ended = True
        network = self.backend.network
        network.server.fanout.remove(self._names, self.pump)
        network._watches.pop(self, None)

    async def aclose(self) -> None:
        self.end()
        self._delivered.set()
