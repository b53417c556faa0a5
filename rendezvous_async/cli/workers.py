"""The processes of one round on one node: started together, waited for together, ended together.

They are one process group, so that ending it ends whatever the workers have started. The group is led by a ``leash``, a
small process that ends the others should this one die.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from rendezvous_async.cli.exits import Exit, Failure

__all__ = ["Workers"]

_LEASH = Path(__file__).with_name("leash.py")


class Workers:
    """Runs a command in some processes at once, round after round.

    Args:
        command: What to run.
        grace: Seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, command: Sequence[str], grace: float) -> None:
        self._command = command
        self._grace = grace
        self._leash: asyncio.subprocess.Process | None = None
        self._processes: list[asyncio.subprocess.Process] = []
        self._hurry = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def of(cls, command: Sequence[str], grace: float) -> AsyncIterator[Workers]:
        """Give workers whose processes are gone when the block ends, however it does."""
        workers = cls(command, grace)
        try:
            yield workers
        finally:
            with anyio.CancelScope(shield=True):
                await workers.stop()

    async def run(self, environments: Sequence[Mapping[str, str]]) -> int:
        """Start one process for each environment, and wait; ``stop()`` must follow, in any case.

        Returns:
            0 when all have ended well; else, at once, the exit code of the first that has not, 128 + n for signal n.
        """
        await self._start_leash()
        for environment in environments:
            await self._start(environment)
        failed = 0
        async with anyio.create_task_group() as group:

            async def wait(process: asyncio.subprocess.Process) -> None:
                nonlocal failed
                code = await process.wait()
                if code and not failed:
                    failed = 128 - code if code < 0 else code
                    group.cancel_scope.cancel()

            for process in self._processes:
                group.start_soon(wait, process)
        return failed

    def forward(self, number: int) -> None:
        """Send a signal to every worker and what it started."""
        if self._leash is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._leash.pid, number)

    def hurry(self) -> None:
        """Make ``stop()`` wait no longer, now and later."""
        self._hurry.set()

    async def stop(self) -> None:
        """End all that run: SIGTERM, the grace, SIGKILL."""
        if self._leash is None:
            return
        self.forward(signal.SIGTERM)
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_after_grace, group.cancel_scope)
            for process in self._processes:
                await process.wait()
            group.cancel_scope.cancel()
        self.forward(signal.SIGKILL)  # The leash too, and whatever the workers left behind.
        for process in (*self._processes, self._leash):
            await process.wait()
        self._leash = None
        self._processes.clear()

    async def _end_after_grace(self, scope: anyio.CancelScope) -> None:
        with anyio.move_on_after(self._grace):
            await self._hurry.wait()
        scope.cancel()

    async def _start_leash(self) -> None:
        self._leash = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_LEASH),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        assert self._leash.stdout is not None
        if await self._leash.stdout.readline() != b"ready\n":
            raise Failure(Exit.FAILED, f"{_LEASH} cannot be run by {sys.executable}")

    async def _start(self, environment: Mapping[str, str]) -> None:
        assert self._leash is not None
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                process_group=self._leash.pid,
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126  # As shells do.
            raise Failure(code, f"cannot run {self._command[0]!r}: {error.strerror}") from None
        self._processes.append(process)
