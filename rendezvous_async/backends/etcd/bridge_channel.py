"""What aetcd's stubs take for a gRPC channel: it makes its calls over a bridge."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import anyio
from grpc.aio import EOF

from rendezvous_async.backends.etcd.bridge import Bridge, HelperProcess, failure

__all__ = ["BridgeChannel", "BridgeStream"]

GRACE = 1.0
"""Seconds that the helper has, beyond the timeout of a call, to tell its end."""
STREAM_SECONDS = 3.0
"""How long the helper may take to begin a stream, which does not depend on the server."""

_numbers = count(1)


class BridgeChannel:
    """The channel to one member."""

    def __init__(self, bridge: Bridge, target: str) -> None:
        self._bridge = bridge
        self._target = target

    def __repr__(self) -> str:
        return f"<BridgeChannel {self._target} over {self._bridge!r}>"

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., Any]:
        async def call(request: Any, *, timeout: float, metadata: Any) -> Any:
            helper = await self._bridge.helper()
            frame = ("call", self._target, path, request_serializer(request), timeout, metadata)
            return response_deserializer(await helper.ask(*frame, seconds=timeout + GRACE))

        return call

    def stream_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., Any]:
        def call(*, metadata: Any) -> BridgeStream:
            opening = (self._target, path, metadata)
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
        self._opening = opening
        self._serialize = serialize
        self._deserialize = deserialize
        self._number = next(_numbers)
        self._beginning = anyio.Lock()
        self._helper: HelperProcess | None = None
        self._is_open = False
        self._is_cancelled = False

    async def wait_for_connection(self) -> None:
        """Begin the stream, unless it has begun.

        Raises:
            AioRpcError: There is no helper, or it does not answer.
        """
        async with self._beginning:
            if self._helper is None:
                self._helper = await self._bridge.helper()
            if self._is_cancelled:
                raise failure("CANCELLED", "the call was cancelled")
            if not self._is_open:
                await self._helper.ask("stream", self._number, *self._opening, seconds=STREAM_SECONDS)
                self._is_open = True

    async def read(self) -> Any:
        """Return the next response, or EOF."""
        answer = await self._ask("read", self._number)
        return EOF if answer is None else self._deserialize(answer)

    async def write(self, request: Any) -> None:
        await self._ask("write", self._number, self._serialize(request))

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._helper is not None:
            self._helper.cancel(self._number)

    async def _ask(self, *frame: object) -> bytes | None:
        await self.wait_for_connection()
        if self._helper is None:  # Never; for the types.
            return None
        return await self._helper.ask(*frame)
