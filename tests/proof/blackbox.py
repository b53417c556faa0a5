"""``python -m tests.proof history``: the run's own history names the right machine and the right cause of each fault.

A simulated run on the wire, with the real server, is disturbed again and again: processes are killed, frozen, cut off
or started anew, nodes leave or are evicted, one at a time or several at once, the coordinator among them; now and then
the server is restarted from its log. What is injected is known. After each fault the history is read as a person would,
and each node that it was done to must be named as gone, with a cause that fits. A node that nothing was done to must
not be named: that would be invented.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import anyio

from rendezvous_async.admin import evict_node
from rendezvous_async.causes import Cause
from rendezvous_async.core.goodput import goodput_of
from rendezvous_async.core.history import HistoryRecord, Kind
from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.cluster import Cluster
from rendezvous_async.testing.loop.clock import run

__all__ = ["FITTING", "Ledger", "add_options", "disturb", "main"]

NODES = 6
FAULTS = 20
"""Faults of one seed."""
ENOUGH = 0.99
TTL = 5.0

FITTING: dict[str, set[str]] = {
    "killed": {Cause.CUT, Cause.SILENT},
    "started anew": {"replaced", Cause.CUT},
    "frozen": {Cause.SILENT},
    "cut off": {Cause.SILENT, Cause.CUT},
    "left": {Cause.LEFT},
    "evicted": {Cause.EVICTED},
    "stalled": {Cause.STALLED, Cause.SILENT},
}
"""What the history may say of a node that this was done to."""


class Ledger:
    """How often the history was right.

    Attributes:
        right: By what was done: named with a cause that fits.
        unknown: Named, without a cause.
        wrong: Named with another cause, or not named.
        invented: Nodes that were named though nothing was done to them.
        named: The least share of a run's time that has a name.
    """

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.invented: list[str] = []
        self.named = 1.0

    def add(self, other: Ledger) -> None:
        """Add what another seed has shown."""
        self.right += other.right
        self.unknown += other.unknown
        self.wrong += other.wrong
        self.invented += other.invented
        self.named = min(self.named, other.named)

    @property
    def share(self) -> float:
        """How much of what was done is told as it was."""
        right = self.right.total()
        return right / ((right + self.unknown.total() + self.wrong.total()) or 1)

    def judge(self, what: str, victims: Iterable[str], told: Iterable[HistoryRecord], seed: int) -> None:
        """Compare what was done to some nodes with the records that were written since."""
        named: dict[str, str] = {}
        for record in told:
            back = record.back.named if record.kind == Kind.FORMED else ()
            for who in (*record.gone.named, *back):
                if who.cause != "spare":
                    named.setdefault(who.node, who.cause)
        victims = set(victims)
        for node in victims:
            if node not in named or (named[node] and named[node] not in FITTING[what]):
                self.wrong[what] += 1
                logging.getLogger(__name__).info("seed %d: %s was %s: %s", seed, node, what, named.get(node))
            elif not named[node]:
                self.unknown[what] += 1
            else:
                self.right[what] += 1
        self.invented += [f"seed {seed}: {node} {named[node]}" for node in named.keys() - victims]

    def table(self) -> str:
        """Return the figures as a table."""
        rows = [f"{'what was done':<14} {'times':>6} {'right':>6} {'unknown':>8} {'wrong':>6}"]
        for what in FITTING:
            right, unknown, wrong = self.right[what], self.unknown[what], self.wrong[what]
            rows.append(f"{what:<14} {right + unknown + wrong:>6} {right:>6} {unknown:>8} {wrong:>6}")
        rows.append(f"{100 * self.share:.2f} % right, {len(self.invented)} invented")
        rows.append(f"at least {100 * self.named:.2f} % of the time of each run has a name")
        return "\n".join(rows)


def disturb(seed: int) -> Ledger:
    """Play one seed, and return what its history said."""
    return run(partial(_disturb, seed), seed=seed)


async def _disturb(seed: int) -> Ledger:
    rng, ledger, read = random.Random(f"black box {seed}"), Ledger(), 0
    timeouts = Timeouts(join=600, last_call=2, regroup=1, close=5)
    cluster = Cluster(NODES, 1, seed=seed, timeouts=timeouts, server=rng.choice(("memory", "log")))
    async with cluster:
        await cluster.join_all()
        for _ in range(FAULTS):
            if cluster.server == "log" and rng.random() < 0.2:
                cluster.restart_server()
                await anyio.sleep(rng.choice((0.0, 3.0)))
            what = rng.choice(tuple(FITTING))
            victims = rng.sample(range(NODES), 1 if what == "evicted" else rng.choice((1, 1, 2, 3)))
            read = _last(cluster._witness.records, read)
            await _do(cluster, what, victims, rng)
            names = [cluster.nodes[index].name for index in victims]
            ledger.judge(what, names, [record for record in cluster._witness.records if record.n > read], seed)
            cluster.heal()
            await cluster.join_all()
        ledger.named = goodput_of(cluster._witness.records).named
    return ledger


def _last(records: Iterable[HistoryRecord], before: int) -> int:
    return max((record.n for record in records), default=before)


async def _do(cluster: Cluster, what: str, victims: list[int], rng: random.Random) -> None:
    """Do something to some nodes, and wait until the others have formed a round again."""
    each: dict[str, Callable[[int], None]] = {
        "killed": cluster.crash,
        "started anew": cluster.restart,
        "frozen": cluster.pause,
        "left": cluster.leave,
        "stalled": cluster.pause,
    }
    if what == "cut off":
        cluster.partition(set(range(NODES)) - set(victims))
    elif what == "evicted":
        (index,) = victims
        await cluster.network.visit(cluster.nodes[index], partial(evict_node, node=cluster.nodes[index].name))
    else:
        for index in victims:
            each[what](index)
    if what == "stalled":  # It wakes up before its time is over, but after it must count itself out.
        await anyio.sleep(TTL * 0.79)
    elif what == "frozen":
        await anyio.sleep(TTL * rng.uniform(1.3, 3))
    if what in ("stalled", "frozen"):
        for index in victims:
            cluster.resume(index)
    await anyio.sleep(TTL * 2)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many runs (100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first (0)")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    logging.getLogger("rendezvous_async").setLevel(logging.CRITICAL)
    ledger = Ledger()
    for seed in range(options.seed, options.seed + options.seeds):
        ledger.add(disturb(seed))
    print(ledger.table())
    for each in ledger.invented[:20]:
        print(each)
    return 0 if ledger.share >= ENOUGH and not ledger.invented and ledger.named >= ENOUGH else 1
