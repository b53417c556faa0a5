"""What the tests of the command share: ``rdzv`` in this process, and in processes of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import anyio
import pytest

from rendezvous_async.cli import main

WAIT = 60.0
"""Seconds that any one wait may take, far more than a healthy machine needs."""


class Result(NamedTuple):
    """How a command went."""

    code: int
    out: str
    err: str


def rdzv(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """Run the command in this process."""
    capsys.readouterr()
    code = main(arguments)
    return Result(code, *capsys.readouterr())


def assert_one_line(result: Result, code: int, *words: str) -> None:
    """Check that a command failed with one clear line on stderr."""
    assert result.code == code, result
    assert result.err.startswith("rdzv"), result
    assert result.err.count("\n") == 1, result
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err, result


class Command:
    """``rdzv`` in a process of its own, whose lines of output can be waited for."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = anyio.Event()
        self._ended = False

    async def read(self) -> None:
        """Read what it prints, until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            self._fire()
        self._ended = True
        self._fire()

    def _fire(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def line(self, wanted: Callable[[str], bool] | str, after: int = 0) -> str:
        """Wait for a line that holds a text, or that a function likes."""
        matches = (lambda line: wanted in line) if isinstance(wanted, str) else wanted
        with anyio.move_on_after(WAIT):
            while True:
                found = [line for line in self.lines[after:] if matches(line)]
                if found:
                    return found[0]
                assert not self._ended, f"it ended without {wanted!r}: {self.lines}"
                await self._news.wait()
        raise AssertionError(f"no line {wanted!r} within {WAIT:g} s: {self.lines}")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    async def code(self) -> int:
        """Wait for its end, and return its exit code."""
        try:
            with anyio.fail_after(WAIT):
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"it did not end within {WAIT:g} s: {self.lines}") from None


@asynccontextmanager
async def command(
    *arguments: str, env: Mapping[str, str] | None = None, merged: bool = False, ulimit: str | None = None
) -> AsyncIterator[Command]:
    """Run ``rdzv`` in a process of its own for as long as the block runs.

    Args:
        env: Added to this process's environment.
        merged: Read its stderr too.
        ulimit: Of the shell, to limit it: ``-n 256`` is 256 file descriptors.
    """
    limited = () if ulimit is None else ("sh", "-c", f'ulimit {ulimit}; exec "$@"', "sh")
    process = await asyncio.create_subprocess_exec(
        *limited,
        sys.executable,
        "-m",
        "rendezvous_async",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if merged else None,
        env={**os.environ, **(env or {})},
    )
    running = Command(process)
    async with anyio.create_task_group() as group:
        group.start_soon(running.read)
        try:
            yield running
        finally:
            with anyio.CancelScope(shield=True), suppress(ProcessLookupError):
                if process.returncode is None:
                    os.kill(process.pid, signal.SIGKILL)
                await process.wait()
            group.cancel_scope.cancel()


async def endpoints(server: Command) -> list[str]:
    """Wait for the ready line, and return what it names."""
    word, *where = (await server.line("ready ")).split()
    assert word == "ready"
    return where


_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Typist:
    """A person at a terminal in which ``rdzv`` runs: reads what it shows, and types."""

    def __init__(self, *arguments: str, columns: int = 80, env: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, sys.executable, "-m", "rendezvous_async", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", **(env or {})},
        )
        os.close(slave)

    def __enter__(self) -> Typist:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    def read_until(self, text: str) -> None:
        """Wait until the terminal has shown a text."""
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], WAIT)
            assert ready, f"no {text!r} within {WAIT:g} s: {self.shown}"
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # The other side is closed.
                piece = b""
            assert piece, f"it ended without {text!r}: {self.shown}"
            self.shown += piece.decode()

    @property
    def text(self) -> str:
        """What was shown, without what moves the cursor and changes colours."""
        return re.sub(r"\x1b\[\??[0-9;]*[A-Za-z]", "", self.shown)

    def type(self, keys: bytes) -> None:
        """Type keys; ``b"\\x03"`` is Ctrl+C, which the terminal turns into a signal for all its processes."""
        os.write(self._master, keys)

    def code(self) -> int:
        """Read on to the end, and return the exit code."""
        with suppress(AssertionError):
            self.read_until("\0")
        return self.process.wait(WAIT)
