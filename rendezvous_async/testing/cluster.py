"""A cluster in one event loop: real rendezvous objects, a simulated network, and the means to break things.

::

    async def scenario() -> None:
        async with Cluster(nodes=3, min_nodes=2, seed=7) as cluster:
            await cluster.join_all()
            cluster.crash(0)
            await cluster.settle()
            check(cluster.history)

    run(scenario, seed=7)   # virtual time: minutes of timeouts take milliseconds

Each node runs a program, a coroutine function that is given an entered ``Rendezvous``; the default joins, holds its
world until it changes, and joins again. Give your own to test your own orchestrator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any

import anyio

from rendezvous_async.backends.base import Token
from rendezvous_async.clock import answer_within
from rendezvous_async.connecting import connect
from rendezvous_async.control import close_run
from rendezvous_async.core.rules import Change
from rendezvous_async.core.state import Head, Phase
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rendezvous_async.events import Event, EventKind
from rendezvous_async.handler import Rendezvous
from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.clock import virtual_loop
from rendezvous_async.testing.history import Believed, CloseCalled, Fault, History, Left, Released, Settled
from rendezvous_async.testing.network import Faults, Network, SimulatedBackend
from rendezvous_async.testing.witness import Witness
from rendezvous_async.world import World

__all__ = ["Cluster", "NotSettledError", "Program", "elastic"]

Program = Callable[[Rendezvous], Coroutine[Any, Any, None]]
LOOK_EVERY = 0.1


class NotSettledError(AssertionError):
    """A cluster that nothing disturbs did not come to rest in time: a round that should form has not."""


async def elastic(rendezvous: Rendezvous) -> None:
    """Join, hold the world until it changes, and join again, until the run is closed."""
    while True:
        try:
            world = await rendezvous.join()
        except (RendezvousClosedError, RendezvousGracefulExitError):
            return
        except RendezvousTimeoutError:
            continue
        if await world.changed() is Change.CLOSED:
            return


class SimulatedNode:
    """One process of the cluster, as the simulator sees it.

    Attributes:
        name: Its node id; a restarted node has the same.
        rendezvous: What its program was given; None before it is started.
        holds: The world that it believes in.
        live: Whether its program runs.
        paused: Whether it is frozen.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rendezvous: Rendezvous | None = None
        self.holds: World | None = None
        self.live = False
        self.paused = False
        self.generation = 0
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "paused" if self.paused else "live" if self.live else "down"
        return f"<SimulatedNode {self.name} {state} holds={self.holds!r}>"

    @property
    def process(self) -> str:
        """Names this process, unlike the one before a restart."""
        return f"{self.name}#{self.generation}"


