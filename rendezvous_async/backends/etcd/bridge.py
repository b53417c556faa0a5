"""gRPC in another process, for one that cannot use it itself (see forks.py): looks like a channel to aetcd's stubs.

The helper (bridge_process.py) is started with the first call, makes the calls as they are, and ends with its socket.
Frames in both directions are a length and a msgpack array that begins with the number of a call::

    to the helper      [0, "tls", ca, key, cert]    [n, "call", target, path, request, timeout, metadata]
                       [n, "stream", target, path, metadata]    [n, "write", request]    [n, "cancel"]
    from the helper    [n, "answer", response]    [n, "error", status code, details]    [n, "end"]
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
import msgspec
from aetcd import rpc
from grpc.aio import EOF, Metadata

__all__ = ["Bridge", "TlsFiles", "frames", "pack"]

logger = logging.getLogger("rendezvous_async.etcd")

LENGTH = 4
PROGRAM = "rendezvous_async.backends.etcd.bridge_process"
LAST_SECONDS = 2.0
"""How long a helper may take to end, once its socket is closed."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class TlsFiles(NamedTuple):
    """The contents of the files for TLS."""

    ca: bytes | None
    key: bytes | None
    cert: bytes | None


def pack(*frame: object) -> bytes:
    """Return the bytes of a frame."""
    body = _encode(frame)
    return len(body).to_bytes(LENGTH, "big") + body


def frames(buffer: bytearray) -> Iterator[list[Any]]:
    """Take the whole frames from a buffer."""
    while len(buffer) >= LENGTH:
        end = LENGTH + int.from_bytes(buffer[:LENGTH], "big")
        if len(buffer) < end:
            return
        body = bytes(buffer[LENGTH:end])
        del buffer[:end]
        yield _decode(body)


class Bridge(asyncio.Protocol):
    """The way to a helper process.

    Args:
        tls: For ``etcds://``; None without TLS.
    """

    def __init__(self, tls: TlsFiles | None) -> None:
        self._tls = tls
        self._starting = anyio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._count = 0
        self._calls: dict[int, asyncio.Queue[list[Any]]] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Bridge {'closed' if self._is_closed else 'up' if self._transport else 'down'} {len(self._calls)}>"

    def channel(self, target: str) -> BridgeChannel:
        """Return the channel to one member."""
        return BridgeChannel(self, target)

    def open(self) -> int:
        """Return the number of a new call."""
        self._count += 1
        self._calls[self._count] = asyncio.Queue()
        return self._count

    def end(self, call: int) -> None:
        """Drop further answers to a call; its waiter gets an error."""
        answers = self._calls.pop(call, None)
        if answers is not None:
            answers.put_nowait([call, "error", "CANCELLED", "the call was cancelled"])

    async def start(self) -> None:
        """Start the helper, unless it runs."""
        async with self._starting:
            if self._is_closed:
                raise failure("CANCELLED", "the connection is closed")
            if self._transport is not None:
                return
            await self._reap()
            ours, theirs = socket.socketpair()
            with theirs:
                path = os.pathsep.join(entry for entry in sys.path if entry)
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", PROGRAM),
                    stdin=theirs.fileno(),
                    env=os.environ | {"PYTHONPATH": path},
                    start_new_session=True,
                )
            ours.setblocking(False)
            self._transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
            self._buffer.clear()
            logger.info("process %d was forked: process %d makes its calls to etcd", os.getpid(), self._process.pid)
            if self._tls is not None:
                self.send(0, "tls", *self._tls)

    def send(self, *frame: object) -> None:
        """Send a frame to the helper, if it runs."""
        if self._transport is not None:
            self._transport.write(pack(*frame))

    async def answer(self, call: int) -> bytes | None:
        """Return the next answer to a call; None at its end.

        Raises:
            AioRpcError: The call has failed.
        """
        if call not in self._calls:
            raise failure("CANCELLED", "the call was cancelled")
        match (await self._calls[call].get())[1:]:
            case ["answer", bytes(data)]:
                return data
            case ["error", str(code), str(details)]:
                raise failure(code, details)
            case _:
                return None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for frame in frames(self._buffer):
            if frame[0] in self._calls:
                self._calls[frame[0]].put_nowait(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for number, answers in self._calls.items():
            answers.put_nowait([number, "error", "UNAVAILABLE", "the helper process for gRPC has ended"])

    async def aclose(self) -> None:
        """End the helper; pending calls fail."""
        self._is_closed = True
        async with self._starting:
            if self._transport is not None:
                self._transport.close()
            await self._reap()

    async def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with anyio.move_on_after(LAST_SECONDS):
                await process.wait()
            with suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
            await process.wait()


class BridgeChannel:
    """What aetcd's stubs take for a channel of grpc.aio."""

    def __init__(self, bridge: Bridge, target: str) -> None:
        self._bridge = bridge
        self._target = target

    def __repr__(self) -> str:
        return f"<BridgeChannel {self._target} over {self._bridge!r}>"

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., Any]:
        async def call(request: Any, *, timeout: float, metadata: Any) -> Any:
            number = self._bridge.open()
            try:
                await self._bridge.start()
                self._bridge.send(number, "call", self._target, path, request_serializer(request), timeout, metadata)
                return response_deserializer(await self._bridge.answer(number))
            finally:
                self._bridge.end(number)

        return call

    def stream_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., Any]:
        def call(*, metadata: Any) -> BridgeStream:
            opening = ("stream", self._target, path, metadata)
            return BridgeStream(self._bridge, opening, request_serializer, response_deserializer)

        return call

    unary_stream = stream_unary = unary_unary
    """etcd has some of these; none of them is used."""

    async def close(self) -> None:
        """The bridge is closed instead."""


class BridgeStream:
    """A stream of requests and responses."""

    def __init__(self, bridge: Bridge, opening: tuple[object, ...], serialize: Any, deserialize: Any) -> None:
        self._bridge = bridge
        self._opening: tuple[object, ...] | None = opening
        self._serialize = serialize
        self._deserialize = deserialize
        self._number = bridge.open()

    async def wait_for_connection(self) -> None:
        """Open the stream; if that fails, ``read`` raises the error."""
        await self._bridge.start()
        opening, self._opening = self._opening, None
        if opening is not None:
            self._bridge.send(self._number, *opening)

    async def read(self) -> Any:
        """Return the next response, or EOF."""
        await self.wait_for_connection()
        answer = await self._bridge.answer(self._number)
        return EOF if answer is None else self._deserialize(answer)

    async def write(self, request: Any) -> None:
        self._bridge.send(self._number, "write", self._serialize(request))

    def cancel(self) -> None:
        self._bridge.send(self._number, "cancel")
        self._bridge.end(self._number)


def failure(code: str, details: str) -> rpc.AioRpcError:
    """Return the error of a call."""
    return rpc.AioRpcError(rpc.StatusCode[code], Metadata(), Metadata(), details=details)
