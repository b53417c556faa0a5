"""A node's process: it joins, holds its world and writes to its store, and joins again when the world changes.

``python -m tests.proof.campaign.node '<Options as JSON>'``. Lines on its standard input tell it to be
``calm`` (do nothing by itself that makes the others re-form) and to ``close`` the run; when its input ends,
so does it, so that no node outlives its campaign. SIGTERM lets it leave in good order.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import sys

import anyio
import msgspec

from rendezvous_async.aio import clock
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Condition, Put
from rendezvous_async.core.state import round_key
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousFencedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rendezvous_async.node.connect import connect
from rendezvous_async.node.events import Event, EventKind
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.history import Believed, CloseCalled, Left, Released
from tests.proof.campaign.disks import fail_syncs_on_signal
from tests.proof.campaign.records import Done, Heard, Members, Notebook, Up

CALL = 3.0
"""Seconds that this node waits for a call of its own to the backend."""


class Options(msgspec.Struct, frozen=True):
    """What a node is told."""

    endpoint: str
    run_id: str
    node: str
    nodes: str
    interval: float
    max_attempt: int
    seed: str
    notebook: str
    calm: bool = False
    pace: float = 1.0

    @property
    def timeouts(self) -> Timeouts:
        pace = self.pace
        return Timeouts(join=120 * pace, last_call=0.6 * pace, regroup=0.4 * pace, close=10 * pace, heartbeat=pace)


class NodeProcess:
    """Lives one life of a node."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rng = random.Random(options.seed)
        self._notebook = Notebook(options.notebook)
        self._calm = options.calm
        self._holds: World | None = None
        self._rendezvous: Rendezvous
        self._scope = anyio.CancelScope()
        self._enough = anyio.CancelScope()

    async def run(self) -> None:
        """Live until the run is closed, or until told to end."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._scope.cancel)
        fail_syncs_on_signal()
        options = self._options
        why = "told to"
        with self._scope:
            async with connect(
                options.endpoint,
                run_id=options.run_id,
                nodes=options.nodes,
                node=options.node,
                timeouts=options.timeouts,
                keep_alive_interval=options.interval,
                keep_alive_max_attempt=options.max_attempt,
                rng=random.Random(f"{options.seed}/ids"),
            ) as self._rendezvous:
                self._rendezvous.listen(self._heard)
                self._notebook.note(Up(clock.now(), options.node))
                async with anyio.create_task_group() as group:
                    group.start_soon(self._obey)
                    why = await self._live()
                    group.cancel_scope.cancel()
        self._release("end")
        self._notebook.note(Done(clock.now(), options.node, why))

    async def _obey(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().strip():
            if line == "calm":
                self._calm = True
                self._enough.deadline = math.inf
            elif line == "close":
                with anyio.move_on_after(2 * self._options.timeouts.close):
                    try:
                        await self._rendezvous.close("the act is over")
                    except RendezvousConnectionError as error:
                        self._note("trouble", 0, str(error))
        self._scope.cancel()

    async def _live(self) -> str:
        while True:
            try:
                world = await self._rendezvous.join()
            except (RendezvousClosedError, RendezvousGracefulExitError):
                return "closed"
            except RendezvousTimeoutError as error:
                self._note("timeout", 0, str(error))
                continue
            await self._hold(world)
            await self._write_late(world)
            if not self._calm and self._rng.random() < 0.1:
                await self._rendezvous.leave()
                await anyio.sleep(self._rng.random())

    async def _hold(self, world: World) -> None:
        """Use the world until it changes, or, if this node is not calm, until it has had enough of it."""
        patience = self._options.pace * (2 + 15 * self._rng.random())
        with anyio.CancelScope() as self._enough:
            self._enough.deadline = math.inf if self._calm else clock.now() + patience
            async with world.until_changed():
                while True:
                    try:
                        with anyio.move_on_after(CALL * self._options.pace):
                            await self._use(world)
                    except RendezvousFencedError:
                        await world.changed()
                    except RendezvousTimeoutError:
                        pass  # Nobody has set what it waited for.
                    except RendezvousError as error:
                        self._note("trouble", world.round, f"{type(error).__name__}: {error}")
                    await anyio.sleep(0.05 + 0.3 * self._rng.random())

    async def _use(self, world: World) -> None:
        members = [(member.rank, member.node) for member in await world.members()]
        token = str(world.token)
        self._notebook.note(Members(clock.now(), world.node, world.round, token, tuple(members)))
        while True:
            match self._rng.randrange(4):
                case 0:
                    await world.store.set(f"of {world.rank}", f"{world.node} {self._rng.getrandbits(32):x}")
                case 1:
                    await world.store.add("hands", 1)
                case 2:
                    await world.store.get(f"of {self._rng.randrange(world.size)}", timeout=0.5)
                case _:
                    await world.store.num_keys()
            await anyio.sleep(0.1 + 0.5 * self._rng.random())

    async def _write_late(self, world: World) -> None:
        """Write under a token that may be old by now, past all of this node's own checks: the backend must refuse."""
        if self._rng.random() < 0.5:
            return
        with anyio.move_on_after(CALL * self._options.pace):
            try:
                async with open_backend(self._options.endpoint, run_id=world.run_id) as backend:
                    put = Put(f"{round_key(world.round)}/kv/late", self._options.node.encode())
                    await backend.commit(put, when=[Condition(round_key(world.round), world.token)])
            except RendezvousError as error:
                self._note("trouble", world.round, f"{type(error).__name__}: {error}")

    # What is written down

    def _heard(self, event: Event) -> None:
        match event.kind:
            case EventKind.JOINED:
                self._release("joined again")
                world = self._rendezvous.world
                assert world is not None
                self._holds = world
                self._notebook.note(
                    Believed(event.at, world.node, world.round, world.rank, world.size, str(world.token))
                )
            case EventKind.ARRIVED | EventKind.EVICTED | EventKind.CLOSED | EventKind.SESSION_LOST:
                self._release(event.kind)
            case EventKind.CLOSING:
                self._notebook.note(CloseCalled(event.at, self._options.node))
            case EventKind.LEFT:
                self._release(event.kind)
                self._notebook.note(Left(event.at, self._options.node))
            case _:
                pass
        self._note(event.kind, event.round, event.detail)

    def _release(self, why: str) -> None:
        if self._holds is not None:
            self._notebook.note(Released(clock.now(), self._options.node, self._holds.round, why))
            self._holds = None

    def _note(self, kind: str, round: int, detail: str) -> None:
        self._notebook.note(Heard(clock.now(), self._options.node, kind, round, detail[:300]))


async def main() -> None:
    """Live as the command line says."""
    await NodeProcess(msgspec.json.decode(sys.argv[1], type=Options)).run()


if __name__ == "__main__":
    asyncio.run(main())
