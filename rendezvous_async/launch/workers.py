"""The worker processes of one round on one node: started together, awaited together, stopped together.

They form one process group, so stopping it also stops the workers' children. A ``leash`` leads the group: a small
process that kills the others if this one dies.
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

from rendezvous_async.launch.plan import LaunchError

__all__ = ["Workers"]

_LEASH = Path(__file__).with_name("leash.py")


class Workers:
    """Runs a command in several processes at once, round after round.

    Args:
        command: The command line.
        grace: Seconds from SIGTERM to SIGKILL.
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
        """Yield the workers; all of their processes are gone when the block ends."""
        workers = cls(command, grace)
        try:
            yield workers
        finally:
            with anyio.CancelScope(shield=True):
                await workers.stop()

    async def run(self, environments: Sequence[Mapping[str, str]]) -> int:
        """Start one process for each environment and wait for them; always call ``stop()`` afterwards.

        Returns:
            0 once all have succeeded. On the first failure, at once, that exit code; 128 + n for signal n.
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
        """Send a signal to all workers and their children."""
        if self._leash is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._leash.pid, number)

    def hurry(self) -> None:
        """Skip the grace period, in this ``stop()`` and in later ones."""
        self._hurry.set()

    async def stop(self) -> None:
        """Stop all processes: SIGTERM, the grace period, SIGKILL."""
        if self._leash is None:
            return
        self.forward(signal.SIGTERM)
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_after_grace, group.cancel_scope)
            for process in self._processes:
                await process.wait()
            group.cancel_scope.cancel()
        self.forward(signal.SIGKILL)  # This includes the leash, and any children that the workers left behind.
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
            raise LaunchError(f"{sys.executable} cannot run {_LEASH}; is the installation complete?")

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
            code = 127 if isinstance(error, FileNotFoundError) else 126  # The shell's convention.
            raise LaunchError(f"cannot run {self._command[0]!r}: {error.strerror}", code) from None
        self._processes.append(process)
