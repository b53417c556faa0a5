"""A peer of a server without a socket: what it says arrives at once, and what it is told is there to be read."""

from __future__ import annotations

import asyncio
from typing import Any

from rendezvous_async.backends.tcp import TcpServer, wire
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.versions import PROTOCOLS


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and does what the kernel would when it is told to.

    Attributes:
        written: What the server has sent.
        calls: What else it has done, in order.
    """

    def __init__(self, can_write_eof: bool = True) -> None:
        super().__init__({"peername": ("192.0.2.7", 4711)})
        self.written = bytearray()
        self.calls: list[str] = []
        self.protocol: Connection | None = None
        self._can_write_eof = can_write_eof

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"high={high}")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def can_write_eof(self) -> bool:
        return self._can_write_eof

    def write_eof(self) -> None:
        self.calls.append("eof")

    def close(self) -> None:
        self.calls.append("close")
        self._lose()

    def abort(self) -> None:
        self.calls.append("abort")
        self._lose()

    def _lose(self) -> None:
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)


class Peer:
    """A client at the other end of a connection of this server."""

    def __init__(self, server: TcpServer, *, can_write_eof: bool = True, since: float | None = None) -> None:
        self.server = server
        self.wire = Wire(can_write_eof)
        self.connection = Connection(server, since)
        self.wire.protocol = self.connection
        self.connection.connection_made(self.wire)
        self._decoder = wire.FrameDecoder(2**30)

    @property
    def is_cut(self) -> bool:
        return self.wire.protocol is None

    def says(self, *messages: wire.AnyMessage) -> list[Any]:
        """Send messages, all at once; return what the server tells."""
        return self.sends(b"".join(map(wire.frame, messages)))

    def sends(self, data: bytes) -> list[Any]:
        """Send bytes; return what the server tells."""
        self.connection.data_received(data)
        return self.hears()

    def hears(self) -> list[Any]:
        """Return what the server has told since the last time."""
        data, self.wire.written = bytes(self.wire.written), bytearray()
        found = []
        self._decoder.feed(data)
        while (body := self._decoder.next()) is not None:
            found.append(wire.decode_answer(body))
        return found

    def greets(self, client: str = "client", connection: int = 1, revision: int = 0, scope: str = "") -> list[Any]:
        """Say hello, to a server without a secret."""
        return self.says(wire.Hello(PROTOCOLS, client, connection, revision, b"nonce", scope))

    def loses(self) -> None:
        """Lose the connection."""
        self.wire._lose()


def welcome(server: TcpServer) -> wire.Welcome:
    """Return what a peer is told that is let in, where no secret is needed."""
    return wire.Welcome(PROTOCOLS[-1], server.table.epoch, server.table.revision, b"", "192.0.2.7")
