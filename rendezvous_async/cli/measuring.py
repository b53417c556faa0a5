"""What ``rdzv bench`` measures, and how. Times are by this process's own monotonic clock."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

import anyio
import msgspec

from rendezvous_async import clock
from rendezvous_async.backends.base import Backend, Commit, Session
from rendezvous_async.cli.demo_node import TIMEOUTS
from rendezvous_async.cli.endpoints import endpoint_of, open_run, shown
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.stage import start_node
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.clock import Patience
from rendezvous_async.connecting import connect
from rendezvous_async.control import close_run, purge_run
from rendezvous_async.core.rules import Change
from rendezvous_async.handler import Rendezvous
from rendezvous_async.texts import counted
from rendezvous_async.world import World

__all__ = ["Figures", "measure"]

PROBE_EVERY = 0.01
WAIT = 120.0
OPENING_AT_ONCE = 64


class Figures(msgspec.Struct, frozen=True):
    """What was measured; milliseconds, medians where there are many.

    Attributes:
        connect_ms: To open a connection for every node.
        form_ms: From the first join to the last node in its world, for the first round.
        reform_ms: The same when all return to the barrier, for the rounds after.
        keep_alives_per_s: How many were answered, counted while the server was probed.
        answer_ms: How long the server took to answer then: the median.
        answer_worst_ms: The worst of them.
        detect_first_ms: From SIGKILL of a node's process until the first other node knew.
        detect_last_ms: Until the last one knew.
    """

    endpoint: str
    nodes: int
    connect_ms: float
    form_ms: float
    reform_ms: float | None
    keep_alives_per_s: float
    answer_ms: float
    answer_worst_ms: float
    detect_first_ms: float
    detect_last_ms: float

    def __str__(self) -> str:
        reform = "not measured" if self.reform_ms is None else f"{self.reform_ms:.1f} ms"
        return (
            f"{counted(self.nodes, 'node')} at {self.endpoint}\n"
            f"connections   {self.connect_ms:.1f} ms for all\n"
            f"formation     {self.form_ms:.1f} ms, again {reform} (median)\n"
            f"keep-alives   {self.keep_alives_per_s:.1f} per s were answered; meanwhile an answer takes "
            f"{self.answer_ms:.2f} ms (median), {self.answer_worst_ms:.2f} ms (worst)\n"
            f"detection     of a killed process: {self.detect_first_ms:.0f} ms first, {self.detect_last_ms:.0f} ms last"
        )


async def measure(options: Namespace, terminal: Terminal) -> Figures:
    """Measure everything, and leave nothing behind."""
    with anyio.move_on_after(WAIT + options.seconds) as scope:
        name = f"rdzv-bench-{secrets.token_hex(4)}"
        steps, all_nodes = options.rounds + 4, counted(options.nodes, "node")
        terminal.progress(0, steps, f"opening {counted(options.nodes, 'connection')} to {shown(options)}")
        # Exactly N: the round forms when the last one is there, with no last call to be taken off the times.
        async with _Crowd.meet(options, name, options.nodes) as crowd:
            times = []
            for number in range(options.rounds):
                terminal.progress(number + 1, steps, f"round {number + 1}: {all_nodes} at the barrier")
                began = clock.now()
                await crowd.join()
                times.append(clock.now() - began)
            terminal.progress(steps - 3, steps, f"keeping {all_nodes} alive for {options.seconds:g} s")
            answers, keep_alives = await crowd.probe(options.seconds)
            connect_seconds = crowd.connect_seconds
        # One place more, for the node that is killed.
        terminal.progress(steps - 2, steps, f"opening {counted(options.nodes, 'connection')} again")
        async with _Crowd.meet(options, f"{name}-kill", options.nodes + 1) as crowd:
            terminal.progress(steps - 1, steps, "a node in a process of its own joins, and is killed")
            detected = await _kill_one(options, crowd)
        terminal.progress(steps, steps, "done")
    if scope.cancelled_caught:
        raise Failure(Exit.TIMED_OUT, f"the benchmark was not done after {WAIT + options.seconds:g} s")
    return Figures(
        endpoint=str(endpoint_of(options)),
        nodes=options.nodes,
        connect_ms=_ms(connect_seconds),
        form_ms=_ms(times[0]),
        reform_ms=_ms(median(times[1:])) if times[1:] else None,
        keep_alives_per_s=round(keep_alives, 1),
        answer_ms=_ms(median(answers)),
        answer_worst_ms=_ms(max(answers)),
        detect_first_ms=_ms(min(detected)),
        detect_last_ms=_ms(max(detected)),
    )


class _Crowd:
    """Nodes of this process, each with a connection of its own, and one more connection to look at their run."""

    def __init__(self, control: Backend) -> None:
        self.control = control
        self.members: list[Rendezvous] = []
        self.connect_seconds = 0.0
        self._keep_alives = 0

    @classmethod
    @asynccontextmanager
    async def meet(cls, options: Namespace, run_id: str, room: int) -> AsyncIterator[_Crowd]:
        """Connect all nodes of a run that has room for so many; the run is removed at the end."""
        async with AsyncExitStack() as stack:
            crowd = cls(await stack.enter_async_context(open_run(options, run_id)))
            began = clock.now()
            backends: list[Backend] = []
            limiter = anyio.CapacityLimiter(OPENING_AT_ONCE)

            async def enter() -> None:
                async with limiter:
                    backends.append(await stack.enter_async_context(open_run(options, run_id)))

            await together([enter] * options.nodes)
            crowd.connect_seconds = clock.now() - began
            for number, backend in enumerate(backends):
                crowd._count_keep_alives(backend)
                member = connect(
                    backend=backend,
                    run_id=run_id,
                    nodes=(options.nodes, room),
                    node=f"bench-{number}",
                    timeouts=TIMEOUTS,
                )
                crowd.members.append(await stack.enter_async_context(member))
            try:
                yield crowd
            finally:
                with anyio.move_on_after(options.timeout, shield=True):
                    await close_run(crowd.control, "the benchmark is over", "rdzv bench")
                    await together([member.leave for member in crowd.members])
                    await purge_run(crowd.control)

    async def join(self) -> list[World]:
        """Let all join, and return their worlds."""
        await together([member.join for member in self.members])
        return [world for member in self.members if (world := member.world) is not None]

    async def probe(self, seconds: float) -> tuple[list[float], float]:
        """Ask again and again; returns how long each answer took, and the keep-alives that were answered per second."""
        answers = []
        began, before = clock.now(), self._keep_alives
        with anyio.move_on_after(seconds):
            while True:
                asked = clock.now()
                await self.control.get("state")
                answers.append(clock.now() - asked)
                await anyio.sleep(PROBE_EVERY)
        if not answers:
            raise Failure(Exit.TIMED_OUT, f"the server did not answer within {seconds:g} s while nodes were kept alive")
        return answers, (self._keep_alives - before) / (clock.now() - began)

    def _count_keep_alives(self, backend: Backend) -> None:
        """Count every keep-alive of this backend's sessions that is answered."""
        begin = backend.begin

        async def begin_counted(*args: Any, **options: Any) -> tuple[Session, Commit | None]:
            session, commit = await begin(*args, **options)
            keep_alive = session.keep_alive

            async def counted(patience: Patience | None = None) -> None:
                await keep_alive(patience)
                self._keep_alives += 1

            setattr(session, "keep_alive", counted)  # noqa: B010
            return session, commit

        setattr(backend, "begin", begin_counted)  # noqa: B010


