"""The TCP server as a stage: a process of its own, or hosted by whichever node or client finds nobody serving.

Its process has a secret, which every reconnection proves again; the hosted one has none. Both keep everything in a data
directory, so that nothing acknowledged may be lost.
"""

from __future__ import annotations

import os
import random
import resource
import signal

import anyio
import msgspec

from rendezvous_async.backends.tcp.server.serving import LOG_NAME
from tests.ports import free_port
from tests.proof.campaign.follower import LogFollower
from tests.proof.campaign.processes import Child
from tests.proof.campaign.records import Up
from tests.proof.campaign.server import Options
from tests.proof.campaign.stage import Place, Stage, StageFault

__all__ = ["HostedStage", "TcpStage"]

SECRET = "the-secret-of-the-campaign"
START = 80.0
LINGER = 4.0
"""Seconds that a host which is to end serves on for the others: not all of them go in that time."""
PATIENCE = 15.0


class TcpStage(Stage):
    """A server that is killed, stopped, frozen, and whose disk fails."""

    name = "tcp"

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._port}?is_host=false&secret={SECRET}"

    @property
    def faults(self) -> dict[str, StageFault]:
        faults: dict[str, StageFault] = {
            "server kill -9": self._kill,
            "server stop": self._stop,
            "server freeze": self._freeze,
            "server fsync error": self._fail_sync,
            "server file too large": self._limit_file,
        }
        if not self._disk.why_not:
            faults["server disk full"] = self._fill_disk
        return faults

    async def _set_up(self) -> None:
        self._disk = await self._make_disk()
        self._data = self._disk.path / "data"
        self._port = free_port(random.Random(os.getpid()))
        self._pause = 0.0
        self._ending = False
        self._server = Child("server", self.folder)
        self._stack.push_async_callback(self._end)
        self._group.start_soon(self._look_after)
        with anyio.fail_after(START * self.pace):
            await self._is_up()
        self.follower = LogFollower(self._data / LOG_NAME)
        self._stack.callback(self.follower.close)
        query = f"?is_host=false&secret={SECRET}&stall_timeout={1.5 * self.pace:g}"
        await self._make_places([("127.0.0.1", self._port)], "tcp", query, linked=2)

    async def _look_after(self) -> None:
        """Run the server, and run it again whenever it has ended."""
        options = Options(self._port, str(self._data), str(self._server.notebook), self.pace, SECRET)
        while not self._ending:
            command = ("-m", "tests.proof.campaign.server", msgspec.json.encode(options).decode())
            await self._server.start(*command)
            await self._server.wait()
            await anyio.sleep(max(0.05, self._pause))

    async def _is_up(self) -> None:
        """Wait until the server has come up since the last call."""
        while not any(isinstance(line, Up) for line in self._server.read()):  # noqa: ASYNC110
            await anyio.sleep(0.02)

    async def _end(self) -> None:
        self._ending = True
        await self._server.kill()

    async def _back_up(self) -> None:
        """Wait until the server has ended and come up again; one that has nothing to write is killed in the end."""
        with anyio.move_on_after(PATIENCE * self.pace):
            await self._is_up()
            return
        self._server.send(signal.SIGKILL)
        with anyio.fail_after(START * self.pace):
            await self._is_up()

    async def _kill(self, rng: random.Random) -> None:
        self._pause = rng.choice((0.0, 0.2, 1.5))
        self._server.send(signal.SIGKILL)
        await self._back_up()
        self._pause = 0.0

    async def _stop(self, rng: random.Random) -> None:
        self._server.send(signal.SIGTERM)
        await self._back_up()

    async def _freeze(self, rng: random.Random) -> None:
        seconds = 0.2 + 4 * rng.random()
        self._server.send(signal.SIGSTOP)
        try:
            await anyio.sleep(seconds)
        finally:
            self._server.send(signal.SIGCONT)

    async def _fail_sync(self, rng: random.Random) -> None:
        self._server.send(signal.SIGUSR1)
        await self._back_up()

    async def _limit_file(self, rng: random.Random) -> None:
        """Let no file of the server grow by more than some bytes: it must stop, and lose nothing."""
        size = (self._data / LOG_NAME).stat().st_size + rng.randrange(2000)
        resource.prlimit(self._server.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        await self._back_up()

    async def _fill_disk(self, rng: random.Random) -> None:
        await self._disk.be_full(0.3 + 2 * rng.random())
        await self._back_up()


class HostedStage(Stage):
    """No server of its own: all have one port and one data directory, and whoever finds nobody serving hosts it.

    There is no proxy, since who is given a proxy's port does not host; ``TcpStage`` plays those faults.
    """

    name = "hosted"
    networked = False

    @property
    def endpoint(self) -> str:
        pace = self.pace
        return (
            f"tcp://127.0.0.1:{self.hosted_port}?is_host=auto&data_dir={self._data}&linger={LINGER * pace:g}"
            f"&connect_timeout={START * pace:g}&stall_timeout={1.5 * pace:g}&disconnect_grace={pace:g}"
        )

    @property
    def faults(self) -> dict[str, StageFault]:
        return {}

    async def _set_up(self) -> None:
        self._data = self.folder / "data"
        self.hosted_port = free_port(random.Random(os.getpid()))
        self.follower = LogFollower(self._data / LOG_NAME)
        self._stack.callback(self.follower.close)
        self.places = [Place(self.endpoint, []) for _ in range(self._count)]
