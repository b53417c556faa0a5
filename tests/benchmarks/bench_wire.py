"""``python -m tests.benchmarks.bench_wire --nodes 1000``: what many nodes cost the real server, in virtual time.

All nodes and the server are real code on a ``Wire``, in one process. The server is as slow as it is: while it works,
virtual time passes for it, and what arrives meanwhile waits for its next turn. The nodes work in no time.

For each phase it prints how long it took in virtual seconds, the CPU time of the server's loop and of its disk thread,
the requests that it got and the messages that it sent for each node, and its longest turn, the longest time in which
its loop did not look at its sockets, with what took it. CPU is also given without what the same nodes cost at rest in
as long a time. What the simulation itself does in the server's place (the wire's end of a write) is counted, as the
kernel's work would be; what the test looks at is not. The memory is that of everything, nodes included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple
from unittest import mock

import anyio

from rendezvous_async import Rendezvous, Timeouts
from rendezvous_async.backends.tcp import Limits
from rendezvous_async.backends.tcp.server.requests import ANSWERS
from rendezvous_async.backends.tcp.server.turns import Turns
from rendezvous_async.core.codec import decode
from rendezvous_async.core.rules import Change
from rendezvous_async.core.state import COORDINATOR, Post
from rendezvous_async.testing import Cluster, Faults, service
from rendezvous_async.testing.commits import RunCommits
from rendezvous_async.testing.disk import DiskWorker
from rendezvous_async.testing.loop import clock
from rendezvous_async.testing.loop.describe import describe_callback
from rendezvous_async.testing.loop.groups import GROUP
from rendezvous_async.testing.service import TcpNetwork
from rendezvous_async.testing.transport import WireTransport
from rendezvous_async.testing.wire import Wire

Ts = TypeVarTuple("Ts")


class Meter:
    """What the server has done since the last reset."""

    def __init__(self) -> None:
        self.group: Hashable = None
        self.rest = 0.0
        self.reset()

    def reset(self) -> None:
        self.cpu = self.disk = self.longest = self.turn = self.since = 0.0
        self.parts: list[tuple[float, Callable[..., object]]] = []
        self.longest_parts: list[str] = []
        self.sent = self.sent_bytes = 0
        self.requests: Counter[str] = Counter()

    def pause(self) -> float:
        """Return the time until which the running callback was measured; nothing is, until it is set again."""
        now = time.thread_time()
        self.turn += now - self.since
        self.since = 0.0
        return now


METER = Meter()


class MeteredLoop(clock.VirtualLoop):
    """Measures the callbacks of the server's process, and lets it be busy for as long."""

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(_metered(callback, context), *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, _metered(callback, context), *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(_metered(callback, context), *args, context=context)

    def _turn(self) -> None:
        METER.turn = 0.0
        METER.parts.clear()
        super()._turn()
        if METER.turn:
            METER.cpu += METER.turn
            if METER.turn > METER.longest:
                METER.longest = METER.turn
                METER.parts.sort(key=lambda part: -part[0])
                METER.longest_parts = [f"{took * 1e3:.0f} ms {name_of(call)}" for took, call in METER.parts[:3]]
            if not self.is_killed(METER.group):
                self.freeze(METER.group)
                self.call_later(METER.turn, self.thaw, METER.group)


def _metered(callback: Callable[[*Ts], object], context: Context | None) -> Callable[[*Ts], object]:
    group = GROUP.get() if context is None else context.get(GROUP)
    if not str(group).startswith("server#") or isinstance(getattr(callback, "__self__", None), clock.VirtualLoop):
        return callback
    inner = callback.func if isinstance(callback, partial) else callback
    on_disk = isinstance(getattr(inner, "__self__", None), DiskWorker)

    def metered(*args: *Ts) -> None:
        before = METER.turn
        METER.group = group
        METER.since = time.thread_time()
        try:
            callback(*args)
        finally:
            METER.pause()
            took = METER.turn - before
            if on_disk:
                METER.turn = before
                METER.disk += took
            elif took > 0.001:
                METER.parts.append((took, callback))

    return metered


def name_of(callback: Callable[..., object]) -> str:
    """Name a callback of the server, without its module."""
    return describe_callback(callback).rpartition("rendezvous_async.")[2]


def unmetered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the test that the server's code calls: its time is not the server's."""

    def call(*args: Any) -> Any:
        is_measured = bool(METER.since)
        if is_measured:
            METER.pause()
        try:
            return function(*args)
        finally:
            if is_measured:
                METER.since = time.thread_time()

    return call


def counted(kind: str, answer: Callable[..., None]) -> Callable[..., None]:
    """Return what answers a request, and counts it."""

    def count(*args: Any) -> None:
        METER.requests[kind] += 1
        answer(*args)

    return count


def server_now() -> float:
    """Return the time as the server's slices see it: virtual, and what it has spent of this turn."""
    running = time.thread_time() - METER.since if METER.since else 0.0
    return asyncio.get_running_loop().time() + METER.turn + running


class CountingWire(Wire):
    """Counts what the server gets and sends."""

    def carry(self, sender: WireTransport, item: Any) -> None:
        if not sender.dialled:
            METER.sent += 1
            METER.sent_bytes += len(item or b"")
        super().carry(sender, item)


async def hold(rendezvous: Rendezvous) -> None:
    """Join again and again."""
    while True:
        world = await rendezvous.join()
        if await world.changed() is Change.CLOSED:
            return


async def measure(nodes: int) -> None:
    """Do to a cluster what may happen to it, and print a line for each."""
    gather = 2 + nodes / 2000  # so long that all can come: else this measures several rounds
    timeouts = Timeouts(join=600, last_call=gather, regroup=gather, heartbeat=10, close=30)
    cluster = Cluster(
        nodes,
        nodes // 3,
        faults=Faults(delay=0.001),
        program=hold,
        timeouts=timeouts,
        keep_alive_interval=5.0,
        max_writes=16_384,
        server="log",
    )
    async with cluster:
        network = cluster.network
        assert isinstance(network, TcpNetwork)
        network._limits = Limits(connections=4 * nodes, sessions=4 * nodes, keys=64 * nodes, listed=8 * nodes)
        for index in range(nodes):
            cluster.start(index)
        await phase("a world is formed", cluster, full(cluster, nodes))
        forming, begin = METER.cpu, anyio.current_time()
        await phase("10 s of nothing", cluster, lambda: anyio.current_time() >= begin + 10)
        METER.rest = METER.cpu / nodes / 10
        print(f"forming took {(forming / nodes - METER.rest * begin) * 1e6:.0f} us/node more than at rest", flush=True)
        coordinator = next(i for i, node in enumerate(cluster.nodes) if node.name == coordinator_of(cluster))
        cluster.crash(coordinator)
        await phase("another coordinator", cluster, lambda: coordinator_of(cluster) != cluster.nodes[coordinator].name)
        await phase("without the lost one", cluster, full(cluster, nodes - 1))
        others = [index for index in range(nodes) if index != coordinator]
        for index in random.Random(1).sample(others, nodes // 10):
            cluster.crash(index)
        rest = nodes - 1 - nodes // 10
        await phase("a tenth is lost at once", cluster, full(cluster, rest))
        half = [index for index in range(nodes) if index % 2 or not cluster.nodes[index].live]
        left = sum(cluster.nodes[index].live for index in half)
        cluster.partition(half)
        await phase("half of them are cut off", cluster, full(cluster, left))
        cluster.heal()
        await phase("and are back", cluster, full(cluster, rest))
        cluster.lose_power()
        begin = anyio.current_time()
        await phase("the power was lost, 30 s", cluster, lambda: anyio.current_time() >= begin + 30)
        await phase("and all are in", cluster, full(cluster, rest))


def full(cluster: Cluster, size: int) -> Callable[[], bool]:
    """Return what tells whether a round of this size is held by all of its members."""

    def look() -> bool:
        head = cluster.head()
        if head is None or head.size != size or head.waiting or head.lost:
            return False
        return sum(node.holds is not None and node.holds.round == head.round for node in cluster.nodes) == size

    return look


def coordinator_of(cluster: Cluster) -> str:
    """Return the node that has the post, as the server has it."""
    entry = cluster._witness.entries.get(COORDINATOR)
    return "" if entry is None else decode(Post, entry.value, COORDINATOR).node


async def phase(what: str, cluster: Cluster, done: Callable[[], bool]) -> None:
    """Wait until it is over, and print what it took."""
    METER.reset()
    begin, cpu = anyio.current_time(), time.process_time()
    told = time.perf_counter()
    while not done():
        await anyio.sleep(0.05)
        if time.perf_counter() > told + 60:
            told = time.perf_counter()
            at, keys = anyio.current_time() - begin, len(cluster._witness.entries)
            print(f"  {what}: {at:.1f} s, {keys} keys, {dict(METER.requests)}", file=sys.stderr, flush=True)
        if anyio.current_time() > begin + 300:
            print(f"{what}: not within 300 s: {cluster.head()}", flush=True)
            return
    live = sum(node.live for node in cluster.nodes)
    more = max(0.0, METER.cpu / live - METER.rest * (anyio.current_time() - begin))
    requests = sum(METER.requests.values()) - METER.requests["Renew"]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / live
    print(
        f"{what:26} {anyio.current_time() - begin:6.2f} s virtual; server {METER.cpu:6.2f} s CPU, "
        f"{METER.cpu / live * 1e6:5.0f} us/node, {more * 1e6:4.0f} more than at rest, disk thread {METER.disk:5.2f} s; "
        f"per node {requests / live:5.1f} requests, {METER.requests['Renew'] / live:4.1f} keep-alives, "
        f"{METER.sent / live:5.1f} writes of {METER.sent_bytes / live:6.0f} B in all; "
        f"longest turn {METER.longest * 1000:5.1f} ms: {', '.join(METER.longest_parts) or 'many'}; "
        f"{rss:4.0f} KiB/node, {time.process_time() - cpu:.0f} s of CPU in all",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_wire", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    make = Turns.__init__

    def make_metered(self: Turns) -> None:
        make(self)
        self.now = server_now

    with (
        mock.patch.object(clock, "VirtualLoop", MeteredLoop),
        mock.patch.object(service, "Wire", CountingWire),
        mock.patch.object(Turns, "__init__", make_metered),
        mock.patch.object(RunCommits, "_look", unmetered(RunCommits._look)),
        mock.patch.object(RunCommits, "_release", unmetered(RunCommits._release)),
        mock.patch.dict(ANSWERS, {kind: counted(kind.__name__, answer) for kind, answer in ANSWERS.items()}),
        mock.patch.object(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    ):
        gc.disable()  # a collection looks at all nodes, and would be counted as the server's
        clock.run(measure, options.nodes)


if __name__ == "__main__":
    main()
