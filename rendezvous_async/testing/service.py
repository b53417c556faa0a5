"""The network of a cluster with real clients and a real TCP server, on simulated machines.

Every node has a machine of its own. The server has one too (``head``), with or without a log on its disk; or there is
none, and the nodes on that machine host it: then every second node runs there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Literal, TypeAlias, TypeVar

import anyio

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.names import DEFAULT_NAMESPACE
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.tcp import Limits, serve
from rendezvous_async.backends.values import Listing
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import DEFAULT_PORTS
from rendezvous_async.testing.commits import RunCommits
from rendezvous_async.testing.disk import Disk
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.machine import Process
from rendezvous_async.testing.nodes import RUN, SimulatedNode
from rendezvous_async.testing.wire import Wire

__all__ = ["ServerKind", "TcpNetwork"]

ServerKind: TypeAlias = Literal["memory", "log", "hosted"]

T = TypeVar("T")

HEAD: Final = "head"
SECRET: Final = "a secret of the simulation"
RESTART_AFTER: Final = 0.5
"""Seconds until a server whose disk has failed is started again."""


class TcpNetwork:
    """Real clients and a real server on a ``Wire``.

    Args:
        rng: Where everything random comes from.
        faults: The faults.
        max_writes: The limit of writes per commit.
        server: ``memory``, ``log`` or ``hosted``; see ``Cluster``.
        take: Called with each commit to the run.
        on_loss: Called when a server has begun without the data of the one before.

    Attributes:
        wire: The machines and what is between them.
        host: The process that serves, or served last.
    """

    def __init__(
        self,
        rng: random.Random,
        faults: Faults,
        max_writes: int,
        server: ServerKind,
        take: Callable[[Listing], None],
        on_loss: Callable[[], None] | None,
    ) -> None:
        self.wire: Wire = Wire(random.Random(rng.getrandbits(64)), faults)
        self._limits = Limits(writes=max_writes)
        self._kind = server
        self._on_loss = on_loss
        self._commits = RunCommits(f"{DEFAULT_NAMESPACE}/{RUN}/", take)
        self._calls = self._servers = 0
        self.host: Process | None = None
        self._head = self.wire.machine(HEAD)
        self._head.on_serve = self._serves
        self._head.disk.on_power_lost = self._lose_power
        if server != "hosted":
            self._start_server()

    def __repr__(self) -> str:
        return f"<TcpNetwork server={self._kind} {self.wire!r}>"

    @property
    def faults(self) -> Faults:
        """The current faults; may be changed at any time."""
        return self.wire.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self.wire.faults = faults

    @property
    def disk(self) -> Disk:
        """The disk of the server's machine."""
        return self._head.disk

    # Nodes

    def settings(self, node: SimulatedNode) -> dict[str, Any]:
        """Return what ``connect`` needs to know of the backend."""
        is_host = "auto" if self._kind == "hosted" and self.machine_of(node) == HEAD else "false"
        return {
            "endpoint": f"tcp://{HEAD}:{DEFAULT_PORTS['tcp']}",
            "secret": SECRET,
            "is_host": is_host,
            "limits": self._limits,
        }

    def start(
        self, node: SimulatedNode, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]:
        """Start a node's process."""
        return self.wire.machine(self.machine_of(node)).start(node.process, function, *args, name=node.process)

    def kill(self, node: SimulatedNode) -> None:
        """Kill a node's process."""
        self.wire.machine(self.machine_of(node)).kill(node.process)

    def machine_of(self, node: SimulatedNode) -> str:
        """Return the machine that a node runs on."""
        return HEAD if self._kind == "hosted" and int(node.name.rpartition("-")[2]) % 2 == 0 else node.name

    async def visit(self, node: SimulatedNode, function: Callable[[Backend], Awaitable[T]]) -> T:
        """Return what a function returns for a backend, in a process on the machine of a node."""

        async def in_process() -> T:
            settings = self.settings(node) | {"is_host": "false"}
            async with open_backend(settings.pop("endpoint"), run_id=RUN, **settings) as backend:
                return await function(backend)

        self._calls += 1
        return await self.wire.machine(self.machine_of(node)).start(f"call {self._calls}", in_process)

    def is_served(self, nodes: Iterable[SimulatedNode]) -> bool:
        """Tell whether a server runs, or one of these nodes would host it."""
        return self._kind != "hosted" or HEAD in map(self.machine_of, nodes)

    # Faults

    def cut(self, nodes: Iterable[SimulatedNode]) -> None:
        """Cut the machines of these nodes off from the server's, where they are others."""
        for machine in dict.fromkeys(map(self.machine_of, nodes)):
            if machine != HEAD:
                self.wire.cut(machine, HEAD)
                self.wire.cut(HEAD, machine)

    def heal(self) -> None:
        """Free all ways."""
        self.wire.heal()

    def lose_server(self) -> None:
        """Restart the server without its data."""
        self._kill_server()
        self.disk.erase()
        self._start_server()

    def restart_server(self) -> None:
        """Kill the server and start it again."""
        self._kill_server()
        self._start_server()

    def lose_power(self) -> None:
        """Cut the power of the server's machine, and start the server again from what the disk has kept."""
        self._head.cut_power()
        self._boot()

    def aclose(self) -> None:
        """End everything that runs; the loop has no other network from now on."""
        for machine in self.wire.machines.values():
            machine.cut_power()

    # The server

    def _start_server(self) -> None:
        self._servers += 1
        self._head.start(f"server#{self._servers}", self._serve)

    def _kill_server(self) -> None:
        if (group := f"server#{self._servers}") in self.wire.processes:  # else the machine has no power now
            self._head.kill(group)

    async def _serve(self) -> None:
        data_dir = "/data" if self._kind == "log" else None
        while True:
            try:
                async with serve(HEAD, data_dir=data_dir, secret=SECRET, limits=self._limits) as server:
                    await server.failed.wait()
            except RendezvousConnectionError:
                pass  # of the disk
            await anyio.sleep(RESTART_AFTER)

    def _serves(self, process: Process, table: Table) -> None:
        self.host = process
        process.on_write = self._commits.mark
        if self._commits.follow(table, waits=self._kind == "log") and self._on_loss is not None:
            self._on_loss()

    def _lose_power(self) -> None:
        """Lose the power in the middle of a write."""
        self._head.cut_power()
        self.wire.later(RESTART_AFTER, self._boot)

    def _boot(self) -> None:
        self._head.boot()
        self._start_server()
