"""A cluster in one event loop: real nodes, a real server, simulated machines between them, and fault injection.

::

    async def scenario() -> None:
        async with Cluster(nodes=3, min_nodes=2, seed=7) as cluster:
            await cluster.join_all()
            cluster.crash(0)
            await cluster.settle()
            check(cluster.history)

    run(scenario, seed=7)   # virtual time: minutes of timeouts take milliseconds

By default everything down to the sockets is what ships: clients and server of ``tcp://``, with a secret, on machines of
a ``Wire``. ``server="log"`` gives the server a log on a simulated disk, whose power can be cut; with ``"hosted"`` it
runs in the process of a node, and every second node may host it. ``network="stand-in"`` has a backend made for the
simulation instead. It is faster, and harsher: it loses calls one by one, and whoever made them is told nothing.

Each node runs a program, a coroutine function that takes an entered ``Rendezvous``. The default joins, holds its world
until it changes, and joins again. Pass your own to test your own orchestrator.

If a program fails, the test fails: the next ``settle()``, ``check()`` or the end of the cluster's block raises the
error with its own traceback. The same holds for errors of tasks and callbacks that the program does not await. Whatever
would end a real process counts as a failure, even ``RendezvousClosedError``; a fault injected by the test does not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any

import anyio

from rendezvous_async.admin import close_run, scale_run
from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.backends.values import Listing
from rendezvous_async.core.spec import Spec
from rendezvous_async.core.state import Head
from rendezvous_async.node.connect import connect
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.settings import Timeouts, check_seconds
from rendezvous_async.testing.arguments import MAX_CHANGES, NetworkKind, check_arguments, check_count, check_sides
from rendezvous_async.testing.disk import Disk
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.history import CloseCalled, Fault, History, ScaleCalled, Settled
from rendezvous_async.testing.loop.clock import virtual_loop
from rendezvous_async.testing.network import Network
from rendezvous_async.testing.nodes import RUN, SimulatedNode, now
from rendezvous_async.testing.programs import Program, elastic
from rendezvous_async.testing.quiet import STUBBORN, NotSettledError, end_programs, is_quiet, patience_of, until_quiet
from rendezvous_async.testing.service import ServerKind, TcpNetwork
from rendezvous_async.testing.wire import Wire
from rendezvous_async.testing.witness import Witness
from rendezvous_async.texts import quoted

__all__ = ["Cluster", "NetworkKind", "NotSettledError"]


class Cluster:
    """Some nodes, their server (``server`` says of which kind), and the history so far.

    Args:
        nodes: The number of nodes; they are numbered from 0.
        min_nodes: The minimum size of a round.
        max_nodes: The maximum size of a round; by default all nodes.
        seed: The seed of everything random.
        faults: The faults of the network.
        program: The program that each node runs.
        timeouts: The timeouts of every node.
        keep_alive_interval: As for ``connect``.
        keep_alive_max_attempt: As for ``connect``.
        ranks: The rank policy.
        max_writes: The backend's limit of writes per commit; with a small one, rounds form in batches.
        sizes: The sizes of a round, instead of ``min_nodes`` and ``max_nodes``: ``"4:64:4"`` or ``"4,8,16"``.
        domain: The label of the domains that a round is made of; nodes with even and with odd numbers are one each.
        per_domain: As for ``connect``.
        network: ``wire`` or ``stand-in``.
        server: On the wire: ``memory``, ``log`` or ``hosted``.

    Raises:
        ValueError: An argument is wrong. Methods raise it for a node that does not exist.
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
        sizes: str = "",
        domain: str = "",
        per_domain: int = 1,
        network: NetworkKind = "wire",
        server: ServerKind = "memory",
    ) -> None:
        self.timeouts: Timeouts = Timeouts() if timeouts is None else timeouts
        self._faults = Faults() if faults is None else faults
        check_arguments(nodes, max_writes, seed, self.timeouts, self._faults, program, network, server)
        self._settings: dict[str, Any] = {
            "run_id": RUN,
            "nodes": sizes or (min_nodes, nodes if max_nodes is None else max_nodes),
            "timeouts": self.timeouts,
            "keep_alive_interval": keep_alive_interval,
            "keep_alive_max_attempt": keep_alive_max_attempt,
            "ranks": ranks,
            "domain": domain,
            "per_domain": per_domain,
        }
        names = [name for name in (str(ranks).removeprefix("label:"), domain) if name]
        labels = [dict.fromkeys(names, f"group-{index % 2}") for index in range(nodes)]
        settings = connect(f"memory://{RUN}", labels=labels[0], **self._settings).settings
        self._shape = Head(settings=settings).shape
        ttl = keep_alive_interval * keep_alive_max_attempt
        self.history: History = History(settings.min_nodes, settings.max_nodes, ttl)
        self.nodes: list[SimulatedNode] = [
            SimulatedNode(f"node-{index}", self.history, labels[index]) for index in range(nodes)
        ]
        self._rng = random.Random(seed)
        self._program = program
        self._max_writes = max_writes
        self.server: ServerKind = server
        self._kind = network
        self._network: Network | TcpNetwork | None = None
        self._witness = Witness(self.history)

    def __repr__(self) -> str:
        return f"<Cluster {self.nodes!r}>"

    @property
    def network(self) -> Network | TcpNetwork:
        """The network between the nodes and the server."""
        if self._network is None:
            raise RuntimeError(f"{self!r} is not entered: use it inside 'async with Cluster(...) as cluster'")
        return self._network

    @property
    def wire(self) -> Wire:
        """Its machines and connections: what can be done to these is done there."""
        return self.network.wire

    @property
    def disk(self) -> Disk:
        """The disk of a server with a log."""
        return self._with_log().disk

    async def __aenter__(self) -> Cluster:
        if self._network is not None:
            raise RuntimeError("a cluster is entered once, since it has one history: make another Cluster")
        if self._kind == "stand-in":
            self._network = Network(self._rng, self._faults, self._max_writes, self._take)
        else:
            on_loss = partial(self._fault, "lose the server") if self.server == "hosted" else None
            self._network = TcpNetwork(self._rng, self._faults, self._max_writes, self.server, self._take, on_loss)
        self.history.failures.catch(virtual_loop(), (node.name for node in self.nodes))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.heal()
        for index in range(len(self.nodes)):
            self.resume(index)
        with anyio.CancelScope(shield=True):
            for node in await end_programs(self.nodes):
                self.history.failures.add(node.name, NotSettledError(STUBBORN))
                self.network.kill(node)
        self.history.failures.stop_catching(virtual_loop())
        self.network.aclose()
        if error is None or isinstance(error, Exception):  # A failed assertion becomes its context.
            self.history.failures.raise_first()

    # Actions and faults

    def start(self, index: int) -> None:
        """Start a node that is down."""
        node = self._node(index)
        if node.live:
            return
        network = self.network
        node.renew()
        node.live = True
        node.rendezvous = connect(
            **network.settings(node),
            node=node.name,
            address=node.name,
            labels=node.labels,
            rng=random.Random(self._rng.getrandbits(64)),
            **self._settings,
        )
        node.rendezvous.listen(node.listener())
        node.task = network.start(node, self._live, node, node.rendezvous)
        ended = partial(self._ended, node, node.process)
        node.task.add_done_callback(ended, context=copy_context())

    async def _live(self, node: SimulatedNode, rendezvous: Rendezvous) -> None:
        async with rendezvous:
            try:
                await self._program(rendezvous)
            finally:
                if node.rendezvous is rendezvous:  # As a host, it may still linger.
                    node.release("end")

    def _ended(self, node: SimulatedNode, process: str, task: asyncio.Task[None]) -> None:
        if node.process == process and node.live:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._fault(f"ended by {type(error).__name__}: {error}", node)
                self.history.failures.add(node.name, error)
            else:
                self._fault("end", node)
            node.live = False
            node.release("end")

    def _node(self, index: object) -> SimulatedNode:
        if type(index) is not int or not 0 <= index < len(self.nodes):
            raise ValueError(f"there is no node {quoted(index)}: this cluster has the nodes 0 to {len(self.nodes) - 1}")
        return self.nodes[index]

    async def join_all(self) -> list[World]:
        """Start every node that is down and settle; return the worlds that nodes hold, by rank."""
        for index in range(len(self.nodes)):
            self.start(index)
        await self.settle()
        return sorted((node.holds for node in self.nodes if node.holds is not None), key=lambda world: world.rank)

    def crash(self, index: int) -> None:
        """Kill a node, like SIGKILL: nothing of it ever runs again."""
        node = self._node(index)
        if node.live:
            self._fault("crash", node)
            node.live = node.paused = False
            node.holds = None
            self.network.kill(node)

    def leave(self, index: int) -> None:
        """Shut a node down: its program is cancelled, and it leaves."""
        node = self._node(index)
        if node.live and not node.paused and node.task is not None:
            self._fault("leave", node)
            node.task.cancel()

    def restart(self, index: int) -> None:
        """Crash a node if it is up, and start it as a new process with the same id."""
        self.crash(index)
        self._fault("restart", self._node(index))
        self.start(index)

    def pause(self, index: int, *, suspend: bool = False) -> None:
        """Freeze a node, like SIGSTOP: its tasks do not run, and its timers fire late.

        Args:
            index: The node.
            suspend: Suspend its machine instead: its clock stops too.
        """
        node = self._node(index)
        if node.live and not node.paused:
            self._fault("pause", node)
            node.paused = True
            loop = virtual_loop()
            (loop.suspend if suspend else loop.freeze)(node.process)

    def resume(self, index: int) -> None:
        """Resume a frozen or suspended node."""
        node = self._node(index)
        if node.paused:
            node.paused = False
            self._fault("resume", node)
            virtual_loop().thaw(node.process)

    def partition(self, *sides: Iterable[int]) -> None:
        """Partition the nodes: the first side keeps the server; all others, named or not, are cut off."""
        named = check_sides(sides, self._node)
        self.heal()
        cut = [node for node in self.nodes if not named or node not in named[0]]
        self._fault("partition", *cut)
        self.network.cut(cut)

    def heal(self) -> None:
        """End the partition: every node that has not crashed reaches the server again."""
        self.network.heal()
        self._fault("heal")

    def lose_server(self) -> None:
        """Restart the server without its data, in a new epoch; if a node hosts it, crash that node."""
        network = self.network
        if self.server != "hosted":
            self._fault("lose the server")
            self._witness.forget()
            network.lose_server()
        elif isinstance(network, TcpNetwork) and network.host is not None:
            for index, node in enumerate(self.nodes):
                if node.process == network.host.group:
                    self.crash(index)

    def restart_server(self) -> None:
        """Kill the server, which must have a log, and start it again."""
        self._with_log().restart_server()
        self._fault("restart the server")

    def lose_power(self, after: int = 0) -> None:
        """Cut the power of the server's machine: the disk loses what was not synced, and no client is told.

        Args:
            after: How many changes of the disk are made until then, the last one in vain; 0 means at once.
        """
        network = self._with_log()
        check_count("after", after, 0, MAX_CHANGES)
        self._fault("lose power")
        if after:
            network.disk.power_left = after
        else:
            network.lose_power()

    def _with_log(self) -> TcpNetwork:
        network = self.network
        if not isinstance(network, TcpNetwork) or self.server != "log":
            raise RuntimeError(f"there is no log in {self!r}: use Cluster(..., server='log')")
        return network

    async def close(self, index: int, reason: str = "") -> None:
        """Close the run as a node would; raise if the network is in the way."""
        node = self._node(index)
        self.history.add(CloseCalled(now(), node.name))
        with answer_within(self.timeouts.close, "close the run"):
            await self.network.visit(node, partial(close_run, reason=reason, by=node.name))

    async def scale(self, index: int, nodes: str | None = None, target: int | None = None) -> Spec:
        """Scale the run as a node would; raise if the network is in the way."""
        node = self._node(index)
        self.history.add(ScaleCalled(now(), node.name))
        with answer_within(self.timeouts.close, "scale the run"):
            return await self.network.visit(node, partial(scale_run, nodes=nodes, target=target))

    async def settle(self, within: float | None = None) -> None:
        """Wait until the cluster is quiet: the largest round is held, or none can form, or the run is closed.

        Args:
            within: Seconds to wait; by default what the timeouts allow.

        Raises:
            NotSettledError: It is not quiet in time; the message has its state.
            Exception: The program of a node failed with it.
        """
        longest = patience_of(self.timeouts, self.history.ttl) if within is None else check_seconds("within", within)
        await until_quiet(self._is_quiet, self.history.failures.raise_first, longest, self._describe)
        live = tuple(node.name for node in self.nodes if node.live)
        self.history.add(Settled(now(), live, tuple(self._witness.roster)))

    # Observations

    def head(self) -> Head | None:
        """Return the run's head in the backend."""
        return self._witness.head

    def _is_quiet(self) -> bool:
        live = [node for node in self.nodes if node.live]
        if not self.network.is_served(live):
            return not any(node.holds for node in live)
        return is_quiet(self.nodes, self._witness, self._shape, self.timeouts)

    def _describe(self) -> str:
        return f"{self.head()}; roster {self._witness.roster}; {self.nodes}"

    def _take(self, listing: Listing) -> None:
        """Record a commit."""
        if listing.complete:
            self._witness.forget()
        self._witness.take(now(), listing.entries)

    def returns(self, rendezvous: Rendezvous) -> None:
        """Record that a program returns to the barrier of its own accord.

        Such a program calls this before ``join()``. Otherwise, while the node is cut off, the history would show it
        holding a world that it has given up.
        """
        for node in self.nodes:
            if node.rendezvous is rendezvous and node.live:
                node.release("returns")

    def _fault(self, kind: str, *nodes: SimulatedNode) -> None:
        self.history.add(Fault(now(), kind, tuple(node.name for node in nodes)))
