"""The in-memory backend: for tasks of one event loop, for tests, and for the simulator.

``memory://name`` is one store per name and event loop. It has the same table, sessions and watches as the TCP server,
without the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from weakref import WeakKeyDictionary

from anyio.lowlevel import checkpoint

from rendezvous_async.aio import clock
from rendezvous_async.aio.clock import Alarm
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.driver import Driver, Granted, Opening, Sink, Subscription, closed_error
from rendezvous_async.backends.options import BackendOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.schemes import Scheme
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.table.fanout import Fanout
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write, owned
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.settings import Endpoint

__all__ = ["SCHEME", "MemoryDriver", "MemoryServer", "open_memory"]


class MemoryServer:
    """A table with a clock: ends expired sessions and wakes watchers.

    Args:
        epoch: The epoch of its table.
    """

    def __init__(self, epoch: str = "memory") -> None:
        self.table: Table = Table(epoch)
        self.fanout: Fanout[Callable[[], None]] = Fanout()
        self._alarm = Alarm(self._expire, copy_context())  # The server's context, not that of the client that sets it.

    def __repr__(self) -> str:
        return f"<MemoryServer {self.table!r}>"

    def settle(self) -> None:
        """Wake the watchers of what has changed, and set the timer for the next session that may expire."""
        changed = self.table.take_changed()
        if changed:
            for wake in self.fanout.concerned(changed):
                wake()
        due = self.table.next_due()
        if due is None:
            self._alarm.cancel()
        else:
            self._alarm.set_by(due)

    def _expire(self, now: float, _: float) -> None:
        for session in self.table.due(now):
            self.table.end_session(session, self.table.why_due(session))
        self.settle()


class MemoryDriver(Driver):
    """One client of a ``MemoryServer``."""

    name = "memory"
    max_writes = 1024
    max_bytes = 8 * 1024 * 1024

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self._subscriptions: dict[MemorySubscription, None] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryDriver of {self.server.table.epoch}>"

    async def get(self, key: str) -> Entry | None:
        return (await self.table()).get(key)

    async def list(self, name: str) -> Listing:
        return (await self.table()).list(name)

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        commit = (await self.table()).commit(writes, when)
        self.server.settle()
        return commit

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        table = await self.table()  # No await from here on: session and commit are one step.
        id = table.open_session(opening.ttl, clock.now())
        session = Session(self, id, opening.ttl, clock.lease_now())
        commit = table.commit(owned(opening.writes, id), opening.when)
        self.server.settle()
        return Granted(session, commit)

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        if not (await self.table()).keep_alive(session, clock.now()):
            raise RendezvousSessionError(f"session {session} has ended")

    async def end_session(self, session: str, cause: str = "") -> None:
        (await self.table()).end_session(session, cause)
        self.server.settle()

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        if self._closed:
            raise closed_error(self.name)
        subscription = MemorySubscription(self.server, names, after, sink, self._subscriptions)
        subscription.look()
        return subscription

    async def aclose(self) -> None:
        self._closed = True
        for subscription in tuple(self._subscriptions):
            subscription.fail(closed_error(self.name))

    async def table(self) -> Table:
        """Return the table, after a checkpoint: a call can be cancelled before it touches the table, not after."""
        if self._closed:
            raise closed_error(self.name)
        await checkpoint()
        return self.server.table


class MemorySubscription:
    """Pushes the changes under its names, once for each turn of the loop in which there were any.

    Args:
        server: The server with the table.
        names: The watched names.
        after: Where to start.
        sink: Receives the listings, in the context of the caller: the simulator may have frozen that node.
        others: The open subscriptions of this client; it adds and removes itself.
    """

    def __init__(
        self,
        server: MemoryServer,
        names: tuple[str, ...],
        after: Token | None,
        sink: Sink,
        others: dict[MemorySubscription, None],
    ) -> None:
        self._server = server
        self._names = names
        self._position = after
        self._sink = sink
        self._others = others
        self._context = copy_context()
        self._is_due = False
        server.fanout.add(names, self.look)
        others[self] = None

    @property
    def current_at(self) -> float:
        return clock.now()

    def look(self) -> None:
        """Schedule a push."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.push, context=self._context)

    def push(self) -> None:
        """Push what has changed since the last push."""
        self._is_due = False
        if self not in self._others:
            return
        listing = self._server.table.changes(self._names, self._position)
        if listing is not None:
            self._position = listing.token
            self._sink.take(listing)

    def fail(self, error: Exception) -> None:
        self.close()
        self._sink.fail(error)

    def close(self) -> None:
        self._others.pop(self, None)
        self._server.fanout.remove(self._names, self.look)


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryServer]] = WeakKeyDictionary()


def memory_server(name: str) -> MemoryServer:
    """Return this event loop's server of that name; create it if there is none."""
    servers = _servers.setdefault(asyncio.get_running_loop(), {})
    return servers.setdefault(name, MemoryServer(f"memory-{name}"))


async def open_memory(endpoint: Endpoint, options: BackendOptions, outage: Outage) -> MemoryDriver:
    """Open ``memory://name``."""
    return MemoryDriver(memory_server(endpoint.path))


SCHEME = Scheme(BackendOptions, open_memory)
