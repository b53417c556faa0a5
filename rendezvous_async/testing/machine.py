"""Simulated machines: each has an address, a disk, and processes, which have it as their operating system."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, cast

from rendezvous_async.backends.system import System
from rendezvous_async.backends.table.table import Table
from rendezvous_async.testing.disk import Disk, DiskFiles, DiskWorker
from rendezvous_async.testing.loop.sockets import SimulatedSocket
from rendezvous_async.testing.transport import WireTransport

if TYPE_CHECKING:
    from rendezvous_async.testing.wire import Wire

__all__ = ["Machine", "Process", "WireSocket"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FIRST_PORT = 32768
ANY = "0.0.0.0"


class Machine:
    """A machine on a ``Wire``; made by ``Wire.machine``.

    Attributes:
        is_on: Whether it has power.
        listeners: The listening sockets, by address and port.
        processes: The processes that run on it, by group.
        disk: Its disk, which outlives processes and, as far as it was synced, the power.
        on_serve: Called with each process that begins to serve a table, and the table.
    """

    def __init__(self, wire: Wire, name: str, address: str) -> None:
        self.wire = wire
        self.name = name
        self.address = address
        self.is_on: bool = True
        self.listeners: dict[tuple[str, int], WireSocket] = {}
        self.processes: dict[Hashable, Process] = {}
        self.disk: Disk = Disk(random.Random(f"{wire.rng.getrandbits(64)} disk"))
        self.on_serve: Callable[[Process, Table], None] | None = None
        self._ports = FIRST_PORT

    def __repr__(self) -> str:
        return f"<Machine {self.name} {self.address}{'' if self.is_on else ' off'}>"

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    def address_toward(self, host: str) -> str:
        """Return the address that a connection to ``host`` comes from."""
        return "127.0.0.1" if host.startswith("127.") else self.address

    def has(self, address: str) -> bool:
        """Tell whether a process can bind an address here."""
        return address in (self.address, ANY) or address.startswith("127.")

    def process(self, group: Hashable) -> Process:
        """Add a process; the tasks of this group are it."""
        process = self.wire.processes[group] = self.processes[group] = Process(self, group)
        return process

    def start(
        self, group: Hashable, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts, name: str | None = None
    ) -> asyncio.Task[T]:
        """Start a process with a coroutine function as its program."""
        self.process(group)
        return self.wire.loop.start(group, function, *args, name=name)

    def kill(self, group: Hashable) -> None:
        """Kill a process, like SIGKILL: the kernel closes its sockets and files."""
        process = self._end(group)
        for transport in tuple(process.transports):
            transport.die()

    def cut_power(self) -> None:
        """Lose the power: nothing runs, nobody is told, and the disk forgets what was not synced."""
        self.is_on = False
        for group in tuple(self.processes):
            for transport in tuple(self._end(group).transports):
                self.wire.vanish(transport)
        self.disk.lose_power()

    def boot(self) -> None:
        """Have power again; processes must be started."""
        self.is_on = True
        self.wire.retry()

    def _end(self, group: Hashable) -> Process:
        process = self.processes.pop(group)
        del self.wire.processes[group]
        self.wire.loop.kill(group)
        for listener in [listener for listener in self.listeners.values() if listener.process is process]:
            listener.close()
        process.files.close_all()
        return process


class Process(System):
    """A process, which sees its machine as the operating system.

    Attributes:
        transports: Its ends of connections.
        on_write: Called when something is about to be written to the disk; what it returns is called once it is there.
    """

    def __init__(self, machine: Machine, group: Hashable) -> None:
        self.machine = machine
        self.group = group
        self.transports: dict[WireTransport, None] = {}
        self.files: DiskFiles = machine.disk.files()
        self.on_write: Callable[[], Callable[[], None]] | None = None
        self._rng = random.Random(f"{machine.wire.rng.getrandbits(64)} {group}")

    def __repr__(self) -> str:
        return f"<Process {self.group} on {self.machine.name}>"

    def random_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        return cast("socket.socket", WireSocket(self))

    def worker(self, name: str) -> ThreadPoolExecutor:
        return cast("ThreadPoolExecutor", DiskWorker(self))

    def serves(self, table: Table) -> None:
        if self.machine.on_serve is not None:
            self.machine.on_serve(self, table)

    async def look_up(self, host: str, port: int) -> list[Any]:
        wire = self.machine.wire
        await asyncio.sleep(wire.leg())
        found = wire.find(self.machine, host)
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        address = "127.0.0.1" if host == "localhost" else host if host.startswith("127.") else found.address
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    async def dial(self, factory: Callable[[], Any], host: str, port: int) -> Any:
        return await self.machine.wire.dial(self, factory, host, port)


class WireSocket(SimulatedSocket):
    """A socket of a simulated process: one that listens, one that was accepted, or one that tries out an address."""

    def __init__(self, process: Process, transport: WireTransport | None = None) -> None:
        self.process = process
        self._transport = transport
        self._address = (ANY, 0)
        self._waiting: deque[WireTransport] = deque()
        self._room = 0
        self._reader: Callable[[], object] | None = None
        self._timer: asyncio.Handle | None = None
        self._context = copy_context()

    def __repr__(self) -> str:
        return f"<WireSocket {self._address} waiting={len(self._waiting)}>"

    def __enter__(self) -> WireSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def setsockopt(self, *_: object) -> None:
        pass

    def setblocking(self, flag: bool) -> None:
        pass

    def bind(self, where: tuple[Any, ...]) -> None:
        machine, (host, port) = self.process.machine, where[:2]
        if not machine.has(host):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        self._address = (host, port or machine.next_port())

    def listen(self, backlog: int) -> None:
        listeners, (host, port) = self.process.machine.listeners, self._address
        if any(port == other and (host == there or ANY in (host, there)) for there, other in listeners):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._room = backlog
        listeners[self._address] = self

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def accept(self) -> tuple[WireSocket, tuple[str, int]]:
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        transport = self._waiting.popleft()
        return WireSocket(self.process, transport), transport.get_extra_info("peername")

    def shutdown(self, how: int) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self.remove_reader()
        if self.process.machine.listeners.get(self._address) is self:
            del self.process.machine.listeners[self._address]
        if self._transport is not None:
            self._transport.abort()
        for transport in self._waiting:
            transport.abort()
        self._waiting.clear()

    # What the loop and the wire call

    @property
    def has_room(self) -> bool:
        """Whether another connection may wait to be accepted."""
        return len(self._waiting) < self._room

    def add(self, transport: WireTransport) -> None:
        """Have a connection wait to be accepted."""
        self._waiting.append(transport)
        self._look()

    def attach(self, protocol: Any) -> tuple[Any, Any]:
        transport, self._transport = self._transport, None
        assert transport is not None
        if not transport.is_closing():
            transport.attach(protocol)
        return transport, protocol

    def add_reader(self, callback: Callable[..., object], *args: Any) -> None:
        self._reader = partial(callback, *args)
        self._context = copy_context()
        self._look()

    def remove_reader(self) -> None:
        self._reader = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._waiting and self._reader is not None and self._timer is None:
            self._timer = self.process.machine.wire.loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._timer = None
        if self._waiting and self._reader is not None:
            self._reader()
            self._look()
