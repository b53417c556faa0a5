"""What ``rdzv demo`` plays: the steps, each of them verified, and the picture of it.

Nothing here is made up: a node's line in the table comes from what its process printed and from the server's record of
its session, and times are taken when the news arrives in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import anyio

from rendezvous_async import clock
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import DEFAULT_NAMESPACE
from rendezvous_async.backends.tcp import TcpServer, serve
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.terminal import Screen, Terminal, table
from rendezvous_async.control import close_run, read_status
from rendezvous_async.core.rules import Change
from rendezvous_async.core.state import node_key
from rendezvous_async.notice import Notice

__all__ = ["Stage", "start_node"]

RUN_ID = "demo"
REDRAW = 0.2
REASON = "the demo is over"


async def start_node(endpoint: str, options: dict[str, Any]) -> asyncio.subprocess.Process:
    """Start a node in a process of its own, whose lines of JSON can be read.

    It has a process group of its own, so that Ctrl+C reaches this process alone, which then ends it; and it ends when
    its standard input does, should this process be killed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rendezvous_async.cli.demo_node",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        process_group=0,
    )
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps([endpoint, options])}\n".encode())
    return process


class Actor:
    """A node's process, and what is known of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "starting"
        self.round = 0
        self.rank: int | None = None
        self.size = 0
        self.hands = 0
        self.up_at = 0.0
        self.killed = False
        self.news: list[dict[str, Any]] = []
        self.process: asyncio.subprocess.Process | None = None

    def holds(self, size: int, after: int) -> bool:
        """Whether it holds a world of this size, of a round after that one."""
        return self.state == "member" and self.size == size and self.round > after

    async def end(self) -> None:
        """Make sure that its process is gone."""
        if self.process is not None:
            if self.process.returncode is None:
                self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """Kill its process with SIGKILL."""
        assert self.process is not None
        self.state, self.killed = "killed", True
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)  # Popen.kill() could reap it before asyncio does.

    def hear(self, news: dict[str, Any]) -> str:
        """Take what its process has printed; returns it in words."""
        self.news.append(news)
        match news["event"]:
            case "joined":
                self.state = "member"
                self.round, self.rank, self.size = news["round"], news["rank"], news["size"]
                self.hands = news["hands"]
                return f"is in round {self.round} as rank {self.rank} of {self.size}"
            case "changed":
                self.state = "joining"
                return f"sees its world change: {news['change'].replace('_', ' ')}"
            case "closed":
                self.state = "closed"
                return f"learns that {news['by']} closed the run: {news['reason']}"
            case _:
                self.state, self.up_at = "joining", clock.now()
                return "is up, and joins"


class Stage:
    """The play: its actors, its timeline, and the checks between its steps."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._actors: dict[str, Actor] = {}
        self._timeline: list[str] = []
        self._news = Notice()
        self._server: TcpServer | None = None

    async def play(self) -> None:
        """Play all of it.

        Raises:
            Failure: Something did not happen as it should.
        """
        self._start = clock.now()
        async with serve("127.0.0.1", 0) as self._server, anyio.create_task_group() as self._group:
            try:
                if self._terminal.live and not self._terminal.quiet:
                    with Screen(self._terminal) as screen:
                        self._group.start_soon(self._draw, screen)
                        await self._steps()
                        screen.draw(self._picture())
                        self._group.cancel_scope.cancel()
                else:
                    await self._steps()
            finally:
                with anyio.CancelScope(shield=True):
                    for actor in self._actors.values():
                        await actor.end()
        self._terminal.print("The demo is done: every step happened, in real processes, and was checked.")

    async def _steps(self) -> None:
        assert self._server is not None
        self._note("", f"a server listens at {self._server.endpoint}")

        for name in ("alice", "bob", "carol"):
            await self._enter(name)
        took = await self._world("alice", "bob", "carol")
        self._headline(f"a world of 3 has formed, {took * 1000:.0f} ms after the third node arrived", "last call 0.5 s")

        before = self._ranks()
        await self._enter("dave")
        took = await self._world("alice", "bob", "carol", "dave")
        self._expect(
            all(self._actors[name].rank == rank for name, rank in before.items()), "the three kept their ranks"
        )
        self._headline(
            f"a world of 4 has formed, {took * 1000:.0f} ms after dave arrived", "the others kept their ranks"
        )

        async with open_backend(self._server.endpoint, run_id=RUN_ID, is_host="false") as backend:
            victim = (await read_status(backend)).coordinator
            self._expect(victim in self._actors, f"one of the nodes coordinates, not {victim!r}")
            await self._kill(str(victim))
            left = [name for name in self._actors if name != victim]
            await self._world(*left)

            await close_run(backend, REASON, "the demo")
            closed_at = clock.now()
            await self._until(lambda: all(self._actors[name].state == "closed" for name in left))
            self._expect(all(self._actors[n].news[-1]["reason"] == REASON for n in left), "everybody was told why")
            took = clock.now() - closed_at
            self._headline(f"the run is closed, and everybody knew after {took * 1000:.0f} ms", "closed is final")
        codes = {name: await self._exit_code(name) for name in left}
        self._expect(not any(codes.values()), f"the nodes that are left ended well: {codes}")

    async def _kill(self, victim: str) -> None:
        """Kill a node, and see what the others do."""
        actor = self._actors[victim]
        assert actor.process is not None
        last_round = actor.round
        actor.kill()
        killed_at = clock.now()
        self._note(victim, f"is killed with SIGKILL (pid {actor.process.pid}); it was the coordinator")
        self._expect(await self._exit_code(victim) == -signal.SIGKILL, f"{victim} died of SIGKILL")
        left = [other for other in self._actors.values() if other is not actor]
        lost = {"event": "changed", "change": Change.MEMBER_LOST.value, "round": last_round}
        await self._until(lambda: all(lost in other.news for other in left))
        told = clock.now() - killed_at
        await self._until(lambda: all(other.holds(3, last_round) for other in left))
        formed = clock.now() - killed_at
        self._headline(
            f"a world of 3 goes on: all knew {told:.2f} s after the kill, and met again {formed - told:.2f} s later",
            "1 s is the grace for a connection that breaks",
        )

    # Checks

    async def _world(self, *names: str) -> float:
        """Wait until exactly these hold one world; returns the seconds since the last of them came up."""
        actors = [self._actors[name] for name in names]
        round_before = max(actor.round for actor in actors) if len(names) > 3 else 0
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
            raise Failure(Exit.FAILED, f"the demo expected that {what}, and it is not so")

    # Actors

    async def _enter(self, name: str) -> None:
        """Start a node's process, and return when it is up."""
        assert self._server is not None
        actor = self._actors[name] = Actor(name)
        options = {"run_id": RUN_ID, "nodes": "3:4", "node": name, "is_host": "false"}
        actor.process = await start_node(self._server.endpoint, options)
        self._note(name, f"starts as process {actor.process.pid}")
        self._group.start_soon(self._listen, actor)

    async def _listen(self, actor: Actor) -> None:
        assert actor.process is not None
        assert actor.process.stdout is not None
        async for line in actor.process.stdout:
            self._note(actor.name, actor.hear(json.loads(line)))
            self._news.fire()
        code = await actor.process.wait()
        if not actor.killed and actor.state != "closed":  # What it printed before it was killed may come after.
            raise Failure(Exit.FAILED, f"node {actor.name} ended with exit code {code}, which nobody asked for")

    async def _exit_code(self, name: str) -> int:
        process = self._actors[name].process
        assert process is not None
        return await process.wait()

    # The picture

    def _note(self, who: str, what: str) -> None:
        at = clock.now() - self._start
        line = f"{at:6.2f} s  {who:6}{what}"
        self._timeline.append(line)
        if not self._terminal.live and not self._terminal.quiet:
            self._terminal.print(line)

    def _headline(self, what: str, why: str) -> None:
        line = f"{clock.now() - self._start:6.2f} s  => {what} ({why})"
        self._timeline.append(self._terminal.paint(line, "green", "bold"))
        if not self._terminal.live and not self._terminal.quiet:
            self._terminal.print(line)

    async def _draw(self, screen: Screen) -> None:
        while True:
            screen.draw(self._picture())
            with anyio.move_on_after(REDRAW):
                await self._news.wait()

    def _picture(self) -> list[str]:
        rows = [
            (
                actor.name,
                actor.state,
                "-" if actor.rank is None or actor.state in ("killed", "closed") else str(actor.rank),
                str(actor.round or "-"),
                self._sign_of_life(actor),
            )
            for actor in self._actors.values()
        ]
        header, *lines = table(("NODE", "STATE", "RANK", "ROUND", "LAST SIGN OF LIFE"), rows)
        colours = {"member": "green", "killed": "red", "closed": "dim"}
        painted = [
            self._terminal.paint(line, colours.get(actor.state, "yellow"))
            for line, actor in zip(lines, self._actors.values(), strict=True)
        ]
        return [self._terminal.paint(header, "bold"), *painted, "", *self._timeline[-24:], ""]

    def _sign_of_life(self, actor: Actor) -> str:
        assert self._server is not None
        entry = self._server.table.get(f"{DEFAULT_NAMESPACE}/{RUN_ID}/{node_key(actor.name)}")
        at = None if entry is None or entry.session is None else self._server.table.refreshed_at(entry.session)
        return "no session" if at is None else f"{max(0.0, clock.now() - at):.1f} s ago"
