"""A TCP proxy for fault injection: it delays, stalls, half-closes, cuts and refuses connections.

Put it between any client and server that use TCP::

    async with Proxy("127.0.0.1", server_port) as proxy:
        async with rdzv.open_backend(f"tcp://127.0.0.1:{proxy.port}?is_host=false", run_id="job") as backend:
            proxy.delay = 0.05          # each way, from now on
            proxy.cut()                 # reset every connection
            proxy.stall()               # nothing passes, nothing is closed
            proxy.resume()
            proxy.lose_next("to_client")    # drop the next answer and cut its connection

Bytes are never changed or reordered, and only dropped along with their connection: the faults are those of a network
under TCP, not of TCP itself. All methods take effect at once and may be called from any callback of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Literal, cast

import anyio

__all__ = ["Direction", "Proxy"]

Direction = Literal["to_server", "to_client"]
_MOST_QUEUED = 1024 * 1024


class Proxy:
    """Listens on a free port and forwards everything to one server.

    Args:
        host: The server's host.
        port: The server's port.
        listen: The address to listen on; by default loopback.

    Attributes:
        delay: The delay in seconds, each way.
        refusing: Whether new connections are reset at once.
        accepted: The number of connections so far.
        listen_in: Called with the direction and the bytes of all traffic.
    """

    def __init__(self, host: str, port: int, listen: str = "127.0.0.1") -> None:
        self.delay: float = 0.0
        self.refusing = False
        self.accepted: int = 0
        self.listen_in: Callable[[Direction, bytes], None] | None = None
        self._server = host, port
        self._address = listen
        self._listener = socket.socket()
        self._pairs: set[_Pair] = set()
        self._stalled = False
        self._losing: set[Direction] = set()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Proxy {self.port} -> {self._server[0]}:{self._server[1]} connections={len(self._pairs)}>"

    async def __aenter__(self) -> Proxy:
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        self._listener.bind((self._address, 0))
        self._listener.listen(1024)
        # The owner task accepts connections; __aexit__ awaits it.
        self._task = asyncio.create_task(self._accept(), name=repr(self))  # noqa: TID251
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((self._task,))
            self.cut()
            while self._pairs:  # Their transports close in the next turns of the loop.
                await anyio.lowlevel.checkpoint()
        self._listener.close()

    @property
    def port(self) -> int:
        """The port for clients."""
        return int(self._listener.getsockname()[1])

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._pairs)

    def cut(self) -> None:
        """Reset every connection; data in flight is lost."""
        for pair in tuple(self._pairs):
            pair.cut()

    def stall(self) -> None:
        """Hold all data, in both directions, on old and new connections, until ``resume``."""
        self._stalled = True
        for pair in self._pairs:
            pair.update()

    def resume(self) -> None:
        """End a stall and forward the held data."""
        self._stalled = False
        for pair in tuple(self._pairs):
            pair.update()

    def half_close(self, direction: Direction) -> None:
        """End one direction of every connection, as if that sender had closed it; the other stays open."""
        for pair in tuple(self._pairs):
            pair.flows[direction].end()

    def lose_next(self, direction: Direction) -> None:
        """Drop the next bytes in this direction on any connection, and cut that connection."""
        self._losing.add(direction)

    async def disturb(self, rng: random.Random, pause: float = 0.2, stall: float = 0.3) -> None:
        """Inject random faults at random times until cancelled.

        Args:
            rng: The source of randomness; the same seed gives the same faults.
            pause: The longest time between faults, in seconds.
            stall: The longest stall, in seconds.
        """
        faults: list[Callable[[], None]] = [
            self.cut,
            lambda: self.half_close("to_server"),
            lambda: self.half_close("to_client"),
            lambda: self.lose_next("to_client"),
            lambda: self.lose_next("to_server"),
        ]
        try:
            while True:
                await anyio.sleep(rng.random() * pause)
                kind = rng.randrange(len(faults) + 2)
                if kind < len(faults):
                    faults[kind]()
                elif kind == len(faults):
                    self.stall()
                    await anyio.sleep(rng.random() * stall)
                    self.resume()
                else:
                    self.delay = rng.random() * 0.02
        finally:
            self.delay = 0.0
            self._losing.clear()
            self.resume()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(self._listener)
            self.accepted += 1
            if self.refusing:
                _reset(near)
                continue
            pair = _Pair(self)
            try:
                far, _ = await loop.create_connection(lambda pair=pair: pair.flows["to_client"], *self._server)  # type: ignore[misc]
                if far.get_extra_info("sockname") == far.get_extra_info("peername"):
                    # The server is down and the system has picked its port for this socket, which is now connected
                    # to itself and would keep the server from coming back.
                    far.abort()
                    raise ConnectionRefusedError
            except OSError:
                _reset(near)
                continue
            except BaseException:
                near.close()
                raise
            self._pairs.add(pair)
            await loop.connect_accepted_socket(lambda pair=pair: pair.flows["to_server"], near)  # type: ignore[misc]
            if pair.flows["to_client"].is_lost:
                pair.cut()
            pair.update()


class _Pair:
    """The two connections of one client: client to proxy, and proxy to server."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.flows: dict[Direction, _Flow] = {}
        self.flows["to_server"] = _Flow(self, "to_server", "to_client")
        self.flows["to_client"] = _Flow(self, "to_client", "to_server")

    def cut(self) -> None:
        for flow in self.flows.values():
            flow.abort()

    def update(self) -> None:
        for flow in self.flows.values():
            flow.update()

    def forget(self) -> None:
        if all(flow.is_lost for flow in self.flows.values()):
            self.proxy._pairs.discard(self)


