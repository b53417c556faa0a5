"""One value in a real Redis as a stage: the server is killed, stopped and frozen, and finds everything in its log.

Redis writes each command to its append-only file and syncs it before it answers, so that nothing acknowledged may be
lost. Without that file a Redis that starts again is empty: the driver then begins another history, with another epoch,
all sessions have ended, and closed runs are forgotten (``tests/backends/cas/test_replica.py``).
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
from contextlib import suppress

import anyio

from tests.ports import free_port
from tests.proof.campaign.aof import AofFollower
from tests.proof.campaign.redis_scheme import KEY, TOKEN, install
from tests.proof.campaign.stage import Stage, StageFault

__all__ = ["CasStage", "redis_program"]

START = 60.0
APPEND_ONLY = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


def redis_program() -> str | None:
    """Return the path of a Redis or Valkey, if there is one."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


class CasStage(Stage):
    """A Redis of its own, on which all processes have one value."""

    name = "cas"

    @property
    def endpoint(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    @property
    def faults(self) -> dict[str, StageFault]:
        return {"redis kill -9": self._kill, "redis stop": self._stop, "redis freeze": self._freeze}

    async def _set_up(self) -> None:
        self._use_scheme()
        self._data = self.folder / "redis"
        self._data.mkdir()
        self._port = free_port(random.Random(os.getpid()))
        self._stack.push_async_callback(self._end, signal.SIGKILL)
        await self._start()
        self.follower = AofFollower(self._data / "appendonlydir", KEY, TOKEN, self.namespace)
        self._stack.callback(self.follower.close)
        await self._make_places([("127.0.0.1", self._port)], "redis", "", linked=2)

    def _use_scheme(self) -> None:
        """Let this process and those that it starts find the scheme."""
        path = str(self.folder / "path")
        install(self.folder / "path")
        before = os.environ.get("PYTHONPATH")
        sys.path.insert(0, path)
        self._stack.callback(sys.path.remove, path)
        os.environ["PYTHONPATH"] = path if before is None else f"{path}{os.pathsep}{before}"
        self._stack.callback(_set_variable, "PYTHONPATH", before)

    async def _start(self) -> None:
        """Start the server, and wait until it has read its log."""
        program = redis_program()
        if program is None:
            raise FileNotFoundError("there is no Redis here: install redis-server or valkey-server")
        options = ("--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._data), *APPEND_ONLY)
        with (self.folder / "redis.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(program, *options, stdout=log, stderr=log)
        with anyio.fail_after(START * self.pace):
            while not await self._is_up():
                assert self._process.returncode is None, f"Redis has ended: see {self.folder}/redis.log"
                await anyio.sleep(0.02)

    async def _is_up(self) -> bool:
        with suppress(OSError):
            async with await anyio.connect_tcp("127.0.0.1", self._port) as stream:
                await stream.send(b"PING\r\n")
                return (await stream.receive()).startswith(b"+PONG")
        return False

    async def _end(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError, AttributeError):
            self._process.send_signal(how)
            await self._process.wait()

    async def _kill(self, rng: random.Random) -> None:
        await self._end(signal.SIGKILL)
        await anyio.sleep(rng.choice((0.0, 0.2, 1.5)))
        await self._start()

    async def _stop(self, rng: random.Random) -> None:
        await self._end(signal.SIGTERM)
        await anyio.sleep(2 * rng.random())
        await self._start()

    async def _freeze(self, rng: random.Random) -> None:
        self._process.send_signal(signal.SIGSTOP)
        try:
            await anyio.sleep(0.2 + 4 * rng.random())
        finally:
            self._process.send_signal(signal.SIGCONT)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value
