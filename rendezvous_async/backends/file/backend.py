"""The file backend as tasks see it: every call is a job for the directory's thread, awaited with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

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
)
from rendezvous_async.backends.file.hub import Hub
from rendezvous_async.backends.file.ledger import Change
from rendezvous_async.backends.file.mail import Job
from rendezvous_async.backends.file.registry import release_hub
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.settings import check_seconds

__all__ = ["FileBackend"]

T = TypeVar("T")


class FileBackend(Backend):
    """One run's view of a directory.

    Args:
        hub: This process's thread for the directory; closing the backend lets go of it.
        timeout: Seconds after which a call that got no answer fails: the file system hangs, or a stopped process holds
            the lock.
    """

    name = "file"
    max_writes = 1024
    max_bytes = 8 * 1024 * 1024

    def __init__(self, hub: Hub, run_id: str, namespace: str = DEFAULT_NAMESPACE, timeout: float = 10.0) -> None:
        super().__init__(run_id, namespace)
        self.hub = hub
        self._timeout = timeout
        self._waiting: set[asyncio.Future[Any]] = set()
        self._watches: set[_FileWatch] = set()
        self._sessions: set[_FileSession] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<FileBackend {self.hub.directory.path} run={self.run_id!r}>"

    async def _get(self, key: str) -> Entry | None:
        return await self._call(lambda _: self.hub.ledger.get(key))

    async def _list(self, name: str) -> Listing:
        return await self._call(lambda _: self.hub.ledger.list(name))

    async def _commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        return await self._call(lambda change: self.hub.ledger.commit(change, writes, when), locked=True)

    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch:
        return _FileWatch(self, names, after)

    async def open_session(self, ttl: float) -> Session:
        check_seconds("ttl", ttl)
        sent_at = clock.lease_now()
        id = await self._call(lambda change: self.hub.ledger.open_session(change, ttl), locked=True)
        session = _FileSession(id, ttl, sent_at, self)
        self._sessions.add(session)
        self.hub.own(id, (asyncio.get_running_loop(), session.lost.set))
        return session

    async def end_session(self, session: str) -> None:
        await self._call(lambda change: self.hub.ledger.end_session(change, session), locked=True)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(closed_error(self.name))
        for watch in tuple(self._watches):
            watch.wake()
        for session in self._sessions:
            session.abandon()
        with anyio.move_on_after(self._timeout):
            await release_hub(self.hub)

    async def ready(self) -> None:
        """Wait until the directory is in use; raises what stands in the way."""
        await self._call(lambda _: None)

    async def _call(self, work: Callable[[Any], T], *, locked: bool = False) -> T:
        """Have the thread do ``work`` and return its result; ``work`` gets a Change if ``locked``, else None."""
        await checkpoint()
        if self._closed:
            raise closed_error(self.name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = Job(work, future, locked=locked)
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
                    f"process that was stopped holds {self.hub.directory.path}/lock (see: lslocks)"
                )
            )


class _FileSession(Session):
    def __init__(self, id: str, ttl: float, sent_at: float, backend: FileBackend) -> None:
        super().__init__(id, ttl, sent_at)
        self._backend = backend

    async def _refresh(self) -> None:
        def beat(change: Change | None) -> None:
            self._backend.hub.ledger.keep_alive(change, self.id, self.ttl)

        try:
            await self._backend._call(beat)
        except RendezvousSessionError:
            self.lost.set()
            self._backend._sessions.discard(self)
            raise

    async def aclose(self) -> None:
        hub = self._backend.hub
        hub.disown(self.id)
        await self._backend.end_session(self.id)
        self._backend._sessions.discard(self)

    def abandon(self) -> None:
        """Give the session up without ending it: its backend is closed."""
        hub = self._backend.hub
        hub.disown(self.id)
        hub.inbox.put(Job(lambda _: hub.ledger.lives.let_go(self.id), locked=False))


class _FileWatch(Watch):
    def __init__(self, backend: FileBackend, names: tuple[str, ...], after: Token | None) -> None:
        super().__init__(after)
        self._backend = backend
        self._names = names
        self._woken = anyio.Event()
        self._ended = False
        self._call = (asyncio.get_running_loop(), self.wake)
        backend._watches.add(self)
        backend.hub.add_watcher(names, self._call)

    @property
    def current_at(self) -> float:
        return clock.now() - (time.monotonic() - self._backend.hub.checked_at)

    def wake(self) -> None:
        self._woken.set()

    async def _next(self) -> Listing:
        hub = self._backend.hub
        while True:
            self._woken = anyio.Event()
            self._check()
            try:
                listing = await self._backend._call(lambda _: hub.ledger.changes(self._names, self._position))
            except RendezvousConnectionError:
                self._check()
                # What may mend by itself is waited out: current_at stands still meanwhile.
                with anyio.move_on_after(hub.options.check):
                    await self._woken.wait()
                continue
            if listing is not None:
                return listing
            await self._woken.wait()

    def _check(self) -> None:
        if self._ended:
            raise StopAsyncIteration
        if self._backend._closed:
            raise closed_error(self._backend.name)
        if self._backend.hub.failure is not None:
            raise self._backend.hub.failure

    async def aclose(self) -> None:
        self._ended = True
        self._backend.hub.remove_watcher(self._names, self._call)
        self._backend._watches.discard(self)
        self.wake()
