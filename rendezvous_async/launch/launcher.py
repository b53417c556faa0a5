"""The elastic launcher: join, run the workers, and repeat when the world changes, until all workers have succeeded.

End of a job: a launcher whose workers have all succeeded waits at a barrier. When all launchers are there, the run is
closed as done, and all exit with 0. A launcher whose world changes before that joins the next round and runs its
workers again.

Counting failures: when a worker dies, its peers often fail as a result. So only the first launcher of a round that sees
a failure counts it, and not even that one if a node turns out to be lost.

This module parses no command line and prints nothing. A ``Plan`` says what to do; progress goes to a callable.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from rendezvous_async.admin import read_status
from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.backends.base import Backend
from rendezvous_async.core.diagnosis import Role, Status
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
from rendezvous_async.launch.plan import NPROC, LaunchError, Plan
from rendezvous_async.launch.workers import Workers
from rendezvous_async.node.addresses import address_toward, get_free_port
from rendezvous_async.node.connect import connect
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.settings import parse_endpoint

__all__ = ["launch"]

DONE = "the job is done"
GAVE_UP = "the job failed"
NUMBER = re.compile("[1-9][0-9]{0,5}")
FOREVER = 1e9
VERDICT = 2.0
"""Seconds after a failure during which the loss of a node counts as its cause."""
RETRY = 0.5
WORDS = {
    Change.EVICTED: "this node was evicted",
    Change.MEMBER_LOST: "a node was lost or left",
    Change.RESIZED: "the run was scaled",
    Change.NODES_WAITING: "a node is waiting to join",
}
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

T = TypeVar("T")


async def launch(plan: Plan, backend: Backend, say: Callable[[str], None] | None = None) -> int:
    """Run a plan until its job ends.

    Args:
        plan: What to run.
        backend: The run's backend; the caller closes it.
        say: Receives progress in words. None also saves reading the run's status while waiting.

    Returns:
        The exit code: 0, that of a worker, or 128 + the signal that ended the launcher.

    Raises:
        LaunchError: The launcher cannot continue; carries an exit code.
        RendezvousError: The run is closed, unreachable, or has different settings.
    """
    with answer_within(plan.connect_timeout, f"read the status of run {plan.run_id!r}"):
        closed = (await read_status(backend)).closed
    if closed is not None:
        raise RendezvousClosedError(closed.reason, closed.by, run_id=plan.run_id)
    endpoint = parse_endpoint(plan.endpoint)
    rendezvous = connect(
        backend=backend,
        run_id=plan.run_id,
        nodes=plan.nodes,
        node=plan.node,
        timeouts=plan.timeouts,
        keep_alive_interval=plan.keep_alive_interval,
        address=plan.address or await anyio.to_thread.run_sync(address_toward, endpoint, backend.local_address),
        labels={**plan.labels, NPROC: str(plan.workers)},
        domain=plan.domain,
        per_domain=plan.per_domain,
    )
    async with rendezvous, Workers.of(plan.command, plan.grace) as workers:
        return await _Launcher(plan, say, rendezvous, workers).run()


class _Launcher:
    def __init__(self, plan: Plan, say: Callable[[str], None] | None, rendezvous: Rendezvous, workers: Workers) -> None:
        self._plan = plan
        self._say = say or (lambda text: None)
        self._is_quiet = say is None
        self._rendezvous = rendezvous
        self._workers = workers
        self._failures = 0
        self._ended_by: signal.Signals | None = None

    async def run(self) -> int:
        """Run round after round until the job ends; return the exit code."""
        code = 0
        failure: Exception | None = None  # Raised outside the task group, which would wrap it.
        async with anyio.create_task_group() as self._group:
            with anyio.CancelScope() as scope:
                await self._group.start(self._pass_signals_on, scope)
                try:
                    code = await self._rounds()
                except (LaunchError, RendezvousError) as error:
                    failure = error
            with anyio.CancelScope(shield=True):
                await self._workers.stop()
            self._group.cancel_scope.cancel()
        if self._ended_by is not None:
            return 128 + self._ended_by
        if failure is not None:
            raise failure
        return code

    async def _rounds(self) -> int:
        while True:
            try:
                world = await self._join()
            except RendezvousGracefulExitError as error:
                self._say(f"not needed: {error}")
                return 0
            except RendezvousClosedError as closed:
                if closed.reason.startswith(GAVE_UP):
                    raise LaunchError(str(closed)) from None
                if closed.reason != DONE:
                    raise
                self._say(str(closed))
                return 0
            code: int | None = None
            passed = False
            async with world.until_changed() as block:
                code = await self._work(world)
                if code == 0:
                    await self._retried(lambda: world.store.barrier("launch", FOREVER))  # noqa: B023
                    passed = True
                elif code is not None:
                    code = code if await self._counts_here(world) else None
            with anyio.CancelScope(shield=True):
                await self._workers.stop()
            if passed:
                return await self._finish(world)
            if code and block.change is None:
                self._failures += 1
                if self._failures > self._plan.max_restarts:
                    return await self._give_up(code)
                left = f"restart {self._failures} of {self._plan.max_restarts}"
                self._say(f"round {world.round}: a worker failed with code {code}; {left}")
            elif block.change is not Change.CLOSED:
                why = "a worker failed elsewhere" if block.change is None else WORDS[block.change]
                self._say(f"round {world.round}: {why}; joining the next round")

    async def _join(self) -> World:
        waiting = anyio.CancelScope()
        self._group.start_soon(self._report_status, waiting)
        try:
            world = await self._rendezvous.join()
        finally:
            waiting.cancel()
        self._say(f"round {world.round}: node rank {world.rank} of {world.size}")
        return world

    async def _work(self, world: World) -> int | None:
        """Run the workers in a world; return their exit code, or None if the round ended before they started."""
        try:
            environments = await self._environments(world)
        except (RendezvousFencedError, RendezvousConnectionError, RendezvousTimeoutError) as error:
            self._say(f"round {world.round}: {error}")
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
            raise LaunchError(
                f"node {members[0].node!r} has rank 0, but MASTER_ADDR {address!r} or MASTER_PORT {port!r} is malformed"
            )
        common = {
            "WORLD_SIZE": str(sum(workers)),
            "LOCAL_WORLD_SIZE": str(workers[world.rank]),
            "GROUP_RANK": str(world.rank),
            "GROUP_WORLD_SIZE": str(world.size),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "RDZV_ROUND": str(world.round),
            "RDZV_RUN_ID": world.run_id,
            "RDZV_ENDPOINT": self._plan.public_endpoint,
            "RDZV_TOKEN": str(world.token),
        }
        first = sum(workers[: world.rank])
        return [
            {**common, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(workers[world.rank])
        ]

    def _workers_of(self, member: Member) -> int:
        """Return a member's number of workers, which must be the same on every launcher."""
        text = member.labels.get(NPROC, "1")
        if NUMBER.fullmatch(text):
            return int(text)
        self._say(f"node {member.node!r} has the invalid label {NPROC}={text!r}; assuming 1 worker")
        return 1

    async def _counts_here(self, world: World) -> bool:
        """Return whether to count a failure on this node; cancelled if the world changes first."""
        if world.size == 1:
            return True
        mine = str(world.rank).encode()
        with suppress(RendezvousFencedError, RendezvousConnectionError):
            if await world.store.compare_set("first failure", b"", mine) != mine:
                await anyio.sleep(2 * VERDICT)  # The first launcher rejoins or gives up, which cancels this.
                return False
        await anyio.sleep(VERDICT)
        return True

    async def _finish(self, world: World) -> int:
        """Close the run as done. All launchers passed the barrier, so any may close it if rank 0 does not."""
        if world.rank != 0:
            with anyio.move_on_after(self._plan.timeouts.join):
                if await world.changed() is Change.CLOSED:
                    return 0
        await self._close(DONE)
        self._say(f"{DONE}, in round {world.round}")
        return 0

    async def _give_up(self, code: int) -> int:
        """Leave, and close the run unless the others, spares too, can form a world of a size that is allowed now.

        All of it takes ``timeouts.join`` at most, however often the server goes away.
        """
        why = f"a worker on node {self._rendezvous.node} exited with code {code}"
        with anyio.move_on_after(self._plan.timeouts.join) as scope:
            others = await self._leave()
            if others.closed is None and others.fit is not None and others.fit.usable:
                self._say(f"{why}, and no restarts are left; the other nodes can continue without this one")
            else:
                self._say(f"{why}, and no restarts are left; closing the run")
                await self._retried(lambda: self._rendezvous.close(f"{GAVE_UP}: {why}"))
        if scope.cancelled_caught:
            self._say(f"{why}, and no restarts are left; the server is unreachable")
        return code

    async def _leave(self) -> Status:
        """Leave the run, and return its status without this node."""
        while True:
            await self._rendezvous.leave()
            status = await self._retried(self._rendezvous.status)
            if self._rendezvous.node not in status.nodes(*Role):
                return status
            await anyio.sleep(RETRY)

    async def _close(self, reason: str) -> None:
        with anyio.move_on_after(self._plan.timeouts.join) as scope:
            await self._retried(lambda: self._rendezvous.close(reason))
        if scope.cancelled_caught:
            self._say(f"could not close the run ({reason}): the server is unreachable")

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry a call while the server is unreachable and this node is still in its round."""
        while True:
            try:
                return await call()
            except RendezvousConnectionError as error:
                if error.final:
                    raise
            except RendezvousFencedError:
                await anyio.sleep(FOREVER)  # The round is over; the enclosing block is about to be cancelled.
            await anyio.sleep(RETRY)

    async def _report_status(self, waiting: anyio.CancelScope) -> None:
        pause = 1.0
        with waiting:
            while not self._is_quiet:
                await anyio.sleep(pause)
                pause = min(3 * pause, 60.0)  # Each look costs O(nodes), and every waiting node takes it.
                with suppress(RendezvousError):
                    self._say(f"waiting; {await self._rendezvous.status()}")

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
                self._say(f"{number.name}: stopping the workers and leaving the run")
                scope.cancel()
