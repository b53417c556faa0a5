"""Nodes, clients and watches on a cluster of three while its members are killed and frozen; then everything is checked.

Nodes go through ``connect()`` and ``join()``, each with a client of its own; other clients read, write and watch keys
of the same run. What they saw and what etcd itself says was committed make one history, which must keep every promise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

import rendezvous_async as rdzv
from rendezvous_async.aio.signal import Notice
from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Delete, Entry, Put
from rendezvous_async.errors import RendezvousConnectionError, RendezvousFencedError, RendezvousSessionError
from rendezvous_async.node.events import Event, EventKind
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.testing.checks import check
from rendezvous_async.testing.conformance.check import WatchReader
from rendezvous_async.testing.etcd import EtcdCluster, EtcdMember
from rendezvous_async.testing.history import Believed, Fault, History, Left, Released, Settled
from rendezvous_async.testing.linearizability import Operation, check_linearizable
from rendezvous_async.testing.witness import Witness
from tests.backends.registers import Client
from tests.proof.etcd_history import EtcdHistory

__all__ = ["FAULTS", "Drill", "play"]

RUN = "drill"
NAMESPACE = "/rendezvous_async/"
SILENCE = 2.0
"""Seconds without a word after which another member is asked for its history; there is always somebody who writes."""
OPTIONS: dict[str, Any] = {"call_timeout": 1, "connect_timeout": 60}
INTERVAL, ATTEMPTS = 1.0, 6
SETTLED_WITHIN = 120
"""Seconds that a cluster may need to come to itself, on a machine that has much else to do."""
PACE = 0.005
"""Seconds between two calls of a client, so that a history stays short enough to be searched."""

MemberFault = Callable[[EtcdCluster, random.Random], Coroutine[Any, Any, None]]


async def kill_leader(cluster: EtcdCluster, rng: random.Random) -> None:
    await _take_down(await to_thread.run_sync(cluster.leader), rng)


async def kill_follower(cluster: EtcdCluster, rng: random.Random) -> None:
    await _take_down(rng.choice(await to_thread.run_sync(cluster.followers)), rng)


async def freeze_leader(cluster: EtcdCluster, rng: random.Random) -> None:
    await _hold(await to_thread.run_sync(cluster.leader), rng)


async def freeze_follower(cluster: EtcdCluster, rng: random.Random) -> None:
    await _hold(rng.choice(await to_thread.run_sync(cluster.followers)), rng)


FAULTS: dict[str, MemberFault] = {
    "kill the leader": kill_leader,
    "kill a follower": kill_follower,
    "freeze the leader": freeze_leader,
    "freeze a follower": freeze_follower,
}


async def _take_down(member: EtcdMember, rng: random.Random) -> None:
    """Kill a member with SIGKILL, and start it again a little later."""
    await to_thread.run_sync(member.kill)
    await anyio.sleep(rng.random())
    member.start()


async def _hold(member: EtcdMember, rng: random.Random) -> None:
    """Stop a member for longer than an election and a call take."""
    member.freeze()
    try:
        await anyio.sleep(1.5 + rng.random())
    finally:
        member.thaw()


class Node:
    """One node of the drill; it holds every world that it gets until that changes, and joins again."""

    def __init__(self, name: str, drill: Drill) -> None:
        self.name = name
        self.world: World | None = None
        self._drill = drill
        self._scope = anyio.CancelScope()
        self._gone = anyio.Event()
        self._rendezvous: Rendezvous | None = None

    async def live(self) -> None:
        """Be a node until ``leave()``."""
        low, high = self._drill.history.min_nodes, self._drill.history.max_nodes
        with self._scope:
            async with rdzv.connect(
                self._drill.cluster.endpoint,
                run_id=RUN,
                nodes=(low, high),
                timeouts=rdzv.Timeouts(join=SETTLED_WITHIN, last_call=1),
                keep_alive_interval=INTERVAL,
                keep_alive_max_attempt=ATTEMPTS,
                node=self.name,
                **OPTIONS,
            ) as self._rendezvous:
                self._rendezvous.listen(self._heard)
                while True:
                    world = await self._rendezvous.join()
                    # If the round is over, or etcd is in trouble, it is refused, or nobody knows.
                    with suppress(RendezvousFencedError, RendezvousConnectionError, RendezvousSessionError):
                        await world.store.set(self.name, b"here")
                    await world.changed()
        self._release("end")
        self._gone.set()

    async def leave(self) -> None:
        """Leave the run, and wait until that is done."""
        self._drill.add(lambda now: Fault(now, "leave", (self.name,)))
        self._scope.cancel()
        await self._gone.wait()

    def _heard(self, event: Event) -> None:
        match event.kind:
            case EventKind.JOINED:
                assert self._rendezvous is not None
                assert self._rendezvous.world is not None
                self._release("joined again")
                self.world = world = self._rendezvous.world
                token = str(world.token)
                self._drill.add(lambda now: Believed(now, self.name, world.round, world.rank, world.size, token))
            case EventKind.LEFT:
                self._release(event.kind)
                self._drill.add(lambda now: Left(now, self.name))
            case EventKind.ARRIVED | EventKind.EVICTED | EventKind.CLOSED | EventKind.SESSION_LOST:
                self._release(event.kind)
            case _:
                pass

    def _release(self, why: str) -> None:
        if self.world is not None:
            held, self.world = self.world.round, None
            self._drill.add(lambda now: Released(now, self.name, held, why))


class Drill:
    """The nodes, the clients and what happened; ``judge()`` tells whether every promise was kept.

    Attributes:
        stopped: Whether clients shall end.
    """

    def __init__(self, cluster: EtcdCluster, min_nodes: int, max_nodes: int) -> None:
        self.cluster = cluster
        self.history = History(min_nodes, max_nodes, INTERVAL * ATTEMPTS)
        self.nodes: dict[str, Node] = {}
        self.clients: list[Client] = []
        self.operations: list[Operation] = []
        self.watched: list[WatchReader] = []
        self.chronicle = EtcdHistory(cluster.members, NAMESPACE, self._committed_in_thread, SILENCE)
        self.written: dict[tuple[str, int], bytes | None] = {}
        """The value that a commit gave to a key, by key and revision; None if it deleted it."""
        self._witness = Witness(self.history)
        self._news = Notice()
        self.stopped = False
        self._started = 0
        self._pending: list[Sequence[Entry]] = []
        self._wake: Callable[[], object] = lambda: None

    def bind(self, wake: Callable[[], object]) -> None:
        """Have ``wake`` called, in the chronicle's thread, when there is something for ``take_commits()``."""
        self._wake = wake

    def add(self, make: Callable[[float], object]) -> None:
        """Add a record with the present time to the history, and wake the waiters."""
        self.history.add(make(anyio.current_time()))  # type: ignore[arg-type]
        self._news.fire()

    def _committed_in_thread(self, revision: int, entries: Sequence[Entry]) -> None:
        self.written.update({(entry.key, revision): entry.value for entry in entries})
        self._pending.append(entries)
        self._wake()

    def take_commits(self) -> None:
        """Take what the chronicle has found."""
        prefix = f"{NAMESPACE}{RUN}/"
        while self._pending:
            entries = [entry for entry in self._pending.pop(0) if entry.key.startswith(prefix)]
            self._witness.take(anyio.current_time(), [entry.relative_to(prefix) for entry in entries])
        self._news.fire()

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for something to be so."""
        with anyio.move_on_after(SETTLED_WITHIN):
            while not holds():
                await self._news.wait()
            return
        raise AssertionError(f"no {what} in {SETTLED_WITHIN} s: {self._witness.head}; {self._witness.roster}")

    def arrived(self) -> int:
        """How many nodes have a record."""
        return len(self._witness.roster)

    def settled(self) -> bool:
        """Whether all nodes hold the round that etcd says is current."""
        head = self._witness.head
        rounds = {None if node.world is None else node.world.round for node in self.nodes.values()}
        alive = self._witness.roster == sorted(self.nodes)
        return head is not None and alive and head.size == len(self.nodes) and rounds == {head.round}

    async def settle(self) -> None:
        """Wait until a round has formed with all nodes in it, and write down who is there."""
        await self.until("round of all nodes", self.settled)
        names = tuple(sorted(self.nodes))
        self.add(lambda now: Settled(now, names, tuple(self._witness.roster)))

    async def form(self, group: TaskGroup, fault: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a round form of new nodes, and do it to the cluster when the first of them has arrived."""
        await self.dismiss()
        self.start(group)
        await self.until("first node at the barrier", lambda: self.arrived() == 1)
        async with anyio.create_task_group() as trouble:
            trouble.start_soon(fault)
            for _ in range(self.history.max_nodes - 1):
                self.start(group)
        await self.settle()

    async def hold(self, group: TaskGroup, fault: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it to the cluster while a round is held, which may end it or not; then there is a round."""
        await fault()
        await self.settle()

    async def form_again(self, group: TaskGroup, fault: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let one node go and another one come, and do it to the cluster meanwhile."""
        async with anyio.create_task_group() as trouble:
            trouble.start_soon(fault)
            await self.nodes.pop(min(self.nodes)).leave()
            self.start(group)
        await self.settle()

    def start(self, group: TaskGroup) -> None:
        """Start one more node."""
        self._started += 1
        node = Node(f"node-{self._started:03}", self)
        self.nodes[node.name] = node
        group.start_soon(node.live)

    async def dismiss(self) -> None:
        """Let all nodes leave."""
        while self.nodes:
            await self.nodes.pop(min(self.nodes)).leave()
        await self.until("empty roster", lambda: not self.arrived())

    async def call(self, client: Client) -> None:
        """Let a client make calls until the drill is over."""
        while not self.stopped:
            await client.step()
            await anyio.sleep(PACE)

    async def come_and_go(self, backend: Backend) -> None:
        """Put a key and delete it, again and again, for the watches; it ends deleted."""
        number = 0
        while not self.stopped:
            number += 1
            await backend.commit(Put("load/coming", b"%d" % number))
            await backend.commit(Delete("load/coming"))
            await anyio.sleep(PACE)

    async def look_on(self, backend: Backend, *names: str) -> None:
        """Watch until the last key of the drill is there."""
        async with backend.watch(*names) as watch:
            reader = WatchReader(watch, *names, patience=SETTLED_WITHIN)
            self.watched.append(reader)
            await reader.until("the end of the drill", lambda view: "load/end" in view)

    async def catch_up(self) -> None:
        """Wait until the chronicle has everything."""
        await to_thread.run_sync(self.chronicle.wait_for, await to_thread.run_sync(self.cluster.revision))
        self.take_commits()

    def judge(self) -> None:
        """Check all that was seen against what etcd says, and against the guarantees."""
        check(self.history)
        check_linearizable(self.operations)
        prefix = f"{NAMESPACE}{RUN}/"
        written = self.written
        for key, value, revision in (done for client in self.clients for done in client.acknowledged):
            assert written.get((prefix + key, revision)) == value, f"{key}={value!r} at {revision} was lost"
        stands = {key: entry.value for key, entry in self._witness.entries.items()}
        for reader in self.watched:
            for entry in (entry for listing in reader.listings for entry in listing.entries if entry.value is not None):
                true = written.get((prefix + entry.key, entry.token.revision))
                assert entry.value == true, f"a watch brought {entry}, and etcd says {true!r}"
            load = {key: value for key, value in reader.view.items() if key.startswith("load/")}
            true_load = {key: value for key, value in stands.items() if key.startswith("load/")}
            assert load == true_load, f"a watch ended with {load}, and etcd holds {true_load}"


async def play(cluster: EtcdCluster, seed: int, faults: Sequence[str], clients: int = 2) -> Drill:
    """Play a drill: a fault while a round forms, one while it holds, one while it re-forms; and so on, with new nodes.

    Args:
        cluster: Of three members.
        seed: Of everything random.
        faults: What to do to the cluster, in this order.
        clients: How many make calls meanwhile.
    """
    rng = random.Random(seed)
    drill = Drill(cluster, min_nodes=2, max_nodes=4)
    drill.bind(partial(asyncio.get_running_loop().call_soon_threadsafe, drill.take_commits))
    async with AsyncExitStack() as stack:
        drill.chronicle.start()
        stack.push_async_callback(to_thread.run_sync, drill.chronicle.stop)
        backends = [
            await stack.enter_async_context(open_backend(cluster.endpoint, run_id=RUN, **OPTIONS))
            for _ in range(clients)
        ]
        async with anyio.create_task_group() as nodes:
            async with anyio.create_task_group() as watches:
                for backend in backends:
                    watches.start_soon(drill.look_on, backend, "load/")
                    watches.start_soon(drill.look_on, backend, "state", "nodes/", "load/")
                async with anyio.create_task_group() as writers:
                    writers.start_soon(drill.come_and_go, backends[0])
                    for number, backend in enumerate(backends):
                        client = Client(number, backend, random.Random(rng.random()), drill.operations, "load/")
                        drill.clients.append(client)
                        writers.start_soon(drill.call, client)
                    for number, fault in enumerate(faults):
                        when = (drill.form, drill.hold, drill.form_again)[number % 3]
                        await when(nodes, partial(FAULTS[fault], cluster, rng))
                        await to_thread.run_sync(partial(cluster.wait_ready, timeout=SETTLED_WITHIN))
                    drill.stopped = True
                await backends[0].commit(Put("load/end", b""))
            await drill.dismiss()
        await drill.catch_up()
    drill.judge()
    return drill
