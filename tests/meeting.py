"""A place for nodes to meet in a test: one memory server, virtual time, and a look at what they leave behind.

``in_virtual_time`` turns an async test into a plain one that is run in virtual time, once in asyncio's own order of
callbacks and once in an order that a seed decides: what holds must hold in both.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, ParamSpec, TypeVar

import anyio

import rendezvous_async as rdzv
from rendezvous_async.backends.base import Commit, Condition, Entry, Listing, Session, Token, Watch, Write
from rendezvous_async.backends.memory import MemoryBackend, MemoryServer, _MemoryWatch
from rendezvous_async.backends.table import Table
from rendezvous_async.control import read_head
from rendezvous_async.core.state import Head
from rendezvous_async.handler import Rendezvous
from rendezvous_async.testing import run
from rendezvous_async.world import World

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B", bound=MemoryBackend)
RUN = "job"
SEEDS = (None, 1)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in virtual time, in several orders of what happens at once."""

    @functools.wraps(test)
    def in_each_order(*args: P.args, **kwargs: P.kwargs) -> None:
        for seed in SEEDS:
            run(bounded, functools.partial(test, *args, **kwargs), seed=seed)

    return in_each_order


async def bounded(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's body, for at most some hours of virtual time: keep-alives would let it wait for ever."""
    with anyio.fail_after(10_000):
        await body()


class Line(MemoryBackend):
    """A backend at the end of a line that can be cut: calls get no answer, and watches go silent, until it is whole."""

    def __init__(self, server: MemoryServer, run_id: str) -> None:
        super().__init__(server, run_id)
        self._whole = anyio.Event()
        self._whole.set()

    def cut(self) -> None:
        self._whole = anyio.Event()

    def mend(self) -> None:
        self._whole.set()

    async def whole(self) -> None:
        await self._whole.wait()

    async def _table(self) -> Table:
        await self.whole()
        return await super()._table()

    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch:
        return _LineWatch(self, names, after)


class _LineWatch(_MemoryWatch):
    _backend: Line

    async def _next(self) -> Listing:
        await super()._next()
        await self._backend.whole()
        return await super()._next()


class Slow(MemoryBackend):
    """A backend far away: what it is asked to do happens halfway between the call and the answer."""

    async def _get(self, key: str) -> Entry | None:
        return await self._slowly(super()._get(key))

    async def _list(self, name: str) -> Listing:
        return await self._slowly(super()._list(name))

    async def _commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        return await self._slowly(super()._commit(writes, when))

    async def open_session(self, ttl: float) -> Session:
        return await self._slowly(super().open_session(ttl))

    async def _begin(self, *args: Any) -> tuple[Session, Commit | None]:
        return await self._slowly(super()._begin(*args))

    async def end_session(self, session: str) -> None:
        await self._slowly(super().end_session(session))

    async def _slowly(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            await anyio.sleep(0.01)
        except BaseException:
            call.close()
            raise
        result = await call
        await anyio.sleep(0.01)
        return result


def session_of(rendezvous: Rendezvous) -> Session:
    """Return the session that a node has now."""
    assert rendezvous._owner is not None
    assert rendezvous._owner.membership is not None
    return rendezvous._owner.membership.session


class Joining:
    """A join that goes on in the background."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.scope = anyio.CancelScope()
        self.world: World | None = None
        self.error: Exception | None = None
        self.ended_at: float | None = None
        self._rendezvous = rendezvous

    async def run(self) -> None:
        with self.scope:
            try:
                self.world = await self._rendezvous.join()
            except Exception as error:
                self.error = error
            self.ended_at = now()

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


class Meeting:
    """A memory server and the nodes that a test sends there; at its end they leave, and nothing may be left behind.

    Args:
        max_writes: Per commit, for every backend of this meeting.
        max_bytes: The same for bytes.
        slow: Whether its backends are far away; a session whose opening was given up then ends by its TTL.
    """

    def __init__(self, max_writes: int | None = None, max_bytes: int | None = None, slow: bool = False) -> None:
        self.server = MemoryServer()
        self._slow = slow
        self._max_writes = max_writes
        self._max_bytes = max_bytes
        self._made = 0
        self._all: list[Rendezvous] = []
        self._nodes = AsyncExitStack()
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> Meeting:
        self._tasks_before = asyncio.all_tasks()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self._nodes.aclose()
        if kind is None:
            await self.expect_nothing_left()

    async def enter(self, name: str, nodes: str = "2:4", **options: Any) -> Rendezvous:
        """Return a node that has entered, and leaves at the end."""
        return await self._nodes.enter_async_context(self.node(name, nodes, **options))

    async def enter_all(self, names: str, nodes: str = "2:4", **options: Any) -> list[Rendezvous]:
        """Do the same for several nodes, one letter each."""
        return [await self.enter(name, nodes, **options) for name in names]

    def start(self, rendezvous: Rendezvous) -> Joining:
        """Let a node join in the background."""
        joining = Joining(rendezvous)
        self._group.start_soon(joining.run)
        return joining

    def backend(self) -> MemoryBackend:
        """Return a backend for one node."""
        return self._limited((Slow if self._slow else MemoryBackend)(self.server, RUN))

    def line(self) -> Line:
        """Return a backend that can be cut off."""
        return self._limited(Line(self.server, RUN))

    def _limited(self, backend: B) -> B:
        if self._max_writes is not None:
            backend.max_writes = self._max_writes
        if self._max_bytes is not None:
            backend.max_bytes = self._max_bytes
        return backend

    def node(
        self, name: str, nodes: str = "2:4", *, backend: MemoryBackend | None = None, **options: Any
    ) -> Rendezvous:
        """Return a node that has not entered yet; two with one name are two processes with one id."""
        self._made += 1
        defaults: dict[str, Any] = {"address": f"{name}.example", "rng": random.Random(f"{name} {self._made}")}
        rendezvous = rdzv.connect(
            run_id=RUN,
            nodes=nodes,
            node=name,
            backend=self.backend() if backend is None else backend,
            **defaults | options,
        )
        self._all.append(rendezvous)
        return rendezvous

    async def entry(self, key: str) -> Entry | None:
        return await self.backend().get(key)

    async def keys(self, name: str = "") -> list[str]:
        """Return the run's keys, or those under a name."""
        return [entry.key for entry in (await self.backend().list(name)).entries]

    async def head(self) -> Head:
        head = read_head(await self.entry("state"))
        assert head is not None
        return head

    def end_session_of(self, key: str) -> None:
        """Let the backend end the session that a key is bound to, as if its time were over."""
        table = self.server.table
        entry = table.get(self.backend().prefix + key)
        assert entry is not None
        assert entry.session is not None
        assert table.end_session(entry.session)
        self.server.settle()

    def forget_everything(self) -> None:
        """Let the backend start over with an empty table, as a server does that kept nothing on disk."""
        self.server.table = Table(f"{self.server.table.epoch}+")
        for wake in self.server.fanout.concerned([self.backend().prefix + key for key in ("state", "nodes/any")]):
            wake()

    async def expect_nothing_left(self) -> None:
        """No session, no record, no post, no watch, no timer, no task."""
        if self._slow and self.server.table.sessions:
            await anyio.sleep(5)
        assert self.server.table.sessions == 0
        assert await self.keys("nodes/") == []
        assert await self.entry("coordinator") is None
        assert len(self.server.fanout) == 0
        assert asyncio.all_tasks() == self._tasks_before
        for node in self._all:
            assert node._owner is None or node._owner.failure is None


def now() -> float:
    """Return the time, without the noise of adding floats."""
    return round(anyio.current_time(), 6)


async def together(*joins: Rendezvous) -> list[World]:
    """Let all of them join, and return their worlds in the same order."""
    worlds: dict[int, World] = {}

    async def join(number: int, rendezvous: Rendezvous) -> None:
        worlds[number] = await rendezvous.join()

    async with anyio.create_task_group() as group:
        for number, rendezvous in enumerate(joins):
            group.start_soon(join, number, rendezvous)
    return [worlds[number] for number in range(len(joins))]


async def until(holds: Callable[[], bool], within: float = 60.0) -> None:
    """Wait, in virtual time, until something holds."""
    with anyio.fail_after(within):
        while not holds():  # noqa: ASYNC110 - in virtual time a look costs nothing
            await anyio.sleep(0.01)


async def turns(count: int) -> None:
    """Let everything that is ready run, so many times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
