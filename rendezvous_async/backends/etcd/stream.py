"""A long-lived stream to the cluster, opened on first use and reopened whenever it breaks.

A driver has one for keep-alives and one for watches. Requests go through an outbox, so that a cancelled caller never
cancels the stream. A broken stream raises nothing; the next one is opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import Any

import anyio
from aetcd import rpc
from grpc.aio import EOF, UsageError

from rendezvous_async.aio import clock
from rendezvous_async.backends.etcd.channel import FIRST_PAUSE, LONGEST_PAUSE, ClusterClient, logger
from rendezvous_async.backends.etcd.faults import ConnectionTornError, EtcdFault, answer_of, describe, judge
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Stream"]


class Stream(ABC):
    """The base of keep-alives and watches; the driver's owner task runs ``run()``."""

    method: str
    """The etcd call that opens the stream."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._outbox: deque[Any] = deque()
        self._filled = anyio.Event()
        self._wanted = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._why = ""
        self.is_open = False
        self.member = cluster.member
        cluster.on_move(self._follow)

    def want(self) -> None:
        """Open the stream if it is not open yet."""
        self._wanted.set()

    def send(self, request: Any) -> None:
        """Queue a request. While the stream is down it is dropped; ``_opened`` makes up for it."""
        if self.is_open:
            self._outbox.append(request)
            self._filled.set()

    def reopen(self, why: str) -> None:
        """Close the current stream and open another."""
        if self._scope is not None:
            self._why = self._why or why
            self._scope.cancel()

    def move_on(self, why: str) -> None:
        """Reopen the stream at the next member; calls and other streams are not affected."""
        self.member = self._cluster.after(self.member)
        self.reopen(why)

    def _follow(self) -> None:
        """Move to the member in use."""
        if self.member is not self._cluster.member:
            self.member = self._cluster.member
            self.reopen("another member is in use")

    async def run(self) -> None:
        """Keep the stream open for as long as this task lives."""
        await self._wanted.wait()
        pause = FIRST_PAUSE / 2
        while True:
            started = clock.now()
            await self._once()
            logger.debug("%s stream to etcd ended: %s", self.method, self._why, extra=self._cluster.outage.fields)
            # Back off only from streams that fail at once; a silent one has already taken its time.
            lasted = clock.now() - started >= self._cluster.ask_next_after
            pause = FIRST_PAUSE if lasted else min(2 * pause, LONGEST_PAUSE)
            await anyio.sleep(pause)

    async def _once(self) -> None:
        """Open the stream and serve it until it breaks."""
        self._why = ""
        with anyio.CancelScope() as self._scope:
            if await self._prepare():
                await self._serve()
        self._scope = None

    async def _serve(self) -> None:
        member, token = self.member, self._cluster.token
        self._outbox.clear()
        try:
            call = member.method(self.method)(metadata=self._cluster.metadata)
        except UsageError:
            self._why = "the channel is closed"
            return
        self.is_open = True
        try:
            self._opened()
            async with anyio.create_task_group() as group:
                group.start_soon(self._write, call)
                group.start_soon(self._watch_over)
                error = await self._read(call)
                group.cancel_scope.cancel()
        finally:
            self.is_open = False
            call.cancel()
        self._why = describe(error)
        match judge(error, has_user=self._cluster.has_user):
            case EtcdFault.RENEW:
                with suppress(RendezvousConnectionError):
                    await self._cluster.renew(token)
            case fault:
                self._cluster.leave(member, self._why, hopeless=fault is EtcdFault.HOPELESS)
                if self.member is member:
                    self.member = self._cluster.after(member)

    async def _read(self, call: Any) -> Exception:
        """Handle responses until the stream breaks; return the error."""
        try:
            while (response := await self._cluster.under_way.answer(call.read())) is not EOF:
                self._received(response)
        except (rpc.AioRpcError, ConnectionTornError) as error:
            return error
        return ConnectionTornError("the server ended the stream")

    async def _write(self, call: Any) -> None:
        # The read fails along with the write, and reports why.
        with suppress(rpc.AioRpcError, ConnectionTornError):
            # write() would wait for this too, but would not notice that the call is cancelled.
            await answer_of(call.wait_for_connection())
            while True:
                while self._outbox:
                    await self._cluster.under_way.answer(call.write(self._outbox.popleft()))
                self._filled = anyio.Event()
                await self._filled.wait()

    async def _prepare(self) -> bool:
        """Prepare for a new stream; return False to retry later."""
        return True

    @abstractmethod
    def _opened(self) -> None:
        """Send the first requests of a new stream."""

    @abstractmethod
    def _received(self, response: Any) -> None:
        """Handle one response; must not block."""

    @abstractmethod
    async def _watch_over(self) -> None:
        """Monitor the open stream; call ``reopen`` if it has gone silent."""
