"""The part of a virtual loop by which programs reach a network: it leads to a simulated one, if there is one.

``network`` is set by a ``Wire``. From then on the groups that it knows as processes have its machines in place of the
real one, and no other code on the loop has a network at all: nothing can leave the simulation by mistake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from rendezvous_async.testing.loop.groups import GROUP

if TYPE_CHECKING:
    from rendezvous_async.testing.machine import Process
    from rendezvous_async.testing.wire import Wire

__all__ = ["SimulatedSocket", "SocketsLoop"]


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimulatedSocket:
    """A socket that is none of the real system's."""

    def attach(self, protocol: Any) -> tuple[Any, Any]:
        """Give an accepted connection to a protocol."""
        raise NotImplementedError

    def add_reader(self, callback: Callable[..., object], *args: Any) -> None:
        """Call this whenever a connection waits to be accepted."""
        raise NotImplementedError

    def remove_reader(self) -> None:
        """Undo ``add_reader``."""
        raise NotImplementedError


class SocketsLoop(asyncio.SelectorEventLoop):
    """Overrides what asyncio offers for sockets and threads; without a network, all of it is asyncio's own."""

    network: Wire | None = None

    @property
    def system(self) -> Process | None:
        """The operating system of the running code: a simulated process; None means the real one."""
        if self.network is None:
            return None
        process = self.network.process(GROUP.get())
        if process is None:
            raise RuntimeError(
                "only processes of the simulation have a network here; run this inside of one, for example as the "
                "program of a node"
            )
        return process

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        process = self.system
        if process is None:
            return await super().getaddrinfo(host, port, **options)
        return await process.look_up(host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        process = self.system
        if process is None:
            return await super().create_connection(protocol_factory, host, port, **options)
        if options.get("ssl") is not None or options.get("sock") is not None:
            raise NotImplementedError("a simulated network has neither TLS nor the sockets of others")
        return await process.dial(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if self.system is not None:
            raise NotImplementedError(
                "a simulated network has no asyncio.start_server: give the program a fake of what it serves"
            )
        return await super().create_server(protocol_factory, host, port, **options)

    async def create_datagram_endpoint(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        if self.system is not None:
            raise NotImplementedError("a simulated network has no UDP: give the program a fake of what it talks to")
        return await super().create_datagram_endpoint(protocol_factory, *args, **options)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:
        if not isinstance(sock, SimulatedSocket):
            return await super().connect_accepted_socket(protocol_factory, sock, **options)
        if options.get("ssl") is not None:
            raise NotImplementedError("a simulated network has no TLS")
        return sock.attach(protocol_factory())

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        if not isinstance(fd, SimulatedSocket):
            super().add_reader(fd, callback, *args)
        else:
            fd.add_reader(callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        if not isinstance(fd, SimulatedSocket):
            return super().remove_reader(fd)
        fd.remove_reader()
        return True

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if executor is None and self.network is not None and (process := self.system) is not None:
            executor = process.worker("default")
        return super().run_in_executor(executor, func, *args)
