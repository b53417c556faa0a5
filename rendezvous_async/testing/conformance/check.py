"""The building blocks of checks: a run of its own, assertions with messages, and a reader of watches.

A check is an async function whose docstring is the guarantee. Any failure is raised as one AssertionError that names
the check and the guarantee. Nothing here depends on pytest.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias, TypeVar

import anyio

from rendezvous_async.backends.base import Backend, Condition, Delete, Listing, Put, Session
from rendezvous_async.backends.names import covers

__all__ = [
    "TTL",
    "WAIT",
    "Check",
    "Make",
    "Pushed",
    "Trial",
    "WatchReader",
    "expect",
    "expect_error",
    "expect_same",
    "increment",
    "keeping",
]

Make: TypeAlias = Callable[[str], AbstractAsyncContextManager[Backend]]

WAIT = 30.0
"""Upper bound in seconds of every wait, far more than a healthy backend needs."""
TTL = 1.0
"""The requested TTL of sessions, in seconds; a backend may grant more."""
E = TypeVar("E", bound=Exception)


class Trial:
    """The runs of one check; ``client()`` opens another client of its own run, or of a given one."""

    def __init__(self, make: Make, name: str) -> None:
        self._make = make
        self.id = f"conformance {name} {uuid.uuid4().hex[:8]}"
        self._used: dict[str, None] = {}

    def client(self, run_id: str | None = None) -> AbstractAsyncContextManager[Backend]:
        run_id = self.id if run_id is None else run_id
        self._used[run_id] = None
        return self._make(run_id)

    async def clear(self) -> None:
        """Delete everything that the check has left in the store."""
        for run_id in self._used:
            async with self._make(run_id) as backend:
                await backend.commit(Delete(""))


class Check:
    """A guarantee of a backend and its test; ``await check(make)`` raises AssertionError if it is broken."""

    def __init__(self, body: Callable[[Trial], Awaitable[None]]) -> None:
        self._body = body
        self.__name__ = body.__name__
        self.__doc__ = body.__doc__

    def __repr__(self) -> str:
        return f"<Check {self.__name__}>"

    @property
    def promise(self) -> str:
        """The guarantee that is checked."""
        return (self.__doc__ or "").strip()

    async def __call__(self, make: Make) -> None:
        run = Trial(make, self.__name__)
        try:
            await self._body(run)
            await run.clear()
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            seen = str(cause) if isinstance(cause, AssertionError) else f"{type(cause).__name__}: {cause}"
            raise AssertionError(f"{self.__name__} failed: {self.promise}\n  {seen}") from error


def expect(kept: bool, otherwise: str) -> None:
    """Raise AssertionError with what was seen, unless a guarantee was kept."""
    if not kept:
        raise AssertionError(otherwise)


def expect_same(seen: object, wanted: object, what: str) -> None:
    """Raise AssertionError if two values differ."""
    expect(seen == wanted, f"{what}: expected {wanted!r:.400}, got {seen!r:.400}")


async def expect_error(kind: type[E], call: Callable[[], Awaitable[object]], what: str) -> E:
    """Return the error of this type that ``call`` raises; raise AssertionError if it raises none."""
    try:
        with anyio.fail_after(WAIT):
            seen = await call()
    except kind as error:
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, got {seen!r:.400}")


class WatchReader:
    """Reads a watch, checks each listing, and maintains the view that they add up to.

    Args:
        watch: The watch to read.
        *names: The watched names.
        patience: Seconds to wait for a listing.

    Attributes:
        view: The value of each key, as of ``listings[-1]``.
        listings: All delivered listings.
    """

    def __init__(self, watch: AsyncIterator[Listing], *names: str, patience: float = WAIT) -> None:
        self.view: dict[str, bytes] = {}
        self.listings: list[Listing] = []
        self._patience = patience
        self._watch = watch
        self._names = names
        self._revisions: dict[str, int] = {}

    async def read(self, what: str = "a listing") -> Listing:
        """Return the next listing, and apply it to the view."""
        try:
            with anyio.fail_after(self._patience):
                listing = await anext(self._watch)
        except TimeoutError:
            raise AssertionError(f"waited {self._patience:g} s for {what}; the view is {self.view!r:.400}") from None
        self._take(listing)
        return listing

    async def until_value(self, key: str, value: bytes) -> None:
        """Read until ``key`` has this value."""
        await self.until(f"{value!r} at {key!r}", lambda view: view.get(key) == value)

    async def until(self, what: str, holds: Callable[[dict[str, bytes]], bool]) -> dict[str, bytes]:
        """Read until the view is as wanted, and return it."""
        while not (self.listings and holds(self.view)):
            await self.read(what)
        return self.view

    def _take(self, listing: Listing) -> None:
        if self.listings:
            last = self.listings[-1].token
            expect_same(listing.token.epoch, last.epoch, "the epoch of a watch on one store")
            expect(listing.revision >= last.revision, f"a watch went back from {last} to {listing.token}")
        expect(listing.complete or bool(listing.entries), "a watch delivered a listing of changes with nothing in it")
        keys = [entry.key for entry in listing.entries]
        expect_same(keys, sorted(set(keys)), "the keys of a listing, each once and in order")
        for entry in listing.entries:
            key, revision = entry.key, entry.token.revision
            expect(any(name == "" or covers(name, key) for name in self._names), f"{self._names} delivered {key!r}")
            expect(revision <= listing.revision, f"{key!r} has {entry.token}, newer than its listing's {listing.token}")
            before = self._revisions.get(key, -1)
            if entry.value is None:
                expect(revision >= before, f"{key!r} went back from revision {before} to {revision}")
                self.view.pop(key, None)
            else:
                expect(revision > before, f"{key!r} at revision {revision} came after {before}")
                self.view[key] = entry.value
            self._revisions[key] = revision
        self.listings.append(listing)


class Pushed(AsyncIterator[Listing]):
    """A sink that queues listings until they are read."""

    def __init__(self) -> None:
        self._listings: deque[Listing] = deque()
        self._error: Exception | None = None
        self._woken = anyio.Event()

    def take(self, listing: Listing) -> None:
        self._listings.append(listing)
        self._woken.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._woken.set()

    def __len__(self) -> int:
        return len(self._listings)

    async def __anext__(self) -> Listing:
        while not self._listings:
            if self._error is not None:
                raise self._error
            self._woken = anyio.Event()
            await self._woken.wait()
        return self._listings.popleft()


async def increment(backend: Backend, key: str) -> None:
    """Increment the number at ``key``; retry with the entry that a lost commit returns."""
    entry = await backend.get(key)
    while True:
        number = 0 if entry is None or entry.value is None else int(entry.value)
        token = None if entry is None else entry.token
        commit = await backend.commit(Put(key, b"%d" % (number + 1)), when=[Condition(key, token)])
        if commit.won:
            return
        entry = commit.entry(key)


async def keeping(session: Session, wait: Callable[[], Awaitable[object]]) -> None:
    """Keep a session alive for as long as ``wait()`` takes."""

    async def keep_alive() -> None:
        while True:
            await session.keep_alive()
            await anyio.sleep(session.ttl / 4)

    async with anyio.create_task_group() as group:
        group.start_soon(keep_alive)
        await wait()
        group.cancel_scope.cancel()
