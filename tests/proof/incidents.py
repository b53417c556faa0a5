"""Three incidents, simulated, and what the history says of them: ``python -m tests.proof incidents`` prints them.

``docs/incidents.md`` has the same output with an explanation; a test compares the two.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

import anyio

from rendezvous_async.core.goodput import goodput_of
from rendezvous_async.core.history import HistoryRecord, Kind
from rendezvous_async.core.retelling import Retelling, sum_up
from rendezvous_async.errors import RendezvousClosedError
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.cluster import Cluster
from rendezvous_async.testing.loop.clock import run
from rendezvous_async.testing.programs import elastic

__all__ = ["INCIDENTS", "add_options", "main", "play", "tell"]

TIMEOUTS = Timeouts(join=3600, last_call=30, regroup=3, close=5)


async def flapping_node() -> list[HistoryRecord]:
    """A switch port that fails now and then: one machine of four is cut off again and again."""
    async with Cluster(4, 3, timeouts=TIMEOUTS) as cluster:
        await cluster.join_all()
        for minutes in (11, 4, 2):
            await anyio.sleep(60 * minutes)
            cluster.partition([0, 1, 3])
            await anyio.sleep(40)
            cluster.heal()
        await anyio.sleep(60)
        cluster.leave(2)
        await anyio.sleep(3600)
        await cluster.close(0, "training done")
        return cluster._witness.records


async def full_disk() -> list[HistoryRecord]:
    """A machine whose disk is full: its workers fail at each checkpoint, until its launcher gives up."""

    async def launcher(rendezvous: Rendezvous) -> None:
        if rendezvous.node != "node-1":
            await elastic(rendezvous)
            return
        for _ in range(4):  # Workers fail after ten minutes; three restarts are allowed.
            try:
                world = await rendezvous.join()
            except RendezvousClosedError:
                return
            with anyio.move_on_after(600):
                await world.changed()
            for node in cluster.nodes:
                if node.name == rendezvous.node:
                    cluster.returns(rendezvous)

    async with Cluster(3, 2, timeouts=TIMEOUTS, program=launcher) as cluster:
        await cluster.join_all()
        await anyio.sleep(2 * 3600)
        await cluster.close(0, "training done")
        return cluster._witness.records


async def slow_start() -> list[HistoryRecord]:
    """One machine of four pulls its image for nine minutes, and the job needs all four."""
    async with Cluster(4, 4, timeouts=TIMEOUTS) as cluster:
        for index in range(3):
            cluster.start(index)
        await anyio.sleep(9 * 60)
        await cluster.join_all()
        await anyio.sleep(1800)
        await cluster.close(0, "training done")
        return cluster._witness.records


INCIDENTS: dict[str, Callable[[], Awaitable[list[HistoryRecord]]]] = {
    "a flapping node": flapping_node,
    "a full disk": full_disk,
    "a slow start": slow_start,
}


def play(name: str) -> list[HistoryRecord]:
    """Play an incident, and return the history."""
    incident = INCIDENTS[name]

    async def scenario() -> list[HistoryRecord]:
        return await incident()

    return run(scenario, seed=7)


def tell(records: list[HistoryRecord]) -> Iterator[str]:
    """Yield what ``rdzv history`` and ``rdzv history --goodput`` print."""
    retelling = Retelling()
    for record in records:
        yield from retelling.lines(record, time.strftime("%H:%M:%S", time.gmtime(record.at)))
    yield ""
    yield from sum_up("simulated", goodput_of(records), sum(record.kind == Kind.FORMED for record in records))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: there are none."""


def main(_: argparse.Namespace) -> int:
    """Run the command."""
    logging.disable(logging.CRITICAL)
    for name in INCIDENTS:
        print(f"### {name}\n")
        for line in tell(play(name)):
            print(line)
        print()
    return 0
