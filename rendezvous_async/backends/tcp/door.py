"""A peer of a server with TLS until its TLS handshake is over; then a ``Connection`` takes its place.

asyncio's own TLS servers show a peer only after that handshake, and say nothing when it fails: nobody could count those
who are at it. Here a peer counts from its accept on, and TLS and greeting share one handshake's time.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, cast

from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.connection import Connection

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.server import TcpServer

__all__ = ["TlsDoor"]


class TlsDoor(asyncio.Protocol):
    """One peer of a ``TcpServer``, not known yet, and not to be spoken to yet."""

    def __init__(self, server: TcpServer, tls: ssl.SSLContext) -> None:
        self._server = server
        self._tls = tls
        self._early = bytearray()
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"<TlsDoor {peer}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self._transport = transport
        transport.pause_reading()  # what comes now is TLS, and not ours to read
        # One too many goes on too, unless there are many of those: without TLS it could not be told why.
        refused = self._server.admit(self)
        if refused is not None and refused.code == wire.REFUSED_CLOSING:
            transport.abort()
        if transport.is_closing():
            return
        # It ends with the handshake, in bounded time; the server has the door, and awaits it in aclose().
        self.task = asyncio.create_task(self._pass(transport), name="a TLS handshake")  # noqa: TID251

    def data_received(self, data: bytes) -> None:
        self._early += data  # the peer's first words came right behind its handshake

    def connection_lost(self, error: Exception | None) -> None:
        self._server.leave(self)

    def refuse(self, code: str, message: str) -> None:
        """End the connection; whatever the reason is, the peer could not read it."""
        self.abort()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    async def _pass(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        since, seconds = loop.time(), self._server.limits.handshake
        try:
            secured = None
            if not transport.is_closing():
                secured = await loop.start_tls(
                    transport, self, self._tls, server_side=True, ssl_handshake_timeout=seconds
                )
        except OSError:  # TLS errors are, too
            return
        finally:
            self._server.leave(self)
        if secured is None or secured.is_closing():
            return
        connection = Connection(self._server, since)
        secured.set_protocol(connection)
        connection.connection_made(secured)
        if self._early:
            connection.data_received(bytes(self._early))
