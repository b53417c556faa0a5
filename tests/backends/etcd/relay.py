"""A TCP relay that a test puts between a client and a real etcd, to lose exactly what it wants lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast


class Relay:
    """Passes bytes on, until told otherwise.

    Attributes:
        port: Where it listens.
        hold_requests: Keep the first piece that each client sends, and drop what follows (that it has given up, for
            one); ``release()`` hands it on.
        drop_answers: Throw away what the server answers; the connection is of no use afterwards, so ``cut()`` it.
        answered: Set when an answer was dropped.
        requested: Set when a request was held.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.hold_requests = False
        self.drop_answers = False
        self.requested = asyncio.Event()
        self.answered = asyncio.Event()
        self._pairs: set[_Side] = set()
        self._held: dict[_Side, bytes] = {}
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self, None), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Break all connections and take no new ones, until ``open()``."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        for side in tuple(self._pairs):
            side.abort()

    def release(self) -> None:
        """Hand on the requests that were held, also those whose client has gone."""
        self.hold_requests = False
        held, self._held = self._held, {}
        for side, data in held.items():
            side.send(data)

    def passes(self, side: _Side, data: bytes) -> bool:
        if side.from_client and self.hold_requests and _has_request(data):
            self._held.setdefault(cast(_Side, side.other), data)
            self.requested.set()
            return False
        if not side.from_client and self.drop_answers:
            self.answered.set()
            return False
        return True


def _has_request(data: bytes) -> bool:
    """Tell whether there is a frame of HEADERS or DATA among these: a client also answers pings, when it likes."""
    at = 0
    while at + 9 <= len(data):
        if data[at + 3] in (0, 1):
            return True
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return False


class _Side(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, relay: Relay, other: _Side | None) -> None:
        self.relay = relay
        self.other = other
        self.from_client = other is None
        self.transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.relay._pairs.add(self)
        for data in self._early:
            self.transport.write(data)
        if self.from_client:
            loop = asyncio.get_running_loop()
            self.other = other = _Side(self.relay, self)
            connect = loop.create_connection(lambda: other, "127.0.0.1", self.relay.target)
            self._connecting = asyncio.ensure_future(connect)  # noqa: TID251 - a test's relay, ended with its server
            self._connecting.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Future[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self.abort()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        if self.relay.passes(self, data):
            self.other.send(data)

    def send(self, data: bytes) -> None:
        if self.transport is None:
            self._early.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.relay._pairs.discard(self)
        if self.other is not None and not self.relay.hold_requests:
            self.other.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    """Open a relay to a local port, and close it at the end."""
    relay = Relay(port)
    await relay.open()
    try:
        yield relay
    finally:
        relay.hold_requests = False
        relay.refuse()
        assert relay._server is not None
        await relay._server.wait_closed()
