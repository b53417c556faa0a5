"""The stand-in for the wire: one backend whose calls are delayed, lost, applied without an answer, late, cut off.

Every node has its own ``SimulatedDriver``. A call travels to the server and back, and each leg may be delayed or lost.
A call without an answer raises ``RendezvousConnectionError`` after ``CALL_TIMEOUT``, though the server may have applied
it, or may still do so. That is harsher than TCP, which retries a commit under its id: here the library itself must
handle every unknown outcome. Watches lag, and resume after a partition.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import copy_context
from typing import Any, TypeVar

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.driver import Driver, Granted, Opening, Sink, Subscription, closed_error
from rendezvous_async.backends.memory import MemoryServer
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write, owned
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.testing.commits import RunCommits
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.loop.clock import virtual_loop
from rendezvous_async.testing.nodes import RUN, SimulatedNode
from rendezvous_async.testing.wire import Wire

__all__ = ["Faults", "Network", "SimulatedDriver"]

CALL_TIMEOUT = 0.5
T = TypeVar("T")


class Network:
    """The server, and the network between it and the nodes.

    Args:
        rng: Where everything random comes from.
        faults: The faults.
        max_writes: The limit of writes per commit; with a small one, rounds form in batches.
        take: Called with each commit to the run.

    Attributes:
        server: The server of all nodes; ``lose_server()`` replaces its data.
        faults: The current faults; may be changed at any time.
    """

    def __init__(
        self, rng: random.Random, faults: Faults, max_writes: int = 1024, take: Callable[[Listing], None] | None = None
    ) -> None:
        self.server: MemoryServer = MemoryServer("epoch-1")
        self.faults = faults
        self._max_writes = max_writes
        self._commits = RunCommits(self.open("", RUN).prefix, take or (lambda _: None))
        self._commits.follow(self.server.table)
        self._rng = rng
        self._cut: set[str] = set()
        self._killed: set[str] = set()
        self._watches: dict[SimulatedSubscription, None] = {}
        self._context = copy_context()
        self._epochs = 1

    @property
    def wire(self) -> Wire:
        """Raise RuntimeError: there are no connections."""
        raise RuntimeError(
            "the stand-in loses and delays calls; it has no connections: use Cluster(..., network='wire')"
        )

    def reaches(self, node: str) -> bool:
        """Return whether a node and the server can reach each other."""
        return node not in self._cut

    def cut(self, nodes: Iterable[SimulatedNode]) -> None:
        """Cut the processes of these nodes off from the server."""
        self._cut.update(node.process for node in nodes)

    def heal(self) -> None:
        """Reconnect all processes that live."""
        self._cut &= self._killed
        for watch in tuple(self._watches):
            watch.pump()

    def settings(self, node: SimulatedNode) -> dict[str, Any]:
        """Return what ``connect`` needs to know of the backend."""
        return {"backend": self.open(node.process, RUN)}

    def start(
        self, node: SimulatedNode, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]:
        """Start a node's process."""
        return virtual_loop().start(node.process, function, *args, name=node.process)

    def kill(self, node: SimulatedNode) -> None:
        """Kill a node's process, and close its watches."""
        virtual_loop().kill(node.process)
        self._killed.add(node.process)
        self._cut.add(node.process)
        for watch in [watch for watch in self._watches if watch.driver.node == node.process]:
            watch.close()

    async def visit(self, node: SimulatedNode, function: Callable[[Backend], Awaitable[T]]) -> T:
        """Return what a function returns for a backend of a node."""
        return await function(self.open(node.process, RUN))

    def open(self, node: str, run_id: str) -> Backend:
        """Return a backend for one process."""
        return Backend(SimulatedDriver(self, node, self._max_writes), run_id)

    def is_served(self, nodes: Iterable[SimulatedNode]) -> bool:
        """Return True: the server is always there."""
        return True

    def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def watch(self, watch: SimulatedSubscription) -> None:
        """Start pushing changes to a watch."""
        self._watches[watch] = None
        watch.pump()

    def unwatch(self, watch: SimulatedSubscription) -> None:
        """Undo ``watch``."""
        self._watches.pop(watch, None)

    def lose_server(self) -> None:
        """Replace the server's data by an empty table in a new epoch, like a restart without a data directory."""
        self._epochs += 1
        revision = self.server.table.revision
        self.server.table = Table(f"epoch-{self._epochs}")
        self.server.table.raise_revision(revision)
        self._commits.follow(self.server.table)
        self.server.settle()
        for watch in tuple(self._watches):
            watch.pump()

    def later(self, delay: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Schedule an action in the network's own context, even if the calling node is frozen or killed."""
        return asyncio.get_running_loop().call_later(delay, action, context=self._context)

    def leg(self) -> float:
        """Draw the delay of one leg."""
        return self._rng.uniform(0, self.faults.delay)

    async def call(self, node: str, operation: Callable[[Table], T]) -> T:
        """Carry a request to the server, apply it, and carry the answer back, subject to the faults."""
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
                answer.exception()  # Retrieved, as the caller may be gone.

        if self.reaches(node) and not lost:
            self.later(there, arrive)
        timer = self.later(CALL_TIMEOUT, give_up)
        try:
            return await answer
        finally:
            timer.cancel()


class SimulatedDriver(Driver):
    """One node's client of the server, through the network.

    Args:
        network: The network.
        node: The process of the node.
        max_writes: The limit of writes per commit; with a small one, rounds form in batches.
    """

    name = "simulated"
    max_bytes = 1024 * 1024

    def __init__(self, network: Network, node: str, max_writes: int = 1024) -> None:
        self.network = network
        self.node = node
        self.max_writes = max_writes
        self.received_at: float = clock.now()
        self._subscriptions: dict[SimulatedSubscription, None] = {}

    def __repr__(self) -> str:
        return f"<SimulatedDriver of {self.node}>"

    async def get(self, key: str) -> Entry | None:
        return await self._call(lambda table: table.get(key))

    async def list(self, name: str) -> Listing:
        return await self._call(lambda table: table.list(name))

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        return await self._call(lambda table: table.commit(writes, when))

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        sent_at = clock.lease_now()

        def begin(table: Table) -> tuple[str, Commit]:
            id = table.open_session(opening.ttl, clock.now())
            return id, table.commit(owned(opening.writes, id), opening.when)

        id, commit = await self._call(begin)
        return Granted(Session(self, id, opening.ttl, sent_at), commit)

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        if not await self._call(lambda table: table.keep_alive(session, clock.now())):
            raise RendezvousSessionError(f"session {session} has ended")

    async def end_session(self, session: str, cause: str = "") -> None:
        await self._call(lambda table: table.end_session(session, cause))

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        subscription = SimulatedSubscription(self, names, after, sink)
        self._subscriptions[subscription] = None
        self.network.watch(subscription)
        return subscription

    async def aclose(self) -> None:
        for subscription in tuple(self._subscriptions):
            subscription.fail(closed_error(self.name))

    def forget(self, subscription: SimulatedSubscription) -> None:
        """Forget a closed watch."""
        self._subscriptions.pop(subscription, None)
        self.network.unwatch(subscription)

    async def _call(self, operation: Callable[[Table], T]) -> T:
        result = await self.network.call(self.node, operation)
        self.received_at = clock.now()
        return result


class SimulatedSubscription:
    """A watch through the network: at most one listing is in flight; later changes go with the next one."""

    def __init__(self, driver: SimulatedDriver, names: tuple[str, ...], after: Token | None, sink: Sink) -> None:
        self.driver = driver
        self._names = names
        self._position = after
        self._sink = sink
        self._under_way = False
        self._ended = False
        self._context = copy_context()  # The node's, which may be frozen when a listing arrives.
        driver.network.server.fanout.add(names, self.pump)

    @property
    def current_at(self) -> float:
        return self.driver.received_at

    def pump(self) -> None:
        """Send the changes, if there are any, nothing is in flight and the node can be reached."""
        network = self.driver.network
        if self._under_way or self._ended or not network.reaches(self.driver.node):
            return
        listing = network.server.table.changes(self._names, self._position)
        if listing is not None:
            self._under_way = True
            network.later(network.leg(), lambda: self._arrive(listing))

    def _arrive(self, listing: Listing) -> None:
        if self.driver.network.reaches(self.driver.node):
            asyncio.get_running_loop().call_soon(self._push, listing, context=self._context)
        else:
            self._under_way = False

    def _push(self, listing: Listing) -> None:
        self._under_way = False
        if not self._ended:
            self.driver.received_at = clock.now()
            self._position = listing.token
            self._sink.take(listing)
            self.pump()

    def fail(self, error: Exception) -> None:
        """End the watch with an error."""
        self.close()
        self._sink.fail(error)

    def close(self) -> None:
        self._ended = True
        self.driver.network.server.fanout.remove(self._names, self.pump)
        self.driver.forget(self)
