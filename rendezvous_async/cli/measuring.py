"""The measurements of ``rdzv bench``. All times are on this process's monotonic clock."""

from __future__ import annotations

import secrets
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

import anyio
import msgspec

from rendezvous_async.admin import close_run, purge_run
from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Backend
from rendezvous_async.cli.actors import Actor
from rendezvous_async.cli.demo_node import TIMEOUTS
from rendezvous_async.cli.endpoints import endpoint_of, open_run, shown
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.core.rules import Change
from rendezvous_async.node.connect import connect
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.texts import counted

__all__ = ["Figures", "measure"]

PROBE_EVERY = 0.01
WAIT = 120.0
OPENING_AT_ONCE = 64


class Figures(msgspec.Struct, frozen=True):
    """The results.

    Attributes:
        connect_ms: To open a connection for each node.
        form_ms: From the first join until the last node has its world, in the first round.
        reform_ms: The same in later rounds, when all nodes return to the barrier: the median.
        keep_alives_per_s: Answered keep-alives while the server was probed.
        answer_ms: The server's response time during that: the median.
        answer_worst_ms: The worst of them.
        detect_first_ms: From the SIGKILL of a node's process until the first other node knew.
        detect_last_ms: The same until the last one knew.
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
            f"keep-alives   {self.keep_alives_per_s:.1f} per s answered; a read meanwhile takes "
            f"{self.answer_ms:.2f} ms (median), {self.answer_worst_ms:.2f} ms (worst)\n"
            f"detection     of a killed process: {self.detect_first_ms:.0f} ms first, {self.detect_last_ms:.0f} ms last"
        )


async def measure(options: Namespace, terminal: Terminal) -> Figures:
    """Measure everything, and remove the runs."""
    steps, all_nodes = options.rounds + 4, counted(options.nodes, "node")
    with terminal.progress(steps) as advance, anyio.move_on_after(WAIT + options.seconds) as scope:
        name = f"rdzv-bench-{secrets.token_hex(4)}"
        advance(0, f"opening {counted(options.nodes, 'connection')} to {shown(options)}")
        # The world is full at N, so no last call is part of the times.
        async with _Crowd.meet(options, name, options.nodes) as crowd:
            times = []
            for number in range(options.rounds):
                advance(number + 1, f"round {number + 1}: {all_nodes} at the barrier")
                began = clock.now()
                await crowd.join()
                times.append(clock.now() - began)
            advance(steps - 3, f"keeping {all_nodes} alive for {options.seconds:g} s")
            answers, keep_alives = await crowd.probe(options.seconds)
            connect_seconds = crowd.connect_seconds
        # One place is for the node that is killed.
        advance(steps - 2, f"opening {counted(options.nodes, 'connection')} again")
        async with _Crowd.meet(options, f"{name}-kill", options.nodes + 1) as crowd:
            advance(steps - 1, "a node in its own process joins and is killed")
            detected = await _kill_one(options, crowd)
        advance(steps, "done")
    if scope.cancelled_caught:
        raise Failure(
            Exit.TIMED_OUT, f"the benchmark did not finish within {WAIT + options.seconds:g} s; try fewer --nodes"
        )
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
    """The nodes in this process, each on its own connection, and one more connection to control their run."""

    def __init__(self, control: Backend) -> None:
        self.control = control
        self.members: list[Rendezvous] = []
        self.connect_seconds = 0.0
        self._keep_alives = 0

    @classmethod
    @asynccontextmanager
    async def meet(cls, options: Namespace, run_id: str, room: int) -> AsyncIterator[_Crowd]:
        """Connect all nodes to a run of at most ``room`` nodes; remove the run at the end."""
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
        """Join with all nodes and return their worlds."""
        await together([member.join for member in self.members])
        return [world for member in self.members if (world := member.world) is not None]

    async def probe(self, seconds: float) -> tuple[list[float], float]:
        """Read a key repeatedly; return the response times, and the answered keep-alives per second."""
        answers = []
        began, before = clock.now(), self._keep_alives
        with anyio.move_on_after(seconds):
            while True:
                asked = clock.now()
                await self.control.get("state")
                answers.append(clock.now() - asked)
                await anyio.sleep(PROBE_EVERY)
        if not answers:
            raise Failure(Exit.TIMED_OUT, f"the server answered no read within {seconds:g} s; is it overloaded?")
        return answers, (self._keep_alives - before) / (clock.now() - began)

    def _count_keep_alives(self, backend: Backend) -> None:
        """Count every answered keep-alive of this backend's sessions."""
        keep_alive = backend.driver.keep_alive

        async def counted(session: str, deadline: Deadline | None = None) -> None:
            await keep_alive(session, deadline)
            self._keep_alives += 1

        setattr(backend.driver, "keep_alive", counted)  # noqa: B010


async def _kill_one(options: Namespace, crowd: _Crowd) -> list[float]:
    """Add a node in its own process, kill it, and return the seconds until each other node knew."""
    settings = crowd.members[0].settings
    endpoint = endpoint_of(options)
    connection: dict[str, Any] = dict(endpoint.options)
    if endpoint.scheme == "tcp":
        connection["is_host"] = "false"
    nodes = f"{settings.min_nodes}:{settings.max_nodes}"
    victim = Actor("victim")
    try:
        await victim.start(str(endpoint), run_id=crowd.control.run_id, nodes=nodes, **connection)
        worlds = await crowd.join()
        while worlds[0].size != settings.max_nodes:
            await worlds[0].changed()
            worlds = await crowd.join()
        knew: list[float] = []

        async def wait(world: World) -> None:
            change = await world.changed()
            if change is not Change.MEMBER_LOST:
                raise Failure(Exit.FAILED, f"a node saw {change} instead of the loss of the killed node")
            knew.append(clock.now())

        if victim.process.returncode is not None or any(world.change is not None for world in worlds):
            raise Failure(Exit.FAILED, "the world changed before the kill, so detection was not measured; try again")
        killed_at = clock.now()
        victim.kill()
        await together([partial(wait, world) for world in worlds])
        return [at - killed_at for at in knew]
    finally:
        with anyio.CancelScope(shield=True):
            await victim.end()


async def together(calls: Sequence[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    """Run all calls concurrently, and wait for them."""
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
