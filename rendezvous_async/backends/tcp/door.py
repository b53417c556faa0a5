"""The accept gate of a server: a connection counts, and its time runs, from the accept on; with TLS too, on any loop.

asyncio's own servers show a connection only after its TLS handshake, so nobody could count those that say nothing. And
when the process is out of file descriptors they log a traceback for each attempt to accept.
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

from rendezvous_async.clock import now
from rendezvous_async.floods import LimitedLog

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
        name: Of the server, for the log.
        admit: Takes in each caller as soon as it is accepted, or aborts it.
        leave: Called when a caller gives its place back: its peer takes over, or it is gone.
        make_peer: Makes the protocol that takes over once TLS is established; gets the time of the accept.
        tls: None means no TLS.
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
        """Accept on sockets that listen; they belong to the gate from now on."""
        for sock in sockets:
            self._sockets.append(sock)
            self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Accept no more, and give the addresses back."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for timer in self._paused.values():
            timer.cancel()
        self._log.close()

    async def aclose(self) -> None:
        """Close, and wait until nothing is left of callers whose handshake is under way."""
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
                return  # Nobody calls, or who called is gone.
            sock.setblocking(False)
            caller = Caller(self, sock)
            self._admit(caller)
            caller.enter()

    def _resume(self, listener: socket.socket) -> None:
        del self._paused[listener]
        self._loop.add_reader(listener, self._accept, listener)


class Caller(asyncio.Protocol):
    """An accepted connection until TLS, if there is any, is established; then its peer takes over."""

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
        # It ends with the handshake, in bounded time; the gate waits for it in aclose().
        self.task = asyncio.create_task(self._enter(), name="a handshake")  # noqa: TID251
        self._gate.callers.add(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self._gate.leave(self)
        if self._aborted:
            transport.abort()
            return
        peer = self._gate.make_peer(self._since)
        transport.set_protocol(peer)
        peer.connection_made(transport)

    def refuse(self, code: str, message: str) -> None:
        """End the connection; before the handshake the peer could not read why."""
        self.abort()

    def abort(self) -> None:
        """End the connection now."""
        self._aborted = True
        with suppress(OSError):  # The other side may have closed it.
            self._sock.shutdown(socket.SHUT_RDWR)  # Wakes the handshake, whichever loop runs it.

    async def _enter(self) -> None:
        gate = self._gate
        seconds = None if gate.tls is None else gate.handshake
        try:
            with suppress(OSError):  # TLS errors are, too.
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self, self._sock, ssl=gate.tls, ssl_handshake_timeout=seconds
                )
        finally:
            gate.leave(self)
            gate.callers.discard(self)
