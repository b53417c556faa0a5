"""The helper of bridge.py: makes gRPC calls for the process at the other end of its input, and ends with it."""

from __future__ import annotations

from rendezvous_async.backends.etcd import forks as forks  # Before anything else imports grpc.

# isort: split
import asyncio
import socket
from typing import Any

import anyio
from aetcd import rpc
from grpc.aio import EOF

from rendezvous_async.backends.etcd.bridge import TlsFiles, frames, pack
from rendezvous_async.backends.etcd.faults import ConnectionTornError, answer_of
from rendezvous_async.backends.etcd.transport import open_channel

__all__ = ["Helper"]

CHUNK = 1 << 16


class Helper:
    """Makes the calls.

    Args:
        reader: Where the other process's frames come from.
        writer: Where the answers go.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tls: TlsFiles | None = None
        self._channels: dict[str, Any] = {}
        self._outboxes: dict[int, asyncio.Queue[bytes | None]] = {}

    def __repr__(self) -> str:
        return f"<Helper {', '.join(self._channels)}>"

    async def run(self) -> None:
        """Make calls until the other process has gone."""
        buffer = bytearray()
        async with anyio.create_task_group() as group:
            while data := await self._reader.read(CHUNK):
                buffer += data
                for frame in frames(buffer):
                    match frame:
                        case [_, "tls", ca, key, cert]:
                            self._tls = TlsFiles(ca, key, cert)
                        case [number, "call", *call]:
                            group.start_soon(self._call, number, *call)
                        case [number, "stream", *call]:
                            self._outboxes[number] = asyncio.Queue()
                            group.start_soon(self._stream, number, *call)
                        case [number, "write", request] if number in self._outboxes:
                            self._outboxes[number].put_nowait(request)
                        case [number, "cancel"] if number in self._outboxes:
                            self._outboxes[number].put_nowait(None)
            group.cancel_scope.cancel()

    def _channel(self, target: str) -> Any:
        if target not in self._channels:
            self._channels[target] = open_channel(target, self._tls)
        return self._channels[target]

    def _answer(self, *frame: object) -> None:
        self._writer.write(pack(*frame))

    def _fail(self, number: int, error: Exception) -> None:
        if isinstance(error, rpc.AioRpcError):
            self._answer(number, "error", error.code().name, str(error.details() or ""))
        else:
            self._answer(number, "error", "UNAVAILABLE", str(error))

    async def _call(
        self, number: int, target: str, path: str, request: bytes, timeout: float, metadata: list[list[str]]
    ) -> None:
        call = self._channel(target).unary_unary(path)
        try:
            response = await answer_of(call(request, timeout=timeout, metadata=[tuple(pair) for pair in metadata]))
            self._answer(number, "answer", response)
        except (rpc.AioRpcError, ConnectionTornError) as error:
            self._fail(number, error)

    async def _stream(self, number: int, target: str, path: str, metadata: list[list[str]]) -> None:
        call = self._channel(target).stream_stream(path)(metadata=[tuple(pair) for pair in metadata])
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write_all, call, self._outboxes[number])
                while (response := await answer_of(call.read())) is not EOF:
                    self._answer(number, "answer", response)
                self._answer(number, "end")
                group.cancel_scope.cancel()
        except* (rpc.AioRpcError, ConnectionTornError) as errors:
            self._fail(number, errors.exceptions[0])
        finally:
            call.cancel()
            del self._outboxes[number]

    async def _write_all(self, call: Any, outbox: asyncio.Queue[bytes | None]) -> None:
        """Write to a stream until it is cancelled or breaks; its read then says why."""
        try:
            while (request := await outbox.get()) is not None:
                await answer_of(call.write(request))
        except (rpc.AioRpcError, ConnectionTornError):
            return
        call.cancel()


async def main() -> None:
    """Serve the other end of standard input."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=0))
    helper = Helper(reader, writer)
    try:
        await helper.run()
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(main())
