"""A TCP relay that a test puts between a client and a real etcd, to lose exactly what it wants lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast


class Relay:
    """Passes bytes on, until told otherwise.

    Attributes:
        port: Where it listens.
        hold_requests: Keep the first piece that each client sends, and drop what follows (that it has given up, for
            one); ``release()`` hands it on.
        answered: Set when the answer to a call that began after ``drop_answers`` was set has been dropped. A stream's
            keep-alives and the server's own pings and window updates are no such answers: grpc sends some of them
            as soon as a request arrives, long before it is carried out.
        requested: Set when a request was held.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.hold_requests = False
        self._drop_answers = False
        self.requested = asyncio.Event()
        self.answered = asyncio.Event()
        self.sides: set[Side] = set()
        self._held: dict[Side, bytes] = {}
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def drop_answers(self) -> bool:
        """Throw away what the server sends; the connection is of no use afterwards, so ``cut()`` it."""
        return self._drop_answers

    @drop_answers.setter
    def drop_answers(self, drop: bool) -> None:
        self._drop_answers = drop
        self.answered.clear()
        for side in self.sides:
            side.calls.clear()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Side(self, None), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Break all connections and take no new ones, until ``open()``."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        for side in tuple(self.sides):
            side.abort()

    def release(self) -> None:
        """Hand on the requests that were held, also those whose client has gone."""
        self.hold_requests = False
        held, self._held = self._held, {}
        for side, data in held.items():
            side.send(data)

    def passes(self, side: Side, data: bytes) -> bool:
        """Tell whether these bytes are to be handed on."""
        frames = side.frames.feed(data)
        requests = {frame.stream for frame in frames if frame.kind in (_DATA, _HEADERS)}
        assert side.other is not None
        if side.from_client:
            side.calls.update(frame.stream for frame in frames if frame.kind == _HEADERS)
            if self.hold_requests and requests:
                self._held.setdefault(side.other, data)
                self.requested.set()
                return False
        elif self.drop_answers:
            if requests & side.other.calls:
                self.answered.set()
            return False
        return True


class Frame(NamedTuple):
    kind: int
    stream: int


_NONE, _DATA, _HEADERS = -1, 0, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Frames:
    """Finds the frames of HTTP/2 in what one side sends, wherever TCP cuts it into pieces."""

    HEAD = 9

    def __init__(self, preface: bytes) -> None:
        self._frame = Frame(_NONE, 0)
        self._left = len(preface)
        self._head = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes belong to, but for one whose head is not complete yet."""
        found = [self._frame] if self._left else []
        while data:
            skipped = min(self._left, len(data))
            self._left -= skipped
            data = data[skipped:]
            missing = self.HEAD - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) == self.HEAD:
                head, self._head = self._head, b""
                self._left = int.from_bytes(head[:3], "big")
                self._frame = Frame(head[3], int.from_bytes(head[5:], "big") & 0x7FFFFFFF)
                found.append(self._frame)
        return found


class Side(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, relay: Relay, other: Side | None) -> None:
        self.relay = relay
        self.other = other
        self.from_client = other is None
        self.frames = Frames(_PREFACE if self.from_client else b"")
        self.calls: set[int] = set()
        """The streams that this client has begun since answers are dropped."""
        self.transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.relay.sides.add(self)
        for data in self._early:
            self.transport.write(data)
        if self.from_client:
            loop = asyncio.get_running_loop()
            self.other = other = Side(self.relay, self)
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
        self.relay.sides.discard(self)
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
