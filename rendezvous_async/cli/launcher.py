"""The elastic launcher: join, run the workers, and again when the world changes, until all have ended well.

How a job ends: a launcher whose workers have all ended well waits at a barrier. When all are there the run is closed as
done, and all exit 0. Whoever sees the world change before joins the next round, and its workers run again.

Whose fault a failure is: when a worker dies, the workers that talk to it often die of that. So of all launchers that
see a failure in a round, only the first one counts it, and not even that one if it turns out that a node was lost.
"""

from __future__ import annotations

import re
import signal
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread

from rendezvous_async.addresses import address_toward, get_free_port
from rendezvous_async.cli.endpoints import backend_of, endpoint_of, without_secrets
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.cli.workers import Workers
from rendezvous_async.clock import answer_within
from rendezvous_async.connecting import connect
from rendezvous_async.control import read_status
from rendezvous_async.core.rules import Change
from rendezvous_async.core.state import Member
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousFencedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rendezvous_async.handler import Rendezvous
from rendezvous_async.settings import Timeouts, check_id, parse_nodes
from rendezvous_async.world import World

__all__ = ["launch"]

DONE = "the job is done"
FAILED = "the job failed"
NPROC = "nproc"
"""The label that tells how many workers a node has."""
NUMBER = re.compile("[1-9][0-9]{0,5}")
FOREVER = 1e9
VERDICT = 2.0
"""Seconds after a failure in which the loss of a node counts as its cause."""
RETRY = 0.5
WORDS = {
    Change.EVICTED: "this node is out of it",
    Change.MEMBER_LOST: "a node was lost, or has left",
    Change.NODES_WAITING: "a node waits to join",
}
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


async def launch(options: Namespace, terminal: Terminal) -> int:
    """Launch what the options ask for; returns the exit code."""
    parse_nodes(options.nodes)
    check_id("--run-id", options.run_id)
    endpoint = endpoint_of(options)
    terminal.say(f"connecting to {endpoint}")
    backend = await backend_of(options, options.run_id, options.connect_timeout)
    try:
        with answer_within(options.connect_timeout, f"read the status of run {options.run_id!r}"):
            closed = (await read_status(backend)).closed
        if closed is not None:
            raise RendezvousClosedError(closed.reason, closed.by, run_id=options.run_id)
        rendezvous = connect(
            backend=backend,
            run_id=options.run_id,
            nodes=options.nodes,
            node=options.node,
            timeouts=Timeouts(join=options.join_timeout, last_call=options.last_call, regroup=options.regroup),
            keep_alive_interval=options.keep_alive,
            address=options.address or await anyio.to_thread.run_sync(address_toward, endpoint, backend.local_address),
            labels={NPROC: str(options.nproc_per_node)},
        )
        async with rendezvous, Workers.of(options.command, options.grace) as workers:
            return await _Launcher(options, terminal, rendezvous, workers).run()
    finally:
        with anyio.CancelScope(shield=True):
            await backend.aclose()


