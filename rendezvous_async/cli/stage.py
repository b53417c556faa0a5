"""The steps of ``rdzv demo``, each of them verified, and the live view.

Everything shown is observed: a node's row comes from what its process printed and from the server's record of its
session. Times are taken when the output arrives in this process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import anyio

from rendezvous_async.admin import close_run, read_status
from rendezvous_async.aio import clock
from rendezvous_async.aio.signal import Notice
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import DEFAULT_NAMESPACE
from rendezvous_async.backends.tcp import TcpServer, serve
from rendezvous_async.cli.actors import Actor
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.folding import fold
from rendezvous_async.cli.terminal import Terminal, lines, table
from rendezvous_async.core.rules import Change
from rendezvous_async.core.state import node_key
from rendezvous_async.texts import quoted

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Stage"]

RUN_ID = "demo"
NAMES = ("alice", "bob", "carol", "dave")
EMPTY_LINES = 5
"""The headline, the header of the table, two empty lines, and one for the cursor."""
LEAST_TIMELINE = 8
REDRAW = 0.2
REASON = "the demo is over"
STYLES = {"member": "green", "killed": "red", "closed": "dim"}


class Stage:
    """The demo: its actors, its timeline, and the checks between steps.

    Args:
        terminal: Where it is shown.
        nodes: How many nodes take part; the last one comes late.
    """

    def __init__(self, terminal: Terminal, nodes: int = 4) -> None:
        self._names = [*NAMES[:nodes], *(f"node-{number:02}" for number in range(len(NAMES), nodes))]
        self._terminal = terminal
        self._actors: dict[str, Actor] = {}
        self._timeline: list[str] = []
        self._summary = f"{len(self._names)} nodes, each in a process of its own, are about to meet"
        self._draw: Callable[[RenderableType], None] | None = None
        self._news = Notice()
        self._server: TcpServer | None = None

    async def play(self) -> None:
        """Run the demo.

        Raises:
            Failure: A step did not go as expected.
        """
        self._start = clock.now()
        screen = nullcontext() if self._terminal.quiet else self._terminal.screen()
        async with serve("127.0.0.1", 0) as self._server, anyio.create_task_group() as self._group:
            with screen as self._draw:
                if self._draw is not None:
                    self._group.start_soon(self._redraw, self._draw)
                try:
                    await self._steps()
                finally:
                    with anyio.CancelScope(shield=True):
                        for actor in self._actors.values():
                            await actor.end()
                    self._group.cancel_scope.cancel()
                if self._draw is not None:
                    self._draw(self._picture())
        self._terminal.print("The demo is done: every step ran in real processes and was verified.")

    async def _steps(self) -> None:
        assert self._server is not None
        self._note("", f"a server listens at {self._server.endpoint}")

        *early, late = self._names
        for name in early:
            await self._enter(name)
        took = await self._world(*early)
        self._headline(
            f"a world of {len(early)} formed {took * 1000:.0f} ms after the last node arrived", "last call 0.5 s"
        )

        before = self._ranks()
        await self._enter(late)
        took = await self._world(*early, late)
        self._expect(all(self._actors[name].rank == rank for name, rank in before.items()), "they kept their ranks")
        self._headline(
            f"a world of {len(self._names)} formed {took * 1000:.0f} ms after {late} arrived",
            "the others kept their ranks",
        )

        async with open_backend(self._server.endpoint, run_id=RUN_ID, is_host="false") as backend:
            victim = (await read_status(backend)).coordinator
            self._expect(victim in self._actors, f"one of the nodes coordinates, not {quoted(victim)}")
            await self._kill(str(victim))
            left = [name for name in self._actors if name != victim]
            await self._world(*left)

            await close_run(backend, REASON, "the demo")
            closed_at = clock.now()
            await self._until(lambda: all(self._actors[name].state == "closed" for name in left))
            self._expect(
                all(self._actors[n].news[-1]["reason"] == REASON for n in left), "all nodes learned the reason"
            )
            took = clock.now() - closed_at
            self._headline(f"the run is closed; all nodes knew after {took * 1000:.0f} ms", "closing is final")
        codes = {name: await self._exit_code(name) for name in left}
        self._expect(not any(codes.values()), f"the remaining nodes exited with 0: {codes}")

    async def _kill(self, victim: str) -> None:
        """Kill a node and watch the others re-form."""
        actor = self._actors[victim]
        last_round = actor.round
        actor.kill()
        killed_at = clock.now()
        self._note(victim, f"is killed with SIGKILL (pid {actor.process.pid}); it was the coordinator")
        self._expect(await self._exit_code(victim) == -signal.SIGKILL, f"{victim} died of SIGKILL")
        left = [other for other in self._actors.values() if other is not actor]
        lost = {"event": "changed", "change": Change.MEMBER_LOST.value, "round": last_round}
        await self._until(lambda: all(lost in other.news for other in left))
        told = clock.now() - killed_at
        await self._until(lambda: all(other.holds(len(left), last_round) for other in left))
        formed = clock.now() - killed_at
        self._headline(
            f"a world of {len(left)} continues: all nodes knew {told:.2f} s after the kill "
            f"and met {formed - told:.2f} s later",
            "a dropped connection has 1 s of grace",
        )

    # Checks

    async def _world(self, *names: str) -> float:
        """Wait until these nodes share one world; return the seconds since the last of them was up."""
        actors = [self._actors[name] for name in names]
        round_before = max(actor.round for actor in actors) if len(names) == len(self._names) else 0
        await self._until(lambda: all(actor.holds(len(names), round_before) for actor in actors))
        self._expect(len({actor.round for actor in actors}) == 1, "they are all in one round")
        self._expect(sorted(self._ranks(names).values()) == list(range(len(names))), "ranks are 0 to size - 1")
        self._expect(max(actor.hands for actor in actors) == len(names), "they share the round's store")
        return clock.now() - max(actor.up_at for actor in actors)

    def _ranks(self, names: Iterable[str] | None = None) -> dict[str, int]:
        chosen = self._actors if names is None else names
        return {name: rank for name in chosen if (rank := self._actors[name].rank) is not None}

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news.wait()

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise Failure(Exit.FAILED, f"the demo failed; expected: {what}")

    # Actors

    async def _enter(self, name: str) -> None:
        """Start a node's process and follow its output."""
        assert self._server is not None
        actor = self._actors[name] = Actor(name)
        most = len(self._names)
        await actor.start(self._server.endpoint, run_id=RUN_ID, nodes=f"{most - 1}:{most}", is_host="false")
        self._note(name, f"starts as process {actor.process.pid}")
        self._group.start_soon(self._listen, actor)

    async def _listen(self, actor: Actor) -> None:
        async for what in actor.tell():
            self._note(actor.name, what)
            self._news.fire()
        code = await actor.process.wait()
        if actor.state not in ("killed", "closed"):
            raise Failure(Exit.FAILED, f"node {actor.name} exited unexpectedly with code {code}")

    async def _exit_code(self, name: str) -> int:
        return await self._actors[name].process.wait()

    # The picture

    def _note(self, who: str, what: str) -> None:
        width = max(map(len, self._names)) + 1
        self._add(f"{who:{width}}{what}")

    def _headline(self, what: str, why: str) -> None:
        self._summary = f"{what} ({why})"
        self._add(f"=> {self._summary}")

    def _add(self, text: str) -> None:
        line = f"{clock.now() - self._start:6.2f} s  {text}"
        self._timeline.append(line)
        if self._draw is None and not self._terminal.quiet:
            self._terminal.print(line)

    async def _redraw(self, draw: Callable[[RenderableType], None]) -> None:
        while True:
            draw(self._picture())
            with anyio.move_on_after(REDRAW):
                await self._news.wait()

    def _picture(self) -> RenderableType:
        from rich.console import Group

        actors = self._actors.values()
        rows = [
            (actor.name, actor.state, actor.place, str(actor.round or "-"), self._last_keep_alive(actor))
            for actor in actors
        ]
        header = ("NODE", "STATE", "RANK", "ROUND", "LAST KEEP-ALIVE")
        space = self._terminal.height - EMPTY_LINES
        shown = fold(rows, max(1, space - LEAST_TIMELINE), healthy="member")
        timeline = lines(self._timeline[-max(1, space - len(shown)) :])
        timeline.highlight_regex("(?m)^.*=> .*$", "green bold")
        nodes = table(header, shown, [STYLES.get(row[1], "yellow") for row in shown])
        return Group(lines([self._summary], "bold"), "", nodes, "", timeline)

    def _last_keep_alive(self, actor: Actor) -> str:
        assert self._server is not None
        entry = self._server.table.get(f"{DEFAULT_NAMESPACE}/{RUN_ID}/{node_key(actor.name)}")
        at = None if entry is None or entry.session is None else self._server.table.refreshed_at(entry.session)
        return "no session" if at is None else f"{max(0.0, clock.now() - at):.1f} s ago"
