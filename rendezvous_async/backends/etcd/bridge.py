"""gRPC in another process, for one that cannot use it itself (see forks.py): its helper, and the calls to it.

The helper (bridge_process.py) is started with the first call, makes the calls as they are, and ends with its socket.
One that does not answer in time, or whose frames make no sense, is killed, and the next call starts another. Frames
(bridge_frames.py) begin with a number; each but "tls" and "cancel" gets one answer of that number::

    to the helper      [0, "tls", ca, key, cert]    [n, "call", target, path, request, timeout, metadata]
                       [n, "stream", stream, target, path, metadata]    [n, "write", stream, request]
                       [n, "read", stream]    [0, "cancel", stream]
    from the helper    [0, "ready"]    [n, "answer", response]    [n, "end"]    [n, "error", status code, details]
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import sys
from contextlib import suppress
from typing import NamedTuple, cast

import anyio
from aetcd import rpc
from grpc.aio import Metadata

from rendezvous_async.backends.etcd.bridge_frames import BridgeFrameError, frames, pack

__all__ = ["Bridge", "HelperProcess", "TlsFiles", "failure"]

logger = logging.getLogger("rendezvous_async.etcd")

PROGRAM = "rendezvous_async.backends.etcd.bridge_process"
START_SECONDS = 30.0
"""How long a helper may take to start: it imports grpc, maybe on a busy machine."""
LOST = "the helper process for gRPC has ended"


class TlsFiles(NamedTuple):
    """The contents of the files for TLS."""

    ca: bytes | None
    key: bytes | None
    cert: bytes | None


class HelperProcess(asyncio.Protocol):
    """A helper and the socket to it.

    Attributes:
        is_lost: Whether it can no longer be used.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._count = 0
        self._answers: dict[int, asyncio.Future[bytes | None]] = {}
        self._may_write = anyio.Event()

    def __repr__(self) -> str:
        return f"<HelperProcess {self.pid} {'lost' if self.is_lost else f'owes {len(self._answers)} answers'}>"

    @property
    def pid(self) -> int:
        """Its process id; 0 before it is started."""
        return 0 if self._process is None else self._process.pid

    async def start(self, tls: TlsFiles | None) -> None:
        """Start the process, and wait until it takes calls.

        Raises:
            AioRpcError: It cannot be started.
        """
        ready = self._answers[0] = asyncio.get_running_loop().create_future()
        try:
            await self._spawn()
            with anyio.fail_after(START_SECONDS):
                await ready
            if tls is not None:
                self._write(0, "tls", *tls)
        except TimeoutError:
            self.kill()
            raise failure("UNAVAILABLE", f"the helper process for gRPC did not start in {START_SECONDS:g} s") from None
        except OSError as error:
            self.kill()
            raise failure("UNAVAILABLE", f"the helper process for gRPC cannot be started: {error}") from error
        except BaseException:
            self.kill()
            raise
        finally:
            del self._answers[0]

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                ours.setblocking(False)
                await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
                path = os.pathsep.join(entry for entry in sys.path if entry)
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable or "python3", "-P", "-m", PROGRAM),
                    stdin=theirs.fileno(),
                    env=os.environ | {"PYTHONPATH": path},
                    start_new_session=True,
                )
            finally:
                if self._transport is None:
                    ours.close()

    async def ask(self, *frame: object, seconds: float = math.inf) -> bytes | None:
        """Send a frame and return the answer to it; None at the end of a stream.

        Raises:
            AioRpcError: The call has failed; DEADLINE_EXCEEDED if the helper did not answer within ``seconds``.
        """
        self._count += 1
        number = self._count
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            with anyio.move_on_after(seconds):
                while not self._may_write.is_set():
                    await self._may_write.wait()
                self._write(number, *frame)
                return await answer
            self.kill()
            raise failure("DEADLINE_EXCEEDED", f"the helper process for gRPC did not answer in {seconds:g} s")
        finally:
            del self._answers[number]

    def cancel(self, stream: int) -> None:
        """Cancel a stream; what was asked of it gets an error from the helper."""
        if not self.is_lost:
            self._write(0, "cancel", stream)

    def kill(self) -> None:
        """End it at once; pending calls fail."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()
        self._may_write.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(failure("UNAVAILABLE", LOST))
        with suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.kill()

    async def aclose(self) -> None:
        """Kill it, before the first ``await``, and wait for its end."""
        self.kill()
        if self._process is not None:
            with anyio.CancelScope(shield=True):
                await self._process.wait()

    def _write(self, *frame: object) -> None:
        if self.is_lost or self._transport is None:
            raise failure("UNAVAILABLE", LOST)
        try:
            self._transport.write(pack(*frame))
        except BridgeFrameError as error:
            raise failure("RESOURCE_EXHAUSTED", f"request is too large: {error}") from None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.kill()

    def pause_writing(self) -> None:
        self._may_write = anyio.Event()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            for frame in frames(self._buffer):
                self._answered(frame)
        except BridgeFrameError as error:
            logger.warning("process %d, which makes calls to etcd for this one, sent %s: killed", self.pid, error)
            self.kill()

    def _answered(self, frame: list[object]) -> None:
        match frame:
            case [int(number), *outcome] if number in self._answers:
                answer = self._answers[number]
            case [int(), *_]:
                return  # Whoever asked was cancelled.
            case _:
                raise BridgeFrameError("a frame without a number")
        match outcome:
            case _ if answer.done():
                return
            case ["answer", bytes(data)]:
                answer.set_result(data)
            case ["error", str(code), str(details)] if code in rpc.StatusCode.__members__:
                answer.set_exception(failure(code, details))
            case ["end"] | ["ready"]:
                answer.set_result(None)
            case _:
                raise BridgeFrameError("an unknown frame")


class Bridge:
    """The way to a helper process, which is replaced when it is lost.

    Args:
        tls: For ``etcds://``; None without TLS.
    """

    def __init__(self, tls: TlsFiles | None) -> None:
        self._tls = tls
        self._starting = anyio.Lock()
        self._helper: HelperProcess | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Bridge {'closed' if self._is_closed else self._helper or 'down'}>"

    async def helper(self) -> HelperProcess:
        """Return the helper; start one if there is none.

        Raises:
            AioRpcError: The bridge is closed, or no helper can be started.
        """
        async with self._starting:
            if self._is_closed:
                raise failure("CANCELLED", "the connection is closed")
            if self._helper is None or self._helper.is_lost:
                if self._helper is not None:
                    await self._helper.aclose()
                self._helper = HelperProcess()
                await self._helper.start(self._tls)
                logger.info("process %d was forked: process %d makes its calls to etcd", os.getpid(), self._helper.pid)
            return self._helper

    async def aclose(self) -> None:
        """End the helper; pending calls fail."""
        self._is_closed = True
        if self._helper is not None:
            await self._helper.aclose()


def failure(code: str, details: str) -> rpc.AioRpcError:
    """Return the error of a call."""
    return rpc.AioRpcError(rpc.StatusCode[code], Metadata(), Metadata(), details=details)