class _Launcher:
    def __init__(self, options: Namespace, terminal: Terminal, rendezvous: Rendezvous, workers: Workers) -> None:
        self._options = options
        self._terminal = terminal
        self._rendezvous = rendezvous
        self._workers = workers
        self._failures = 0
        self._ended_by: signal.Signals | None = None

    async def run(self) -> int:
        """Go from round to round until the job has ended; returns the exit code."""
        code = 0
        async with anyio.create_task_group() as self._group:
            with anyio.CancelScope() as scope:
                await self._group.start(self._pass_signals_on, scope)
                code = await self._rounds()
            with anyio.CancelScope(shield=True):
                await self._workers.stop()
            self._group.cancel_scope.cancel()
        return code if self._ended_by is None else 128 + self._ended_by

    async def _rounds(self) -> int:
        while True:
            try:
                world = await self._join()
            except RendezvousGracefulExitError as error:
                self._terminal.say(f"not needed: {error}")
                return Exit.OK
            except RendezvousClosedError as closed:
                if closed.reason.startswith(FAILED):
                    raise Failure(Exit.FAILED, str(closed)) from None
                if closed.reason != DONE:
                    raise
                self._terminal.say(str(closed))
                return Exit.OK
            code: int | None = None
            passed = False
            async with world.until_changed() as block:
                code = await self._work(world)
                if code == 0:
                    await self._retried(lambda: world.store.barrier("launch", FOREVER))  # noqa: B023
                    passed = True
                elif code is not None:
                    code = code if await self._is_ours(world) else None
            with anyio.CancelScope(shield=True):
                await self._workers.stop()
            if passed:
                return await self._finish(world)
            if code and block.change is None:
                self._failures += 1
                if self._failures > self._options.max_restarts:
                    return await self._give_up(world, code)
                left = f"restart {self._failures} of {self._options.max_restarts}"
                self._terminal.say(f"round {world.round}: a worker failed with code {code}; {left}")
            elif block.change is not Change.CLOSED:
                why = "a worker failed elsewhere" if block.change is None else WORDS[block.change]
                self._terminal.say(f"round {world.round}: {why}; joining the next")

    async def _join(self) -> World:
        waiting = anyio.CancelScope()
        self._group.start_soon(self._tell_what_is_missing, waiting)
        try:
            world = await self._rendezvous.join()
        finally:
            waiting.cancel()
        self._terminal.say(f"round {world.round}: node rank {world.rank} of {world.size}")
        return world

    async def _work(self, world: World) -> int | None:
        """Run the workers in a world; returns their exit code, or None if the round was over before they started."""
        try:
            environments = await self._environments(world)
        except (RendezvousFencedError, RendezvousConnectionError, RendezvousTimeoutError) as error:
            self._terminal.say(f"round {world.round}: {error}")
            return None
        return await self._workers.run(environments)

    async def _environments(self, world: World) -> list[dict[str, str]]:
        members = await world.members()
        workers = [self._workers_of(member) for member in members]
        if world.rank == 0:
            await world.store.set("master_port", str(await anyio.to_thread.run_sync(get_free_port)))
        port = (await world.store.get("master_port")).decode(errors="replace")
        address = members[0].address
        if not address.isprintable() or not port.isdecimal():
            who = f"node {members[0].node!r}, which has rank 0,"
            raise Failure(Exit.FAILED, f"{who} gives {address!r} and {port!r} as MASTER_ADDR and MASTER_PORT")
        common = {
            "WORLD_SIZE": str(sum(workers)),
            "LOCAL_WORLD_SIZE": str(workers[world.rank]),
            "GROUP_RANK": str(world.rank),
            "GROUP_WORLD_SIZE": str(world.size),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "RDZV_ROUND": str(world.round),
            "RDZV_RUN_ID": world.run_id,
            "RDZV_ENDPOINT": without_secrets(self._options.endpoint),
            "RDZV_TOKEN": str(world.token),
        }
        first = sum(workers[: world.rank])
        return [
            {**common, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(workers[world.rank])
        ]

    def _workers_of(self, member: Member) -> int:
        """Return how many workers a member has; all launchers must come to the same number."""
        text = member.labels.get(NPROC, "1")
        if NUMBER.fullmatch(text):
            return int(text)
        self._terminal.say(f"node {member.node!r} has the label {NPROC}={text!r}, not a count; it counts as 1 worker")
        return 1

    async def _is_ours(self, world: World) -> bool:
        """Tell whether a failure counts here; is cancelled if the world changes meanwhile."""
        if world.size == 1:
            return True
        mine = str(world.rank).encode()
        with suppress(RendezvousFencedError, RendezvousConnectionError):
            if await world.store.compare_set("first failure", b"", mine) != mine:
                await anyio.sleep(2 * VERDICT)  # The first one comes back to the barrier, or gives up; that ends this.
                return False
        await anyio.sleep(VERDICT)
        return True

    async def _finish(self, world: World) -> int:
        """Close the run as done; everybody was at the barrier, so everybody may."""
        if world.rank != 0:
            with anyio.move_on_after(self._options.join_timeout):
                if await world.changed() is Change.CLOSED:
                    return Exit.OK
        await self._close(DONE)
        self._terminal.say(f"{DONE}, in round {world.round}")
        return Exit.OK

    async def _give_up(self, world: World, code: int) -> int:
        why = f"a worker on node {self._rendezvous.node} ended with code {code}"
        if world.size > self._rendezvous.settings.min_nodes:
            self._terminal.say(f"{why}, and no restart is left; the others can go on without this node")
        else:
            self._terminal.say(f"{why}, and no restart is left; closing the run")
            await self._close(f"{FAILED}: {why}")
        return code

    async def _close(self, reason: str) -> None:
        with anyio.move_on_after(self._options.join_timeout) as scope:
            await self._retried(lambda: self._rendezvous.close(reason))
        if scope.cancelled_caught:
            self._terminal.say(f"the run could not be closed ({reason}): the server cannot be reached")

    async def _retried(self, call: Callable[[], Awaitable[object]]) -> None:
        """Try until it is done, for as long as the server cannot be reached but this node is not out."""
        while True:
            try:
                await call()
                return
            except RendezvousConnectionError as error:
                if error.final:
                    raise
            except RendezvousFencedError:
                await anyio.sleep(FOREVER)  # The round is over: the block around this one is about to end.
            await anyio.sleep(RETRY)

    async def _tell_what_is_missing(self, waiting: anyio.CancelScope) -> None:
        pause = 1.0
        with waiting:
            while not self._terminal.quiet:
                await anyio.sleep(pause)
                pause = min(3 * pause, 60.0)  # The more nodes wait, the dearer are their looks at one another.
                with suppress(RendezvousError):
                    self._terminal.say(f"waiting; {await self._rendezvous.status()}")

    async def _pass_signals_on(self, scope: anyio.CancelScope, *, task_status: Any) -> None:
        with anyio.open_signal_receiver(*ENDING, *PASSED_ON) as signals:
            task_status.started()
            async for number in signals:
                self._workers.forward(number)
                if number in PASSED_ON:
                    continue
                if self._ended_by is not None:
                    self._workers.hurry()
                    continue
                self._ended_by = number
                self._terminal.say(f"{number.name}: ending the workers, and leaving")
                scope.cancel()
