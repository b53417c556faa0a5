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
from rendezvous_async.admin import read_head
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import (
    Backend,
    Commit,
    Condition,
    Driver,
    Entry,
    Granted,
    Listing,
    Opening,
    Session,
    Sink,
    Subscription,
    Token,
    Write,
)
from rendezvous_async.backends.memory import MemoryDriver, MemoryServer, MemorySubscription
from rendezvous_async.backends.table.table import Table
from rendezvous_async.core.state import Head
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.testing import run

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=MemoryDriver)
RUN = "job"
PREFIX = f"rendezvous_async/{RUN}/"
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


class Line(MemoryDriver):
    """A client at the end of a line that can be cut: calls get no answer, and watches go silent, until it is whole."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self._whole = anyio.Event()
        self._whole.set()

    @property
    def is_cut(self) -> bool:
        return not self._whole.is_set()

    def cut(self) -> None:
        self._whole = anyio.Event()

    def mend(self) -> None:
        self._whole.set()
        for subscription in self._subscriptions:
            subscription.look()

    async def table(self) -> Table:
        await self._whole.wait()
        return await super().table()

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        subscription = super().watch(names, after, sink)
        assert isinstance(subscription, MemorySubscription)
        subscription.__class__ = _LineSubscription
        assert isinstance(subscription, _LineSubscription)
        subscription.line = self
        return subscription


class _LineSubscription(MemorySubscription):
    line: Line

    def push(self) -> None:
        if self.line.is_cut:
            self._is_due = False
        else:
            super().push()


class Slow(MemoryDriver):
    """A client far away: what it asks for happens halfway between the call and the answer."""

    async def get(self, key: str) -> Entry | None:
        return await self._slowly(super().get(key))

    async def list(self, name: str) -> Listing:
        return await self._slowly(super().list(name))

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        return await self._slowly(super().commit(writes, when, deadline))

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        return await self._slowly(super().open(opening, deadline))

    async def end_session(self, session: str, cause: str = "") -> None:
        await self._slowly(super().end_session(session, cause))

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
    assert rendezvous._supervisor is not None
    assert rendezvous._supervisor.membership is not None
    return rendezvous._supervisor.membership.session


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

    def backend(self) -> Backend:
        """Return a backend for one node."""
        return Backend(self._limited((Slow if self._slow else MemoryDriver)(self.server)), RUN)

    def line(self) -> Line:
        """Return a driver that can be cut off."""
        return self._limited(Line(self.server))

    def _limited(self, driver: D) -> D:
        if self._max_writes is not None:
            driver.max_writes = self._max_writes
        if self._max_bytes is not None:
            driver.max_bytes = self._max_bytes
        return driver

    def node(
        self, name: str, nodes: str = "2:4", *, backend: Backend | Driver | None = None, **options: Any
    ) -> Rendezvous:
        """Return a node that has not entered yet; two with one name are two processes with one id."""
        if isinstance(backend, Driver):
            backend = Backend(backend, RUN)
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
        entry = table.get(PREFIX + key)
        assert entry is not None
        assert entry.session is not None
        assert table.end_session(entry.session)
        self.server.settle()

    def forget_everything(self) -> None:
        """Let the backend start over with an empty table, as a server does that kept nothing on disk."""
        self.server.table = Table(f"{self.server.table.epoch}+")
        for wake in self.server.fanout.concerned([PREFIX + key for key in ("state", "nodes/any")]):
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
            assert node._supervisor is None or node._supervisor.failure is None


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
    """Let everything that is ready run, ``count`` times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