async def _kill_one(options: Namespace, crowd: _Crowd) -> list[float]:
    """Add a node in a process of its own, kill it, and return how long each other node took to know."""
    settings = crowd.members[0].settings
    endpoint = endpoint_of(options)
    connection: dict[str, Any] = dict(endpoint.options)
    if endpoint.scheme == "tcp":
        connection["is_host"] = "false"
    nodes = f"{settings.min_nodes}:{settings.max_nodes}"
    who = {"run_id": crowd.control.run_id, "nodes": nodes, "node": "victim"}
    victim = await start_node(str(endpoint), {**who, **connection})
    try:
        worlds = await crowd.join()
        while worlds[0].size != settings.max_nodes:
            await worlds[0].changed()
            worlds = await crowd.join()
        knew: list[float] = []

        async def wait(world: World) -> None:
            change = await world.changed()
            if change is not Change.MEMBER_LOST:
                raise Failure(Exit.FAILED, f"a node saw {change} where it should have seen the loss of the killed one")
            knew.append(clock.now())

        if victim.returncode is not None or any(world.change is not None for world in worlds):
            raise Failure(Exit.FAILED, "the world changed before the node was killed, so its time would mean nothing")
        killed_at = clock.now()
        os.kill(victim.pid, signal.SIGKILL)
        await together([partial(wait, world) for world in worlds])
        return [at - killed_at for at in knew]
    finally:
        with anyio.CancelScope(shield=True):
            await _end(victim)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
    await process.communicate()


async def together(calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Do all at once, and wait for all."""

    async def call(one: Callable[[], Awaitable[object]]) -> None:
        await one()

    async with anyio.create_task_group() as group:
        for one in calls:
            group.start_soon(call, one)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
