"""Real processes for the file backend's tests: started, listened to, killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0


class Process:
    """A worker process, and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name
        self.said: list[list[Any]] = []

    async def line(self, patience: float = PATIENCE) -> list[Any] | None:
        """Return the next thing that it says; None when it has ended."""
        assert self.process.stdout is not None
        with anyio.fail_after(patience):
            raw = await self.process.stdout.readline()
        if not raw.endswith(b"\n"):
            return None
        said: list[Any] = json.loads(raw)
        self.said.append(said)
        return said

    async def until(self, what: str, patience: float = PATIENCE) -> list[Any]:
        """Return the next thing that it says that begins so."""
        while True:
            said = await self.line(patience)
            assert said is not None, f"{self.name} ended, and never said {what!r}; last: {self.said[-3:]}"
            if said[0] == what:
                return said

    async def rest(self) -> None:
        """Hear all that it says until it ends."""
        while await self.line() is not None:
            pass
        await self.process.wait()

    def tell(self, what: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what.encode() + b"\n")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """Kill it, and hear what it had said before."""
        self.process.kill()
        await self.rest()


@asynccontextmanager
async def started(role: str, *, module: str = "tests.backends.file.worker", **arguments: Any) -> AsyncIterator[Process]:
    """Start a worker, by default one of these tests; it is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        role,
        json.dumps(arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        yield Process(process, arguments.get("name", role))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