class Cluster:
    """Some nodes, a server between them, and what happened so far.

    Args:
        nodes: How many.
        min_nodes: The least that a round needs.
        max_nodes: The most that a round takes; by default all.
        seed: Of everything random.
        faults: How bad the network is.
        program: What each node does with its rendezvous.
        timeouts: Of every node.
        keep_alive_interval: Of every node.
        keep_alive_max_attempt: Of every node.
        ranks: The rank policy.
        max_writes: How much one commit of the backend takes; a small number makes rounds form in batches.
    """

    def __init__(
        self,
        nodes: int = 3,
        min_nodes: int = 2,
        max_nodes: int | None = None,
        seed: int = 7,
        faults: Faults | None = None,
        *,
        program: Program = elastic,
        timeouts: Timeouts | None = None,
        keep_alive_interval: float = 1.0,
        keep_alive_max_attempt: int = 5,
        ranks: str = "sticky",
        max_writes: int = 1024,
    ) -> None:
        self.timeouts = Timeouts() if timeouts is None else timeouts
        self.history = History(
            min_nodes, nodes if max_nodes is None else max_nodes, keep_alive_interval * keep_alive_max_attempt
        )
        self.nodes = [SimulatedNode(f"node-{index}") for index in range(nodes)]
        self._rng = random.Random(seed)
        self._faults = Faults() if faults is None else faults
        self._program = program
        self._interval = keep_alive_interval
        self._max_attempt = keep_alive_max_attempt
        self._ranks = ranks
        self._max_writes = max_writes

    def __repr__(self) -> str:
        return f"<Cluster {self.nodes!r}>"

    async def __aenter__(self) -> Cluster:
        self.network = Network(self._rng, self._faults)
        self._watching = SimulatedBackend(self.network, "observer", "simulated")
        self._seen: Token | None = self.network.server.table.token
        self._witness = Witness(self.history)
        self.network.server.fanout.add([self._watching.prefix], self._observe)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.heal()
        running = []
        for index, node in enumerate(self.nodes):
            self.resume(index)
            if node.live and node.task is not None:
                node.task.cancel()
                running.append(node.task)
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*running, return_exceptions=True)
        self.network.server.fanout.remove([self._watching.prefix], self._observe)

    # What happens to nodes

    def start(self, index: int) -> None:
        """Start a node that is down."""
        node = self.nodes[index]
        if node.live:
            return
        node.generation += 1
        node.live = True
        node.rendezvous = connect(
            backend=SimulatedBackend(self.network, node.process, "simulated", self._max_writes),
            run_id="simulated",
            nodes=(self.history.min_nodes, self.history.max_nodes),
            timeouts=self.timeouts,
            keep_alive_interval=self._interval,
            keep_alive_max_attempt=self._max_attempt,
            ranks=self._ranks,
            node=node.name,
            address=node.name,
            labels={self._ranks.removeprefix("label:"): f"group-{index % 2}"},
            rng=random.Random(self._rng.getrandbits(64)),
        )
        node.rendezvous.listen(_Listener(self, node))
        node.task = virtual_loop().start(node.process, self._live, node.rendezvous, name=node.process)
        ended = partial(self._ended, node, node.process)
        node.task.add_done_callback(ended, context=copy_context())

    async def _live(self, rendezvous: Rendezvous) -> None:
        async with rendezvous:
            await self._program(rendezvous)

    def _ended(self, node: SimulatedNode, process: str, task: asyncio.Task[None]) -> None:
        if node.process == process and node.live:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._fault(f"ended by {type(error).__name__}: {error}", node)
            node.live = False
            self.released(node, "end")

    async def join_all(self) -> list[World]:
        """Start every node that is down, and wait until all is quiet; returns the worlds that nodes hold, by rank."""
        for index in range(len(self.nodes)):
            self.start(index)
        await self.settle()
        worlds = [node.holds for node in self.nodes if node.holds is not None]
        return sorted(worlds, key=lambda world: world.rank)

    def crash(self, index: int) -> None:
        """Kill a node, as SIGKILL does: nothing of it ever runs again."""
        node = self.nodes[index]
        if node.live:
            self._fault("crash", node)
            node.live = node.paused = False
            node.holds = None
            virtual_loop().kill(node.process)
            self.network.forget(node.process)

    def leave(self, index: int) -> None:
        """Stop a node in good order: its program is cancelled, and it leaves."""
        node = self.nodes[index]
        if node.live and not node.paused and node.task is not None:
            self._fault("leave", node)
            node.task.cancel()

    def restart(self, index: int) -> None:
        """Crash a node if it is up, and start it again as a new process with the same id."""
        self.crash(index)
        self._fault("restart", self.nodes[index])
        self.start(index)

    def pause(self, index: int) -> None:
        """Freeze a node, as SIGSTOP does: its tasks do not run, its timers run late."""
        node = self.nodes[index]
        if node.live and not node.paused:
            self._fault("pause", node)
            node.paused = True
            virtual_loop().freeze(node.process)

    def resume(self, index: int) -> None:
        """Let a frozen node go on."""
        node = self.nodes[index]
        if node.paused:
            node.paused = False
            self._fault("resume", node)
            virtual_loop().thaw(node.process)

    def partition(self, *sides: Iterable[int]) -> None:
        """Split the nodes: those of the first side keep the server, all others are cut off it."""
        heals = {index for side in sides[:1] for index in side}
        self.heal()
        cut = [node for index, node in enumerate(self.nodes) if index not in heals]
        self._fault("partition", *cut)
        self.network.cut(*(node.process for node in cut))

    def heal(self) -> None:
        """Let everybody who is not crashed reach the server again."""
        self._fault("heal")
        self.network.heal(*(node.process for node in self.nodes))

    def lose_server(self) -> None:
        """Restart the server without its data: a new epoch begins."""
        self._fault("lose the server")
        self._witness.forget()
        self.network.lose_server()

    async def close(self, index: int, reason: str = "") -> None:
        """Close the run in the name of a node, from where it is; raises if the network is in the way."""
        node = self.nodes[index]
        self.history.add(CloseCalled(_now(), node.name))
        with answer_within(self.timeouts.close, "close the run"):
            await close_run(SimulatedBackend(self.network, node.process, "simulated"), reason, node.name)

    async def settle(self, within: float | None = None) -> None:
        """Wait until everything is quiet: one round held by all that can be in it, or too few for one, or closed.

        Raises:
            NotSettledError: It is not, within so many seconds; the text says how things stand.
        """
        longest = self.timeouts.last_call + 6 * self.history.ttl + 30 if within is None else within
        deadline = anyio.current_time() + longest
        while not self._is_quiet():
            if anyio.current_time() >= deadline:
                raise NotSettledError(f"not settled after {longest:g} s: {self._describe()}")
            await anyio.sleep(LOOK_EVERY)
        live = tuple(node.name for node in self.nodes if node.live)
        self.history.add(Settled(_now(), live, tuple(self._witness.roster)))

    # What the backend and the nodes say

    def head(self) -> Head | None:
        """Return the run's head as the backend has it."""
        return self._witness.head

    def _is_quiet(self) -> bool:
        head = self.head()
        live = {node.name: node for node in self.nodes if node.live}
        roster = set(self._witness.roster)
        if head is not None and head.closed is not None:
            return not live and not roster
        if roster != set(live):
            return False
        if len(live) < self.history.min_nodes:
            return not any(node.holds for node in live.values())
        if head is None or head.phase is not Phase.FORMED or head.waiting or head.lost:
            return False
        holding = {node.name for node in live.values() if node.holds is not None and node.holds.round == head.round}
        seated = {node for node, _, _ in self._witness.seats(head)}
        return holding == seated and (holding == set(live) or head.size == self.history.max_nodes)

    def _describe(self) -> str:
        return f"{self.head()}; roster {self._witness.roster}; {self.nodes}"

    def _observe(self) -> None:
        """Write down what a commit did, in the very moment that the server did it."""
        listing = self.network.server.table.changes([self._watching.prefix], self._seen)
        if listing is None:
            return
        self._seen = listing.token
        if listing.complete:
            self._witness.forget()
        self._witness.take(_now(), listing.relative_to(self._watching.prefix).entries)

    def believed(self, node: SimulatedNode, world: World) -> None:
        """Write down that a node has joined."""
        node.holds = world
        self.history.add(Believed(_now(), node.name, world.round, world.rank, world.size, str(world.token)))

    def released(self, node: SimulatedNode, why: str) -> None:
        """Write down that a node no longer holds its world."""
        if node.holds is not None:
            self.history.add(Released(_now(), node.name, node.holds.round, why))
            node.holds = None

    def returns(self, rendezvous: Rendezvous) -> None:
        """Write down that a program goes back to the barrier by its own choice, with nothing that made it.

        A program that does so says it before ``join()``: while the node is cut off nothing else could tell, and the
        history would have it believe in a world that it has given up.
        """
        for node in self.nodes:
            if node.rendezvous is rendezvous and node.live:
                self.released(node, "returns")

    def _fault(self, kind: str, *nodes: SimulatedNode) -> None:
        self.history.add(Fault(_now(), kind, tuple(node.name for node in nodes)))


class _Listener:
    """Turns the events of one process into records; of a process that is no more, it hears nothing."""

    def __init__(self, cluster: Cluster, node: SimulatedNode) -> None:
        self._cluster = cluster
        self._node = node
        self._process = node.process

    def __call__(self, event: Event) -> None:
        node, cluster = self._node, self._cluster
        if node.process != self._process or not node.live:
            return
        match event.kind:
            case EventKind.JOINED:
                assert node.rendezvous is not None
                assert node.rendezvous.world is not None
                cluster.released(node, "joined again")
                cluster.believed(node, node.rendezvous.world)
            case EventKind.ARRIVED | EventKind.EVICTED | EventKind.CLOSED | EventKind.SESSION_LOST:
                cluster.released(node, event.kind)
            case EventKind.CLOSING:
                cluster.history.add(CloseCalled(_now(), node.name))
            case EventKind.LEFT:
                cluster.released(node, event.kind)
                cluster.history.add(Left(_now(), node.name))
            case _:
                pass


def _now() -> float:
    return round(asyncio.get_running_loop().time(), 9)  # what anyio.current_time() says, and cheaper
