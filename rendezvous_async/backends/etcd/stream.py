"""One long-lived stream to the cluster, opened when it is needed and opened again whenever it breaks.

Keep-alives and watches each have one, however many sessions and watches there are. What is sent goes through an outbox,
so that a caller who is cancelled never cancels the stream. Nothing here is raised to anybody: a broken stream is a
reason to open the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import Any

import anyio
from aetcd import rpc
from grpc.aio import EOF, UsageError

from rendezvous_async import clock
from rendezvous_async.backends.etcd.channel import FIRST_PAUSE, LONGEST_PAUSE, Cluster, logger
from rendezvous_async.backends.etcd.faults import ConnectionTornError, Fault, answer_of, describe, judge
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Stream"]


class Stream(ABC):
    """What keep-alives and watches have in common; ``run()`` is run by the backend's owner task."""

    method: str
    """Which of etcd's calls it is."""

    def __init__(self, cluster: Cluster) -> None:
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
        """Have the stream opened, now that somebody needs it."""
        self._wanted.set()

    def send(self, request: Any) -> None:
        """Put a request in the outbox; while the stream is down it is dropped, and ``_opened`` makes up for that."""
        if self.is_open:
            self._outbox.append(request)
            self._filled.set()

    def reopen(self, why: str) -> None:
        """Give up the stream as it is, and open another."""
        if self._scope is not None:
            self._why = self._why or why
            self._scope.cancel()

    def move_on(self, why: str) -> None:
        """Open the stream again at the next member; calls and other streams find out themselves whom to ask."""
        self.member = self._cluster.after(self.member)
        self.reopen(why)

    def _follow(self) -> None:
        """Move to the member that is in use now."""
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
            logger.debug("%s stream to etcd ended: %s", self.method, self._why)
            # One that was silent has cost time enough; only those that fail at once are tried less and less often.
            lasted = clock.now() - started >= self._cluster.ask_next_after
            pause = FIRST_PAUSE if lasted else min(2 * pause, LONGEST_PAUSE)
            await anyio.sleep(pause)

    async def _once(self) -> None:
        """Open the stream, and serve it until it breaks."""
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
            case Fault.RENEW:
                with suppress(RendezvousConnectionError):
                    await self._cluster.renew(token)
            case fault:
                self._cluster.leave(member, self._why, hopeless=fault is Fault.HOPELESS)
                if self.member is member:
                    self.member = self._cluster.after(member)

    async def _read(self, call: Any) -> Exception:
        """Take in responses until the stream breaks, and return why it did."""
        try:
            while (response := await self._cluster.under_way.answer(call.read())) is not EOF:
                self._received(response)
        except (rpc.AioRpcError, ConnectionTornError) as error:
            return error
        return ConnectionTornError("the server ended the stream")

    async def _write(self, call: Any) -> None:
        # Why a write fails is told by the read that fails along with it.
        with suppress(rpc.AioRpcError, ConnectionTornError):
            # A write would wait for this, too, and not notice that the call is cancelled.
            await answer_of(call.wait_for_connection())
            while True:
                while self._outbox:
                    await self._cluster.under_way.answer(call.write(self._outbox.popleft()))
                self._filled = anyio.Event()
                await self._filled.wait()

    async def _prepare(self) -> bool:
        """Do what must be done before the stream is opened; False to try again later."""
        return True

    @abstractmethod
    def _opened(self) -> None:
        """Send what the new stream must know."""

    @abstractmethod
    def _received(self, response: Any) -> None:
        """Take in one response; must not wait."""

    @abstractmethod
    async def _watch_over(self) -> None:
        """Look after the stream while it is open: call ``reopen`` if it has gone silent."""
