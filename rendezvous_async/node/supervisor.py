"""The one owner of a node's tasks, of its backend and of its memberships.

It is a task of its own. It alone enters and leaves the task group that every other task of the node lives in. So a user
may enter the rendezvous in one task and leave it in another, never sees an exception group from inside, and can be
cancelled at any await: the owner cleans up, and nobody cancels the owner. Its clean-up is bounded.

It opens the backend and the memberships, and returns them. It knows nothing of the rendezvous that uses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.aio.signal import Notice
from rendezvous_async.backends import open_with
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.options import BackendOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.core.state import Node
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.node.membership import Membership
from rendezvous_async.node.participant import Participant
from rendezvous_async.settings import Endpoint

__all__ = ["Supervisor"]

_log = logging.getLogger("rendezvous_async.node")

CLOSE_MARGIN = 5.0
"""Seconds that the backend has beyond ``timeouts.close``: a host waits that long for others before it closes."""


class Supervisor:
    """Holds the task group until it is told to stop, then leaves nothing behind.

    Args:
        who: The node.
        run_id: The run that it takes part in.
        source: Where the run's state lives: an endpoint, opened at the first use and closed at the end, or a backend
            that is open already, and stays open.
        options: The endpoint's options, if the source is an endpoint.
        outage: Where it is reported that the backend cannot be reached.

    Attributes:
        backend: None until it is first needed.
        membership: The node's present one.
    """

    def __init__(
        self, who: Participant, run_id: str, source: Endpoint | Backend, options: BackendOptions | None, outage: Outage
    ) -> None:
        self.backend = source if isinstance(source, Backend) else None
        self.membership: Membership | None = None
        self._who = who
        self._run_id = run_id
        self._source = source
        self._options = options
        self._outage = outage
        self._was_here = False
        self._stalled = 0.0
        self._unended: list[Membership] = []
        self._is_over = False
        self._pending: list[anyio.Event] = []
        self._started = anyio.Event()
        self._is_told_to_stop = False
        self._to_start: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._woken = Notice()
        self._opening = anyio.Lock(fast_acquire=True)
        self._name = f"run {run_id!r}: node {who.node}"
        self._task = asyncio.create_task(self._own(), name=self._name)  # noqa: TID251 - this is the owner

    def __repr__(self) -> str:
        return f"<Supervisor of {self._name} {'ended' if self._task.done() else 'running'}>"

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
            _log.error(
                "%s: its owner failed; please report this",
                self._name,
                exc_info=self.failure,
                extra=self._who.fields,
            )
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
                self.membership.abandon()
            for done in self._pending:
                done.set()
            self._who.events.end()
            if self.backend is not None and self.backend is not self._source:
                with anyio.move_on_after(self._who.timeouts.close + CLOSE_MARGIN, shield=True):
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

    def trouble(self) -> str | None:
        """Return why the backend cannot be reached now, if that is known."""
        return None if self.backend is None else self.backend.trouble

    @property
    def stalled(self) -> float:
        """Seconds for which the event loop stood still before the last session was lost; 0 if it did not."""
        return self._stalled if self.membership is None else self.membership.stalled

    def last_change(self) -> float | None:
        """Return when the last change in the history was seen, by this node's clock; None if it was not."""
        return None if self.membership is None or self.membership.is_out else self.membership.view.since

    async def open_backend(self) -> Backend:
        """Return the backend; open it if this is the first time.

        Raises:
            RendezvousConnectionError: It cannot be reached.
        """
        async with self._opening:
            if self.backend is None:
                assert isinstance(self._source, Endpoint)
                assert self._options is not None
                backend = await open_with(self._source, self._options, self._run_id, self._outage)
                if self.is_stopping:
                    with anyio.move_on_after(self._who.timeouts.close, shield=True):
                        await backend.aclose()
                    raise self._left()
                self.backend = backend
            return self.backend

    def live_membership(self) -> Membership | None:
        """Return the present membership; None if there is none, or it is over."""
        return None if self.membership is None or self.membership.is_out else self.membership

    async def open_membership(self, record: Node, deadline: Deadline) -> Membership:
        """End the last membership and open the next one, with a new session: it is a new arrival.

        Raises:
            RendezvousConnectionError: The backend cannot be reached, or did not answer until then.
            RendezvousError: The rendezvous is being left.
        """
        if self.is_stopping:
            raise self._left()
        backend = self.backend
        if backend is None or self.membership is not None or self._unended:
            with deadline.step(deadline.left, f"{self._name} opens the backend, and ends its last session").bound():
                backend = await self.open_backend()
                await self.end_membership(logging.DEBUG)  # The join under way reports it otherwise.
        if self._unended:
            raise RendezvousConnectionError(f"{self._name} could not end its last session, so it opens no new one")
        membership = await Membership.open(backend, self._who, self.start, record, deadline, self._was_here)
        _log.debug("%s opened session %s", self._name, membership.session.id, extra=self._who.fields)
        if self.is_stopping:
            with anyio.CancelScope(shield=True):
                await membership.end()  # The owner no longer would.
            raise self._left()
        self.membership = membership
        return membership

    async def end_membership(self, level: int = logging.WARNING) -> None:
        """End the membership, if there is one, and any that could not be ended before; ``level`` is for the log."""
        if self.membership is not None:
            self._was_here = self._was_here or self.membership.was_here
            self._stalled = self.membership.stalled
            self._unended.append(self.membership)
            self.membership = None
        for membership in tuple(self._unended):
            if await membership.end(level) and membership in self._unended:  # Another task may have done so.
                self._unended.remove(membership)

    def _left(self) -> RendezvousError:
        return RendezvousError(f"{self._name} was left while it joined")
