"""The backend in this process's memory: for tasks of one event loop, for tests, and for the simulator.

``memory://name`` means the same store for everybody in one event loop. It is a real backend: the same table, sessions
and watches as the TCP server has, without the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint

from rendezvous_async import clock
from rendezvous_async.backends.base import (
    DEFAULT_NAMESPACE,
    Backend,
    Commit,
    Condition,
    Entry,
    Listing,
    Session,
    Token,
    Watch,
    Write,
    closed_error,
    owned,
)
from rendezvous_async.backends.fanout import Fanout
from rendezvous_async.backends.table import Table
from rendezvous_async.clock import Alarm, Patience, answer_within
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.settings import Endpoint

__all__ = ["MemoryBackend", "MemoryServer", "open_memory"]


class MemoryServer:
    """A table with a clock: it ends sessions when their time is over, and wakes watchers.

    Args:
        epoch: Names its history; see ``Table``.
    """

    def __init__(self, epoch: str = "memory") -> None:
        self.table = Table(epoch)
        self.fanout: Fanout[Callable[[], None]] = Fanout()
        self._alarm = Alarm(self._expire, copy_context())  # It is nobody else's, whoever happens to call.

    def __repr__(self) -> str:
        return f"<MemoryServer {self.table!r}>"

    def settle(self) -> None:
        """Tell the watchers of what has changed, and set the timer for the next session that may end."""
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
            self.table.end_session(session)
        self.settle()


class MemoryBackend(Backend):
    """One run's view of a ``MemoryServer``."""

    name = "memory"
    max_writes = 1024
    max_bytes = 8 * 1024 * 1024

    def __init__(self, server: MemoryServer, run_id: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        super().__init__(run_id, namespace)
        self.server = server
        self._watches: set[_MemoryWatch] = set()
        self._closed = False

    async def _get(self, key: str) -> Entry | None:
        return (await self._table()).get(key)

    async def _list(self, name: str) -> Listing:
        return (await self._table()).list(name)

    async def _commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        commit = (await self._table()).commit(writes, when)
        self.server.settle()
        return commit

    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch:
        return _MemoryWatch(self, names, after)

    async def open_session(self, ttl: float) -> Session:
        return self._open(await self._table(), ttl)

    async def _begin(
        self,
        ttl: float,
        patience: Patience,
        writes: tuple[Write, ...],
        when: tuple[Condition, ...],
        watch: Watch | None,
    ) -> tuple[Session, Commit | None]:
        with answer_within(*patience):
            table = await self._table()
        session = self._open(table, ttl)  # There is no wait from here on: nobody sees the one without the other.
        commit = table.commit(owned(writes, session.id), when)
        self.server.settle()
        return session, commit

    def _open(self, table: Table, ttl: float) -> Session:
        session = _MemorySession(table.open_session(ttl, clock.now()), ttl, clock.lease_now(), self)
        self.server.settle()
        return session

    async def end_session(self, session: str) -> None:
        (await self._table()).end_session(session)
        self.server.settle()

    async def aclose(self) -> None:
        self._closed = True
        for watch in tuple(self._watches):
            watch.wake()

    async def _table(self) -> Table:
        """The one door to the table: a checkpoint, so that callers can be cancelled before and never after."""
        if self._closed:
            raise closed_error(self.name)
        await checkpoint()
        return self.server.table


class _MemorySession(Session):
    def __init__(self, id: str, ttl: float, sent_at: float, backend: MemoryBackend) -> None:
        super().__init__(id, ttl, sent_at)
        self._backend = backend

    async def _refresh(self) -> None:
        table = await self._backend._table()
        if not table.keep_alive(self.id, clock.now()):
            self.lost.set()
            raise RendezvousSessionError(f"session {self.id} has ended")

    async def aclose(self) -> None:
        await self._backend.end_session(self.id)


class _MemoryWatch(Watch):
    def __init__(self, backend: MemoryBackend, names: tuple[str, ...], after: Token | None) -> None:
        super().__init__(after)
        self._backend = backend
        self._names = names
        self._woken = anyio.Event()
        self._ended = False
        backend.server.fanout.add(names, self.wake)
        backend._watches.add(self)

    def wake(self) -> None:
        self._woken.set()

    async def _next(self) -> Listing:
        await checkpoint()
        while True:
            if self._ended:
                raise StopAsyncIteration
            if self._backend._closed:
                raise closed_error(self._backend.name)
            listing = self._backend.server.table.changes(self._names, self._position)
            if listing is not None:
                return listing
            self._woken = anyio.Event()
            await self._woken.wait()

    async def aclose(self) -> None:
        self._ended = True
        self._backend.server.fanout.remove(self._names, self.wake)
        self._backend._watches.discard(self)
        self.wake()


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryServer]] = WeakKeyDictionary()


def memory_server(name: str) -> MemoryServer:
    """Return this event loop's server of that name, the same one each time."""
    servers = _servers.setdefault(asyncio.get_running_loop(), {})
    return servers.setdefault(name, MemoryServer(f"memory-{name}"))


async def open_memory(endpoint: Endpoint, run_id: str, **options: object) -> Backend:
    """Open ``memory://name``."""
    return MemoryBackend(memory_server(endpoint.path), run_id, str(options.get("namespace", DEFAULT_NAMESPACE)))