class _Flow(asyncio.Protocol):
    """One direction: reads from its own socket, and writes to the socket of the other flow."""

    def __init__(self, pair: _Pair, direction: Direction, other: Direction) -> None:
        self.is_lost = False
        self._pair = pair
        self._direction = direction
        self._other_direction = other
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._queued = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._target_full = False
        self._reading = True

    @property
    def _other(self) -> _Flow:
        return self._pair.flows[self._other_direction]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it.

    def data_received(self, data: bytes) -> None:
        if self._pair.proxy.listen_in is not None:
            self._pair.proxy.listen_in(self._direction, data)
        losing = self._pair.proxy._losing
        if self._direction in losing:
            losing.discard(self._direction)
            self._pair.cut()
            return
        self._put(data)

    def eof_received(self) -> bool:
        self._put(None)
        return True  # the other direction may go on

    def pause_writing(self) -> None:
        self._other._target_full = True
        self._other.update()

    def resume_writing(self) -> None:
        self._other._target_full = False
        self._other.update()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._other.abort()
        self._pair.forget()

    def abort(self) -> None:
        if self._transport is not None:
            _reset_on_close(self._transport)
            self._transport.abort()

    def end(self) -> None:
        """Forward an end of stream, and nothing after it."""
        if not self._ended:
            self._put(None)

    def update(self) -> None:
        """Forward what is due, and read more if there is room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        if not self._pair.proxy._stalled and self._other._transport is not None:
            while self._queue and self._queue[0][0] <= loop.time() and not self._target_full:
                self._pass(self._queue.popleft()[1])
            if self._queue and not self._target_full:
                self._timer = loop.call_at(self._queue[0][0], self.update)
        if self._transport is None:
            return
        reading = not self._pair.proxy._stalled and not self._target_full and self._queued < _MOST_QUEUED
        if reading != self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _put(self, data: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._pair.proxy.delay
        if self._queue:
            due = max(due, self._queue[-1][0])
        self._queue.append((due, data))
        self._queued += len(data or b"")
        self.update()

    def _pass(self, data: bytes | None) -> None:
        self._queued -= len(data or b"")
        target = self._other._transport
        if self._ended or target is None or target.is_closing():
            return
        if data is not None:
            target.write(data)
            return
        self._ended = True
        with contextlib.suppress(OSError):  # The connection may be gone before the loop notices.
            target.write_eof()
        if self._other._ended:
            target.close()
            if self._transport is not None:
                self._transport.close()


def _reset(sock: socket.socket) -> None:
    """Close a socket with a reset instead of an end of stream."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()


def _reset_on_close(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
