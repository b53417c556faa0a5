"""The driver of a directory: every call is a job for the directory's thread, with a timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.driver import Driver, Granted, Opening, Sink, Subscription, closed_error
from rendezvous_async.backends.file.hub import Hub
from rendezvous_async.backends.file.mail import ThreadJob
from rendezvous_async.backends.file.registry import release_hub
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError

__all__ = ["FileDriver"]

T = TypeVar("T")


class FileDriver(Driver):
    """A client of a directory.

    Args:
        hub: This process's thread for the directory; released when the driver is closed.
        timeout: Seconds until a call without an answer fails: the file system hangs, or a stopped process holds the
            lock.
    """

    name = "file"
    max_writes = 1024
    max_bytes = 8 * 1024 * 1024

    def __init__(self, hub: Hub, timeout: float = 10.0) -> None:
        self.hub = hub
        self._timeout = timeout
        self._waiting: set[asyncio.Future[Any]] = set()
        self._subscriptions: dict[FileSubscription, None] = {}
        self._sessions: dict[str, float] = {}  # Ids with their TTLs.
        self._closed = False

    def __repr__(self) -> str:
        return f"<FileDriver {self.hub.directory.path}>"

    async def get(self, key: str) -> Entry | None:
        return await self._call(lambda _: self.hub.ledger.get(key))

    async def list(self, name: str) -> Listing:
        return await self._call(lambda _: self.hub.ledger.list(name))

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        return await self._call(lambda change: self.hub.ledger.commit(change, writes, when), locked=True)

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        sent_at = clock.lease_now()
        id = await self._call(lambda change: self.hub.ledger.open_session(change, opening.ttl), locked=True)
        session = Session(self, id, opening.ttl, sent_at)
        self._sessions[id] = opening.ttl
        self.hub.own(id, (asyncio.get_running_loop(), session.lost.set))
        return Granted(session)

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        ttl = self._sessions.get(session, 0.0)
        try:
            await self._call(lambda change: self.hub.ledger.keep_alive(change, session, ttl))
        except RendezvousSessionError:
            self._sessions.pop(session, None)
            raise

    async def end_session(self, session: str, cause: str = "") -> None:
        if session in self._sessions:
            self.hub.disown(session)
        await self._call(lambda change: self.hub.ledger.end_session(change, session, cause), locked=True)
        self._sessions.pop(session, None)

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        if self._closed:
            raise closed_error(self.name)
        subscription = FileSubscription(self.hub, names, after, sink, self._subscriptions)
        subscription.look()
        return subscription

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(closed_error(self.name))
        for subscription in tuple(self._subscriptions):
            subscription.fail(closed_error(self.name))
        for session in self._sessions:
            self._abandon(session)
        with anyio.move_on_after(self._timeout):
            await release_hub(self.hub)

    def _abandon(self, session: str) -> None:
        """Abandon a session without ending it."""
        hub = self.hub
        hub.disown(session)
        hub.inbox.put(ThreadJob(lambda _: hub.ledger.lives.let_go(session), locked=False))

    async def ready(self) -> None:
        """Wait until the directory is in use; raise the error if it cannot be."""
        await self._call(lambda _: None)

    async def _call(self, work: Callable[[Any], T], *, locked: bool = False) -> T:
        """Run ``work`` on the thread and return its result; it gets a LedgerChange if ``locked``, else None."""
        await checkpoint()
        if self._closed:
            raise closed_error(self.name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = ThreadJob(work, future, locked=locked)
        timer = loop.call_later(self._timeout, self._give_up, future)
        self._waiting.add(future)
        self.hub.inbox.put(job)
        try:
            return await future
        finally:
            job.abandoned = True
            timer.cancel()
            self._waiting.discard(future)

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(
                RendezvousConnectionError(
                    f"no answer from {self.hub.directory.path} in {self._timeout:g} s: the file system hangs, or a "
                    f"stopped process holds {self.hub.directory.path}/lock (see: lslocks)"
                )
            )


class FileSubscription:
    """Asks the thread for changes whenever there may be some, and pushes the answer.

    Args:
        hub: The thread.
        names: The watched names.
        after: Where to start.
        sink: Receives the listings.
        others: The open subscriptions of this driver; it adds and removes itself.
    """

    def __init__(
        self,
        hub: Hub,
        names: tuple[str, ...],
        after: Token | None,
        sink: Sink,
        others: dict[FileSubscription, None],
    ) -> None:
        self._hub = hub
        self._names = names
        self._position = after
        self._sink = sink
        self._others = others
        self._is_asking = False
        self._is_due = False
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.Handle | None = None
        self._call = (self._loop, self.look)
        others[self] = None
        hub.add_watcher(names, self._call)

    @property
    def current_at(self) -> float:
        return clock.now() - (time.monotonic() - self._hub.checked_at)

    def look(self) -> None:
        """Ask for changes; if a question is pending, ask once more after its answer."""
        if self not in self._others:
            return
        if self._hub.failure is not None:
            self.fail(self._hub.failure)
            return
        self._is_due = self._is_asking
        if not self._is_asking:
            self._is_asking = True
            answer: asyncio.Future[Listing | None] = self._loop.create_future()
            answer.add_done_callback(self._answered)
            self._hub.inbox.put(ThreadJob(self._read, answer, locked=False))

    def fail(self, error: Exception) -> None:
        """End the watch with an error."""
        self.close()
        self._sink.fail(error)

    def close(self) -> None:
        if self in self._others:
            del self._others[self]
            self._hub.remove_watcher(self._names, self._call)
        if self._again is not None:
            self._again.cancel()

    def _read(self, _: object) -> Listing | None:
        return self._hub.ledger.changes(self._names, self._position)

    def _answered(self, answer: asyncio.Future[Listing | None]) -> None:
        self._is_asking = False
        error = answer.exception()
        if self not in self._others:
            return
        if isinstance(error, RendezvousConnectionError) and self._hub.failure is None:
            # May be temporary, so retry; current_at does not advance meanwhile.
            self._again = self._loop.call_later(self._hub.options.check, self.look)
        elif isinstance(error, Exception):
            self.fail(self._hub.failure or error)
        else:
            listing = answer.result()
            if listing is not None:
                self._position = listing.token
                self._sink.take(listing)
            if self._is_due:
                self.look()
