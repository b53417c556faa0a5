"""The helper of bridge.py: makes gRPC calls for the process at the other end of its input, and ends with it."""

from __future__ import annotations

from rendezvous_async.backends.etcd import forks as forks  # Before anything else imports grpc.

# isort: split
import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

import anyio
from aetcd import rpc
from grpc.aio import EOF

from rendezvous_async.backends.etcd.bridge import TlsFiles
from rendezvous_async.backends.etcd.bridge_frames import BridgeFrameError, frames, pack
from rendezvous_async.backends.etcd.faults import ConnectionTornError, answer_of
from rendezvous_async.backends.etcd.transport import open_channel

__all__ = ["Helper"]

logger = logging.getLogger("rendezvous_async.etcd")

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
        self._streams: dict[int, Any] = {}

    def __repr__(self) -> str:
        return f"<Helper {', '.join(self._channels)}>"

    async def run(self) -> None:
        """Make calls until the other process has gone."""
        self._writer.write(pack(0, "ready"))
        buffer = bytearray()
        async with anyio.create_task_group() as group:
            try:
                while data := await self._reader.read(CHUNK):
                    buffer += data
                    for frame in frames(buffer):
                        match frame:
                            case [_, "tls", ca, key, cert]:
                                self._tls = TlsFiles(ca, key, cert)
                            case [_, "cancel", stream]:
                                if stream in self._streams:
                                    self._streams.pop(stream).cancel()
                            case [number, *what]:
                                group.start_soon(self._handle, number, what)
                            case _:
                                raise BridgeFrameError("an empty frame")
            except ConnectionError:
                pass  # It was killed.
            except BridgeFrameError as error:
                logger.error("the helper process for gRPC was sent %s", error)
            group.cancel_scope.cancel()

    async def _handle(self, number: int, what: list[Any]) -> None:
        try:
            data = await self._answer(what)
            answer = pack(number, "end") if data is EOF else pack(number, "answer", data)
        except rpc.AioRpcError as error:
            answer = pack(number, "error", error.code().name, str(error.details() or ""))
        except ConnectionTornError as error:
            answer = pack(number, "error", "UNAVAILABLE", str(error))
        except BridgeFrameError as error:
            answer = pack(number, "error", "RESOURCE_EXHAUSTED", f"the answer cannot be read: {error}")
        with suppress(ConnectionError):  # The reader gets it, too.
            self._writer.write(answer)
            await self._writer.drain()

    async def _answer(self, what: list[Any]) -> Any:
        """Do what the other process asks for; return what it gets."""
        match what:
            case ["call", target, path, request, timeout, metadata]:
                call = self._channel(target).unary_unary(path)
                return await answer_of(call(request, timeout=timeout, metadata=[tuple(pair) for pair in metadata]))
            case ["stream", stream, target, path, metadata]:
                if stream not in self._streams:  # It is asked again, if whoever asked first was cancelled.
                    method = self._channel(target).stream_stream(path)
                    self._streams[stream] = method(metadata=[tuple(pair) for pair in metadata])
            case ["read", stream] if stream in self._streams:
                return await answer_of(self._streams[stream].read())
            case ["write", stream, request] if stream in self._streams:
                await answer_of(self._streams[stream].write(request))
            case _:
                raise ConnectionTornError("the call was cancelled")
        return b""

    def _channel(self, target: str) -> Any:
        if target not in self._channels:
            self._channels[target] = open_channel(target, self._tls)
        return self._channels[target]


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
