"""Shields gRPC calls from cancellation: a cancelled caller stops waiting, but the call runs to its end.

grpc.aio frees the memory of an operation when it notifies the awaiting task. If that task was cancelled, the memory
leaks (grpc/grpc issue 43360). Measured with grpcio 1.85.1: 96 bytes for a pending read, 240 for a write, 1.6 KiB for a
unary call, and some 7 KiB for a read that is answered after all.

So a separate task awaits each answer, and keeps running if its caller is cancelled. A unary call ends with its answer
or at its deadline. A read or a write ends when the call of its stream is cancelled, which does not leak.
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
    """The gRPC operations that one driver has in flight; ``len()`` counts them."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    async def answer(self, call: Awaitable[T]) -> T:
        """Return the response of a call; on cancellation, leave the call running.

        Raises:
            AioRpcError: The call failed.
            ConnectionTornError: The channel was closed, or the call of a stream was cancelled.
        """
        return await answer_of(asyncio.shield(self.start(call)))

    def start(self, call: Awaitable[T]) -> asyncio.Task[T]:
        """Return a task that awaits the call; once it is done, ``error_of`` returns its error."""
        task = asyncio.create_task(_end_of(call))  # noqa: TID251 - outlives its caller; aclose() awaits it
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    async def drain(self, seconds: float) -> None:
        """Wait up to ``seconds`` until nothing is in flight."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)

    async def aclose(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the remaining calls, then cancel their tasks."""
        await self.drain(seconds)
        for task in self._under_way:
            task.cancel()
        await self.drain(seconds)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio would log the error of an abandoned call.


def error_of(task: asyncio.Task[Any]) -> Exception | None:
    """Return the error of a finished call, or None; ConnectionTornError if its channel was closed."""
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
