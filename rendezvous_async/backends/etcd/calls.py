"""What gRPC has been asked is not cancelled while it is under way: only who waits for the answer goes.

grpc.aio frees what a batch of operations holds when it tells whoever awaits the batch of its end. If that one has been
cancelled, nobody is told, and the memory is lost (grpc/grpc issue 43360). Measured with grpcio 1.85.1: 96 bytes for a
pending read, 240 for a write, 1.6 KiB for a unary call, and some 7 KiB for a read whose answer came nevertheless.

So a task of its own waits for each answer, and is left to itself when nobody wants the answer any more. A unary call
ends with its answer or at its deadline. A read or a write ends when the call of its stream is cancelled, which gRPC
takes well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from aetcd import rpc
from grpc.aio import UsageError

from rendezvous_async.backends.etcd.faults import ConnectionTornError, answer_of

__all__ = ["Calls", "error_of"]

T = TypeVar("T")


class Calls:
    """Whatever one backend waits for from gRPC; ``len()`` of it is how much that is."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    async def answer(self, call: Awaitable[T]) -> T:
        """Wait for what gRPC answers; who is cancelled meanwhile leaves the call to itself.

        Raises:
            AioRpcError: What else gRPC answers.
            ConnectionTornError: The channel was closed, or the call of a stream was cancelled.
        """
        return await answer_of(asyncio.shield(self.start(call)))

    def start(self, call: Awaitable[T]) -> asyncio.Task[T]:
        """Return a task that ends as the call does; who does not await it asks ``error_of``."""
        task = asyncio.create_task(_end_of(call))  # noqa: TID251 - outlives its caller; aclose() awaits it
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    async def drain(self, seconds: float) -> None:
        """Wait until nothing is under way any more, for so long."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)

    async def aclose(self, seconds: float) -> None:
        """Wait for the ends of calls that are over, for so long; then see to it that no task is left."""
        await self.drain(seconds)
        for task in self._under_way:
            task.cancel()
        await self.drain(seconds)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # When nobody wants the answer, nobody is to be told that it was an error.


def error_of(task: asyncio.Task[Any]) -> Exception | None:
    """Return the error of a call that has ended: what gRPC answered, or that its channel was closed."""
    if task.cancelled():
        return ConnectionTornError("the connection was closed during the call")
    error = task.exception()
    if error is None or isinstance(error, rpc.AioRpcError):
        return error
    if isinstance(error, (UsageError, asyncio.InvalidStateError)):
        return ConnectionTornError("the connection is closed")
    raise error


async def _end_of(call: Awaitable[T]) -> T:
    return await call
