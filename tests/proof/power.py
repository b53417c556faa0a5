"""``python -m tests.proof power``: losses of power under load, simulated, that lose no acknowledged commit.

Clients of a real server write to its log on a simulated disk. Each has two keys, which it writes in one commit, on the
condition that the last one that it knows of is still there. The power goes at any point of any write, sync or rename,
also of one that a server does while it starts. Syncs fail now and then, and snapshots are frequent. After each start of
the server somebody else reads everything: both keys of a client are from one commit, that commit is no older than the
last one that was acknowledged, and no commit was applied twice.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
import msgspec

from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Backend, Condition, Listing, Put, Token
from rendezvous_async.backends.table import log
from rendezvous_async.backends.tcp import serve
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.loop.clock import run
from rendezvous_async.testing.machine import Machine
from rendezvous_async.testing.wire import Wire

__all__ = ["LostCommitError", "Tally", "add_options", "lose_power", "main"]

ENDPOINT = "tcp://head:29400?is_host=false&connect_timeout=100000"
LOSSES = 25
"""Losses of power of one seed."""
WRITERS = 3


class LostCommitError(AssertionError):
    """An acknowledged commit is not there, or not as it was."""


class Tally(msgspec.Struct):
    """What happened."""

    losses: int = 0
    acknowledged: int = 0
    survived: int = 0

    def add(self, other: Tally) -> None:
        self.losses += other.losses
        self.acknowledged += other.acknowledged
        self.survived += other.survived


class Writer:
    """A client with two keys.

    Attributes:
        sent: The number of the last commit that was sent.
        acknowledged: The number of the last one that was acknowledged.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.sent = self.acknowledged = 0
        self._rng = random.Random(f"{seed} {name}")

    async def write(self) -> None:
        """Write until cancelled; a server whose disk fails says so, and then nothing is known of the last commit."""
        while True:
            with suppress(RendezvousConnectionError):
                async with open_backend(ENDPOINT, run_id="power", secret="secret") as backend:
                    entry = await backend.get(f"{self.name}/left")
                    known = None if entry is None else entry.token
                    while True:
                        known = await self._commit(backend, known)
                        await anyio.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.1)))

    async def _commit(self, backend: Backend, known: Token | None) -> Token:
        self.sent += 1
        value = f"{self.sent} ".encode() + bytes(self._rng.choice((0, 10, 600, 3000)))
        pair = [Put(f"{self.name}/{half}", value) for half in ("left", "right")]
        commit = await backend.commit(*pair, when=[Condition(pair[0].key, known)])
        if not commit.won:
            raise LostCommitError(f"commit {self.sent} of {self.name} was applied twice, or the one before was not")
        self.acknowledged = self.sent
        return commit.token


class Server:
    """A server with a log, on a machine that loses its power, and has it again."""

    def __init__(self, machine: Machine) -> None:
        self.started = 0
        self._machine = machine
        machine.disk.on_power_lost = self.lose
        self._start()

    def lose(self) -> None:
        self._machine.cut_power()
        self._machine.wire.later(0.01, self._boot)

    def _boot(self) -> None:
        self._machine.boot()
        self._start()

    def _start(self) -> None:
        self.started += 1
        self.task = self._machine.start(f"server#{self.started}", self._serve)

    async def _serve(self) -> None:
        while True:
            try:
                async with serve("head", 29400, data_dir="/data", secret="secret") as server:
                    await server.failed.wait()
            except RendezvousConnectionError:
                pass  # a sync failed
            await anyio.sleep(0.01)


async def _play(seed: int) -> Tally:
    rng = random.Random(f"power {seed}")
    wire = Wire(rng, Faults(delay=rng.choice((0.0001, 0.001, 0.01))))
    disk = wire.machine("head").disk
    server = Server(wire.machine("head"))
    writers = [Writer(f"writer-{number}", seed) for number in range(WRITERS)]
    tasks = [wire.machine(writer.name).start(writer.name, writer.write) for writer in writers]
    tally = Tally()

    async def read() -> None:
        async with open_backend(ENDPOINT, run_id="power", secret="secret") as backend:
            for _ in range(LOSSES):
                disk.latency = rng.choice((0.0001, 0.002, 0.02))
                disk.failing_syncs = rng.choice((0, 0, 0, 0, 1, 2))
                if rng.random() < 0.2:
                    await anyio.sleep(rng.random())
                    disk.on_power_lost()
                else:
                    disk.power_left = rng.randint(1, rng.choice((4, 40, 150)))
                    before = disk.losses
                    for _ in range(1000):
                        await anyio.sleep(0.01)
                        _check_tasks(server.task, *tasks)
                        if disk.losses > before:
                            break
                    else:
                        disk.on_power_lost()
                tally.survived += await _check(backend, server, writers)
                tally.losses += 1
            disk.mend()

    await wire.machine("reader").start("reader", read)
    _check_tasks(server.task, *tasks)
    for task in tasks:
        task.cancel()
    tally.acknowledged = sum(writer.acknowledged for writer in writers)
    return tally


def _check_tasks(*tasks: asyncio.Task[None]) -> None:
    """Raise what one of them has failed with."""
    for task in tasks:
        if task.done():
            task.result()


async def _check(backend: Backend, server: Server, writers: list[Writer]) -> int:
    """Read everything and compare; return how many commits survived that were not acknowledged."""
    least = {writer.name: writer.acknowledged for writer in writers}
    listing = await _list(backend, server)
    found = {entry.key: int((entry.value or b"").split()[0]) for entry in listing.entries}
    survived = 0
    for writer in writers:
        left, right = (found.get(f"{writer.name}/{half}", 0) for half in ("left", "right"))
        if left != right:
            raise LostCommitError(f"half of a commit of {writer.name} is there: {left} and {right}")
        if not least[writer.name] <= left <= writer.sent:
            raise LostCommitError(f"{writer.name} has {left}; acknowledged was {least[writer.name]}")
        survived += left > least[writer.name]
    return survived


async def _list(backend: Backend, server: Server) -> Listing:
    while True:
        _check_tasks(server.task)
        with suppress(RendezvousConnectionError), answer_within(10, "read everything"):  # the disk may fail once more
            return await backend.list("")


def lose_power(seed: int) -> Tally:
    """Play one seed.

    Raises:
        LostCommitError: The server has lost a commit.
    """
    with _frequent_snapshots(random.Random(seed).choice((3_000, 30_000, 512 * 1024))):
        return run(_play, seed, seed=seed, spin_limit=50_000)


@contextmanager
def _frequent_snapshots(bytes: int) -> Iterator[None]:
    before, log._SMALL = log._SMALL, bytes
    try:
        yield
    finally:
        log._SMALL = before


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--losses", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")


def main(options: argparse.Namespace) -> int:
    logging.disable(logging.CRITICAL)
    tally, begin, seed = Tally(), time.process_time(), options.first
    while tally.losses < options.losses:
        try:
            tally.add(lose_power(seed))
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
        seed += 1
    print(
        f"{tally.losses} losses of power, {tally.acknowledged} commits acknowledged, none lost; {tally.survived} reads "
        f"after a loss found one that was not acknowledged yet; {time.process_time() - begin:.0f} s of CPU"
    )
    return 0
