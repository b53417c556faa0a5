"""A process of the campaign: started by exec, told things by lines, killed, frozen, awaited."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from tests.proof.campaign.records import Line, Tail, Up

__all__ = ["Child"]

LISTENING = "0A"
"""The state of a socket that listens, as the system's table of sockets has it."""


class Child:
    """One process, with the file that it notes things in and one for what it prints.

    Attributes:
        name: Of the node or client that it is.
        notebook: Where it writes its lines.
        killed: Whether we ended it by force.
        frozen: Whether it stands still.
        up: Whether it has said that it is up.
    """

    def __init__(self, name: str, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.notebook = folder / f"{name}.jsonl"
        self.killed = False
        self.frozen = False
        self.up = False
        self.tail = Tail(self.notebook)
        self._errors = folder / f"{name}.err"
        self._prefix = prefix
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        state = "killed" if self.killed else "frozen" if self.frozen else "running" if self.running else "ended"
        return f"<Child {self.name} {state}>"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it has printed."""
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    def listens(self, port: int) -> bool:
        """Tell whether it is the one that listens on this port of IPv4."""
        if not self.running:
            return False
        with open("/proc/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == LISTENING}
        opened = Path(f"/proc/{self.pid}/fd")
        with suppress(OSError):  # it may end while we look
            return any(os.readlink(opened / number) in sockets for number in os.listdir(opened))
        return False

    async def start(self, *arguments: str) -> None:
        """Run Python with these arguments, or what the prefix makes of it."""
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._prefix,
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},
            )

    def tell(self, line: str) -> None:
        """Send it a line; one that has ended does not hear it."""
        if self.running:
            assert self._process is not None
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.write(f"{line}\n".encode())

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if number in (signal.SIGSTOP, signal.SIGCONT):
                self.frozen = number == signal.SIGSTOP

    async def kill(self) -> None:
        """End it with SIGKILL, and wait for that."""
        if self.running:
            self.killed = True
            self.send(signal.SIGKILL)
        await self.wait()
        self.frozen = False

    async def wait(self) -> None:
        """Wait until it has ended."""
        if self._process is not None:
            await self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()

    async def ended_within(self, seconds: float) -> bool:
        """Wait until it has ended, but not for ever."""
        with anyio.move_on_after(seconds):
            await self.wait()
            return True
        return False

    def read(self) -> list[Line]:
        """Return what it has noted since the last time."""
        lines = self.tail.read()
        self.up = self.up or any(isinstance(line, Up) for line in lines)
        return lines
