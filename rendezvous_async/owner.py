"""The one owner of a rendezvous's tasks, of its backend and of its memberships.

It is a task of its own. It alone enters and leaves the task group that every other task of ours lives in, so a user may
enter the rendezvous in one task and leave it in another, never sees an exception group of ours, and can be cancelled at
any await: what must be cleaned up is cleaned up by the owner, which nobody cancels. Its clean-up is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

from rendezvous_async import clock
from rendezvous_async.backends.base import Backend
from rendezvous_async.clock import answer_within
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.membership import Membership
from rendezvous_async.notice import Notice
from rendezvous_async.settings import Timeouts

__all__ = ["Owner"]

_log = logging.getLogger("rendezvous_async.node")

CLOSE_MARGIN = 5.0
"""Seconds that the backend has beyond ``timeouts.close``: a host waits that long for others before it closes."""


class Owner:
    """Holds the task group until it is told to stop, then leaves nothing behind.

    Args:
        name: For errors and the task's name.
        timeouts: The node's.
        open_backend: Opens the backend when it is first needed; it is closed at the end.
        backend: One that is open already, and stays open.
        make: Opens a session, and makes a membership of it.
        ended: Told when all is done.

    Attributes:
        backend: None until it is first needed.
        membership: The node's present one.
    """

    def __init__(
        self,
        name: str,
        timeouts: Timeouts,
        open_backend: Callable[[], Awaitable[Backend]],
        backend: Backend | None,
        make: Callable[[Backend], Awaitable[Membership]],
        ended: Callable[[], None],
    ) -> None:
        self.backend = backend
        self.membership: Membership | None = None
        self._name = name
        self._timeouts = timeouts
        self._open = open_backend
        self._lent = backend is not None
        self._make = make
        self._ended = ended
        self._unended: list[Membership] = []
        self._is_over = False
        self._pending: list[anyio.Event] = []
        self._started = anyio.Event()
        self._is_told_to_stop = False
        self._to_start: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._woken = Notice()
        self._opening = anyio.Lock(fast_acquire=True)
        self._task = asyncio.create_task(self._own(), name=name)  # noqa: TID251 - this is the owner

    def __repr__(self) -> str:
        return f"<Owner of {self._name} {'ended' if self._task.done() else 'running'}>"

    @property
    def failure(self) -> BaseException | None:
        """What went wrong in the owner itself; None while it runs, and if nothing did."""
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, or has ended by itself."""
        return self._is_told_to_stop or self._is_over

    async def started(self) -> None:
        """Wait until tasks can be started."""
        if not self._started.is_set():
            await self._started.wait()

    async def stop(self) -> None:
        """Stop, and wait until nothing is left; a cancellation that comes meanwhile is obeyed afterwards."""
        self._is_told_to_stop = True
        self._woken.fire()
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            while not self._task.done():
                try:
                    await asyncio.wait({self._task})
                except asyncio.CancelledError as again:
                    cancelled = again
        if self.failure is not None:
            _log.error("%s: its owner failed; please report this", self._name, exc_info=self.failure)
        if cancelled is not None:
            raise cancelled

    async def _own(self) -> None:
        try:
            async with anyio.create_task_group() as self._group:
                self._started.set()
                while not self._is_told_to_stop:
                    to_start, self._to_start = self._to_start, []
                    for task in to_start:
                        self._group.start_soon(task, name=f"{task.__qualname__} of {self._name}")
                    await self._woken.wait()
                await self.end_membership()
                self._group.cancel_scope.cancel()
        finally:
            self._is_over = True
            if self.membership is not None:  # The owner itself was ended by force, or by an error.
                with anyio.CancelScope(shield=True):
                    await self.membership.abandon()
            for done in self._pending:
                done.set()
            self._ended()
            if not self._lent and self.backend is not None:
                with anyio.move_on_after(self._timeouts.close + CLOSE_MARGIN, shield=True):
                    await self.backend.aclose()

    def start(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have the owner start a task that lives no longer than it does; once it stops, it starts no more.

        Timers and transports call this too. Where sniffio is installed, anyio finds no event loop outside of a task,
        so only the owner's own task uses the group.
        """
        if not self.is_stopping:
            self._to_start.append(task)
            self._woken.fire()

    async def see_through(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do something in the owner, and wait; even if this task is cancelled by force, the owner sees it through."""
        if self.is_stopping:
            return  # The owner is cleaning up already.
        done = anyio.Event()

        async def act() -> None:
            try:
                await action()
            finally:
                done.set()

        self._group.start_soon(act)
        self._pending.append(done)
        try:
            with anyio.CancelScope(shield=True):
                await done.wait()
        finally:
            self._pending.remove(done)

    async def open_backend(self) -> Backend:
        """Return the backend; open it if this is the first time.

        Raises:
            RendezvousConnectionError: It cannot be reached.
        """
        async with self._opening:
            if self.backend is None:
                backend = await self._open()
                if self.is_stopping:
                    with anyio.move_on_after(self._timeouts.close, shield=True):
                        await backend.aclose()
                    raise self._left()
                self.backend = backend
            return self.backend

    async def live_membership(self, until: float) -> Membership:
        """Return the membership; a new one, with a new session, if there is none or it is over.

        Raises:
            RendezvousConnectionError: The backend cannot be reached, or did not answer until then.
            RendezvousError: The rendezvous is being left.
        """
        if self.membership is not None and not self.membership.is_out:
            return self.membership
        if self.is_stopping:
            raise self._left()
        backend = self.backend
        if backend is None or self.membership is not None or self._unended:
            with answer_within(until - clock.now(), f"{self._name} opens the backend, and ends its last session"):
                backend = await self.open_backend()
                await self.end_membership(logging.DEBUG)  # Whoever joins again is told of it otherwise.
        if self._unended:
            raise RendezvousConnectionError(f"{self._name} could not end its last session, so it opens no new one")
        membership = await self._make(backend)
        if self.is_stopping:
            with anyio.CancelScope(shield=True):
                await membership.end()  # The owner no longer would.
            raise self._left()
        self.membership = membership
        return membership

    async def end_membership(self, level: int = logging.WARNING) -> None:
        """End the membership, if there is one, and any that could not be ended before; ``level`` is for the log."""
        if self.membership is not None:
            self._unended.append(self.membership)
            self.membership = None
        for membership in tuple(self._unended):
            if await membership.end(level) and membership in self._unended:  # Somebody else may have done the same.
                self._unended.remove(membership)

    def _left(self) -> RendezvousError:
        return RendezvousError(f"{self._name} was left while it joined")
