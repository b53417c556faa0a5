"""A fleet: worker processes with some nodes each, told what to do line by line, all at once.

A worker is a module of ``workers``. It reads one command a line and answers each with one JSON object; times in it are
of the machine's monotonic clock, which all processes share, so a moment in one worker can be compared with one in
another.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["PATIENCE", "Fleet", "Process", "check_world", "fleet", "server", "spread", "start"]

PATIENCE = 120.0


class Process:
    """A worker or a server in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def answer(self, patience: float = PATIENCE) -> Any:
        """Return the next line that it prints, as JSON; TimeoutError if none comes in time."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), patience)
        if not line:
            raise ConnectionError("a worker died; what it said is above")
        return json.loads(line)

    def tell(self, command: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())

    async def ask(self, command: str, patience: float = PATIENCE) -> Any:
        """Send a command and return the answer."""
        self.tell(command)
        return await self.answer(patience)

    async def kill(self) -> None:
        """End it, by SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()

    def cpu(self) -> float:
        """Return how many seconds of CPU time it has used, on all its threads."""
        total = 0
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def memory(self) -> int:
        """Return how many bytes of memory it has in use."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Fleet:
    """Several workers that get the same commands."""

    def __init__(self, workers: Sequence[Process]) -> None:
        self.workers = workers

    async def ask(self, command: str, patience: float = PATIENCE) -> list[Any]:
        """Send a command to all and return all answers."""
        for worker in self.workers:
            worker.tell(command)
        return [await worker.answer(patience) for worker in self.workers]

    async def time(self, command: str, patience: float = PATIENCE) -> float | None:
        """Return the seconds from sending a command to the last worker's ``done``; None if it takes too long."""
        begin = time.monotonic()
        try:
            answers = await self.ask(command, patience)
        except TimeoutError:
            return None
        return float(max(answer["done"] for answer in answers)) - begin

    async def form(self, size: int, patience: float = PATIENCE) -> float | None:
        """Return the seconds until all have joined one world of this size; None if it takes too long.

        AssertionError if they hold anything but the ranks of one world.
        """
        begin = time.monotonic()
        try:
            answers = await self.ask("join", patience)
        except TimeoutError:
            return None
        check_world(answers, size)
        return float(max(answer["done"] for answer in answers)) - begin


def check_world(answers: Sequence[Any], size: int) -> None:
    """See to it that all joins, with these answers of workers, were into one world."""
    ranks = sorted(rank for answer in answers for rank in answer["ranks"])
    assert ranks == list(range(size)), f"a world of {size} with the ranks {ranks[:20]}..."
    worlds = {tuple(world) for answer in answers for world in answer["worlds"]}
    assert len(worlds) == 1, f"worlds of different rounds and sizes: {sorted(worlds)}"


async def start(module: str, *args: object) -> Process:
    """Start a module of ``workers``."""
    return Process(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"tests.benchmarks.workers.{module}", *map(str, args)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},  # torch warns of a missing NumPy, in every process
        )
    )


@asynccontextmanager
async def server(module: str, *args: object) -> AsyncIterator[tuple[Process, str]]:
    """Have a server in a process of its own, and where it listens."""
    process = await start(module, *args)
    try:
        address = await process.answer()
        assert await process.answer() == "ready"
        yield process, str(address)
    finally:
        await process.kill()


def spread(nodes: int, processes: int) -> list[int]:
    """Return how many of the nodes each process gets."""
    processes = min(nodes, processes)
    return [nodes // processes + (number < nodes % processes) for number in range(processes)]


@asynccontextmanager
async def fleet(module: str, nodes: int, *args: object, processes: int = 4) -> AsyncIterator[Fleet]:
    """Have this many nodes in up to ``processes`` workers; each is told how many it has, then ``args``."""
    workers: list[Process] = []
    try:
        for count in spread(nodes, processes):
            workers.append(await start(module, count, *args))
        for worker in workers:
            assert await worker.answer() == "ready"
        yield Fleet(workers)
    finally:
        for worker in workers:
            await worker.kill()
