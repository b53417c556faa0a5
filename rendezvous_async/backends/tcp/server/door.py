"""The accept gate of a server: counts and times each connection from the accept on, with TLS too, on any loop.

asyncio's own servers report a connection only after its TLS handshake, so silent ones could not be counted. And when
the process is out of file descriptors, they log a traceback for each attempt to accept.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import cast

from rendezvous_async.aio.clock import now
from rendezvous_async.backends.tcp.server.floods import LimitedLog

__all__ = ["Caller", "Gate"]

logger = logging.getLogger("rendezvous_async.server")

ACCEPT_AT_ONCE = 64
"""Connections accepted in one turn of the loop."""
RETRY = 0.1
"""Seconds without accepting after the process ran out of descriptors or memory."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Gate:
    """Accepts connections for a server.

    Args:
        name: The server's name, for the log.
        admit: Called with each caller on accept; admits or aborts it.
        leave: Called when a caller frees its place: its peer takes over, or it is gone.
        make_peer: Makes the protocol that takes over once TLS is established; called with the time of the accept.
        tls: The context; None means no TLS.
        handshake: Seconds for the TLS handshake.
    """

    def __init__(
        self,
        name: str,
        admit: Callable[[Caller], object],
        leave: Callable[[Caller], None],
        make_peer: Callable[[float], asyncio.Protocol | asyncio.BufferedProtocol],
        *,
        tls: ssl.SSLContext | None,
        handshake: float,
    ) -> None:
        self.leave = leave
        self.make_peer = make_peer
        self.tls = tls
        self.handshake = handshake
        self.callers: set[Caller] = set()
        self._name = name
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._log = LimitedLog(logger)

    def __repr__(self) -> str:
        return f"<Gate of {self._name} callers={len(self.callers)}>"

    def open(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on listening sockets, which the gate owns from now on."""
        for sock in sockets:
            self._sockets.append(sock)
            self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Stop accepting and release the addresses."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for timer in self._paused.values():
            timer.cancel()
        self._log.close()

    async def aclose(self) -> None:
        """Close, and wait until all handshakes in progress have ended."""
        self.close()
        for caller in self.callers:
            caller.abort()
        if self.callers:
            await asyncio.wait([caller.task for caller in self.callers])

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._log.warning(f"{self._name} cannot accept connections now: {error.strerror}")
                    self._loop.remove_reader(listener)
                    self._paused[listener] = self._loop.call_later(RETRY, self._resume, listener)
                return  # no connection is pending, or its peer is gone
            sock.setblocking(False)
            caller = Caller(self, sock)
            self._admit(caller)
            caller.enter()

    def _resume(self, listener: socket.socket) -> None:
        del self._paused[listener]
        self._loop.add_reader(listener, self._accept, listener)


class Caller(asyncio.Protocol):
    """An accepted connection before its TLS handshake, if any, is over; then its peer takes over."""

    def __init__(self, gate: Gate, sock: socket.socket) -> None:
        self.task: asyncio.Task[None]
        self._gate = gate
        self._sock = sock
        self._since = now()
        self._aborted = False

    def __repr__(self) -> str:
        return f"<Caller at {self._gate!r}>"

    def enter(self) -> None:
        """Begin the handshake, unless the caller was aborted."""
        if self._aborted:
            self._sock.close()
            return
        # The task ends with the handshake, in bounded time; the gate waits for it in aclose().
        self.task = asyncio.create_task(self._enter(), name="a handshake")  # noqa: TID251
        self._gate.callers.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # not an instance of it under uvloop
        self._gate.leave(self)
        if self._aborted:
            transport.abort()
            return
        peer = self._gate.make_peer(self._since)
        transport.set_protocol(peer)
        peer.connection_made(transport)

    def refuse(self, code: str, message: str) -> None:
        """End the connection; before the handshake the peer could not read the reason."""
        self.abort()

    def abort(self) -> None:
        """End the connection now."""
        self._aborted = True
        with suppress(OSError):  # the peer may have closed it
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the handshake on any loop

    async def _enter(self) -> None:
        gate = self._gate
        seconds = None if gate.tls is None else gate.handshake
        try:
            with suppress(OSError):  # TLS errors are OSErrors, too
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self, self._sock, ssl=gate.tls, ssl_handshake_timeout=seconds
                )
        finally:
            gate.leave(self)
            gate.callers.discard(self)
