"""One session of one node: it keeps the session alive, follows the run, and coordinates if it must.

A membership begins when its session is opened, and ends when the session is lost, when this node is out by its own
clock, or when it leaves. Everything that it wrote (its record, the coordinator's post) is bound to the session. So
there is one way out, for a leave, a timeout, a cancelled join and a write whose outcome is unknown alike: end the
session. Its keys go in one step, a late write is refused, and what a newer session of the same node wrote stays.

Its tasks are the owner's, and begin when there is something to do: keeping alive when the first keep-alive is due,
coordinating when the post is this node's or vacant. Until then a join needs no task but the user's own.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

import anyio
from msgspec.structs import replace

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import OWN, Backend, Opening, Session, news_of
from rendezvous_async.causes import Cause
from rendezvous_async.core.agreement import AGREE_WITHIN
from rendezvous_async.core.arrival import Here, Presence, ReadOthers, arrival, next_step, ousting, tally_others
from rendezvous_async.core.rules import Wait
from rendezvous_async.core.state import NODES, SEATS, Node
from rendezvous_async.core.tally import Tally
from rendezvous_async.core.transaction import Transaction
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousSessionError
from rendezvous_async.node.coordinator import Coordinator, is_wanted
from rendezvous_async.node.events import EventKind
from rendezvous_async.node.goodbye import say_goodbye
from rendezvous_async.node.keep_alive import KeepAlive
from rendezvous_async.node.participant import Participant
from rendezvous_async.node.translation import conditions_of, rows_of, seen_by, standing_by, writes_of
from rendezvous_async.node.view import View

__all__ = ["Membership", "Start"]

Start: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Starts a task that belongs to the owner."""

_log = logging.getLogger("rendezvous_async.node")

SILENT = 0.5
"""Seconds between an unanswered goodbye and the next attempt."""
FOUNDERS = 8
"""How many of ``min_nodes`` nodes, on average, found a missing run at once. The others wait a moment for them."""
FOUND_AFTER = 1.0
"""Seconds, plus up to as many at random, after which a node that waits for a founder founds the run itself."""


class Membership:
    """A node's session with a run, and the tasks that go with it.

    Attributes:
        view: What this node sees of the run.
        session: The lease that everything hangs on.
        error: Why it is over; None until then.
    """

    def __init__(
        self,
        backend: Backend,
        session: Session,
        view: View,
        who: Participant,
        start: Start,
        presence: Presence,
    ) -> None:
        self.session = session
        self.view = view
        self.error: RendezvousError | None = None
        self._backend = backend
        self._who = who
        self._start = start
        self._presence = presence
        self._agreement: Deadline | None = None
        self._cause = ""
        self._announced = ""
        self._said_goodbye_at = -math.inf
        self._coordinator: Coordinator | None = None
        self._scopes: dict[anyio.CancelScope, None] = {}
        self._keep_alive = KeepAlive(session, who)
        self._first = asyncio.get_running_loop().call_later(
            self._keep_alive.first_in, self._begin, self._keep_alive.run
        )

    @classmethod
    async def open(
        cls, backend: Backend, who: Participant, start: Start, record: Node, deadline: Deadline, was_here: bool = False
    ) -> Membership:
        """Open a session and the watch that goes with it.

        Where the backend can, the record is put in the same step, as if there were no run yet; ``arrive`` looks at what
        there is, and puts right what was wrong. Pushes from the backend go straight into the view.

        Args:
            backend: The run's.
            who: This node.
            start: Starts the owner's tasks.
            record: The record to put.
            deadline: When to give up.
            was_here: Whether this node had a record in an earlier session; see ``Presence``.

        Raises:
            RendezvousConnectionError: No answer within ``timeouts.heartbeat``, or until then.
        """
        step = who.step(deadline, "open a session")
        founds = who.rng.random() * who.settings.min_nodes < FOUNDERS
        view = View(who.node, backend.run_id, clock.now())
        presence = Presence(
            run_id=backend.run_id,
            node=who.node,
            settings=who.settings,
            record=record,
            session=OWN,
            founds=founds,
            was_here=was_here,
        )
        transaction = arrival(presence, record, seen_by(view), standing_by(view))
        writes, when = writes_of(transaction, OWN), conditions_of(transaction)
        opened = await backend.open(Opening(who.ttl, tuple(writes), tuple(when), view.names, view), step)
        assert opened.following is not None
        view.following = opened.following
        presence = replace(presence, session=opened.session.id)
        membership = cls(backend, opened.session, view, who, start, presence)
        opened.session.lost.call(membership._lost)
        view.changed.call(membership._react)
        membership._react()
        return membership

    def __repr__(self) -> str:
        return f"<Membership node={self._who.node!r} session={self.session.id}{'' if self.error is None else ' over'}>"

    @property
    def is_out(self) -> bool:
        """Whether it is over, by what is known or by this node's own clock; also the first thing after a stall."""
        return self.error is not None or self._keep_alive.is_out

    @property
    def stalled(self) -> float:
        """Seconds for which the event loop stood still before this was over; 0 if that is not why it is."""
        return 0.0 if self.error is None else self._keep_alive.stalled

    @property
    def was_here(self) -> bool:
        """Whether this node has had a record, in this session or an earlier one."""
        return self._presence.was_here

    def check(self) -> None:
        """Raise if this node is out.

        Raises:
            RendezvousSessionError: The session is lost, or its time is over by this node's own clock.
            RendezvousError: Whatever else has ended it.
        """
        if self.error is not None:
            raise self.error
        if self.is_out:
            raise self._keep_alive.out_error()

    def fail(self, error: RendezvousError) -> None:
        """End the membership for this reason, unless it is over: stop its tasks and wake the waiters."""
        if self.error is None:
            self._stop(error)

    def _stop(self, error: RendezvousError, cause: str = "") -> None:
        # The news that ends this may be read before the late keep-alive gets its turn.
        self._keep_alive.report_stall()
        self.error = error
        self._cause = self._keep_alive.why_out or cause
        self._first.cancel()
        for scope in self._scopes:
            scope.cancel()
        self.view.following.close()
        self.view.changed.fire()

    async def arrive(self, record: Node, deadline: Deadline) -> None:
        """Put this node's record, and make sure that there is a run to arrive in.

        A founder creates the run's state and takes the post in the same commit. Any other node that finds no run puts
        its record and waits for a founder; if none comes, it founds the run after all.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousSettingsError: It has other settings, and they hold.
            RendezvousDisplacedError: Another node has this node's id.
            RendezvousSessionError: The session is over.
            RendezvousConnectionError: No answer, or no run to arrive in until then; call again with the same record.
        """
        view = self.view
        others: Tally | None = None
        while True:
            self.check()
            seen, standing = seen_by(view), view.record
            is_patient = self._agreement is None or self._agreement.left > 0
            step = next_step(self._presence, record, seen, standing_by(view), others, is_patient)
            others = None
            match step:
                case Here(round):
                    break
                case ReadOthers():
                    others = await self._read_others(deadline)
                    continue
                case Transaction():
                    if view.loaded:
                        await self._put(step, deadline)
                case Wait():
                    pass
            if standing == view.record and seen == seen_by(view):
                self.check()
                await self._wait_for_news(deadline)
        self._agreement = None
        self._react()
        if self._announced != record.arrival:
            self._announced = record.arrival
            self._who.events.emit(EventKind.ARRIVED, round, record.arrival)

    async def _put(self, transaction: Transaction, deadline: Deadline) -> None:
        """Send the transaction of an arrival; if another node was faster, the view has the news."""
        writes, when = writes_of(transaction, self.session.id), conditions_of(transaction)
        step = self._who.step(deadline, transaction.what)
        self.view.following.learn(news_of(writes, await self._backend.commit(*writes, when=when, deadline=step)))

    async def _read_others(self, deadline: Deadline) -> Tally | None:
        """Return who else is here; None if there is no run any more."""
        head = self.view.head
        if head is None:
            return None
        if self._agreement is None:
            self._agreement = Deadline.after(AGREE_WITHIN, "agree on the settings")
        with self._who.step(deadline, "read the roster").bound():
            seats = rows_of(await self._backend.list(SEATS)) if head.round else []
            return tally_others(head, seats, rows_of(await self._backend.list(NODES)), self._who.node)

    async def _wait_for_news(self, deadline: Deadline) -> None:
        """Wait until something has changed; if there is no run after a while, this node must found it."""
        now = clock.now()
        if now >= deadline.at:
            raise RendezvousConnectionError(f"node {self._who.node}: nothing is known of a run to arrive in")
        found_at = math.inf
        if self.view.loaded and self.view.head is None:
            found_at = now + FOUND_AFTER * (1 + self._who.rng.random())
        then = min(deadline.at, found_at, math.inf if self._agreement is None else self._agreement.at)
        if not await self.view.changed.wait(None if then == math.inf else then - now) and then == found_at:
            self._presence = replace(self._presence, founds=True)

    async def end(self, level: int = logging.WARNING) -> bool:
        """End the session, so that nothing of this node is left behind; False if the backend could not be told.

        It is told again before this node opens a new session, but not right after the last attempt.
        """
        if clock.now() < self._said_goodbye_at + SILENT and self._trouble() is not None:
            return False
        self.abandon()
        who = f"node {self._who.node}: leaving run {self._backend.run_id!r}"
        say = partial(_log.log, level, extra=self._who.fields)
        told = await say_goodbye(self.session, who, self._who.timeouts.close, self._trouble, say, self._cause)
        self._said_goodbye_at = clock.now()
        return told

    def _trouble(self) -> str | None:
        """Why the backend cannot be reached, as far as this node knows."""
        return self._backend.trouble or self._keep_alive.unanswered

    async def _end(self) -> None:
        await self.end()

    def abandon(self) -> None:
        """Stop all tasks and the watch without a goodbye: what this node wrote expires, or goes with its client."""
        if self.error is None:
            self._stop(RendezvousSessionError(f"node {self._who.node} has left"), Cause.LEFT)

    # The tasks

    def _begin(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start one of the tasks; it ends with the membership, and its error ends the membership."""

        async def guard() -> None:
            if self.error is not None:
                return
            with anyio.CancelScope() as scope:
                self._scopes[scope] = None
                try:
                    await task()
                except Exception as error:
                    self._fail_by(error)
                except asyncio.CancelledError:
                    current = asyncio.current_task()
                    if scope.cancel_called or current is None or current.cancelling():
                        raise
                    # This task was not cancelled: the error comes out of a call, and must not end the owner.
                    self.fail(RendezvousSessionError(f"node {self._who.node}: a call in the background was cancelled"))
                finally:
                    del self._scopes[scope]

        self._start(guard)

    def _fail_by(self, error: Exception) -> None:
        """End it because of an error in a task, or in a callback."""
        if not isinstance(error, RendezvousError):
            _log.error(
                "node %s: a background task failed; please report this",
                self._who.node,
                exc_info=error,
                extra=self._who.fields,
            )
            cause, error = error, RendezvousSessionError(f"node {self._who.node}: a background task failed: {error!r}")
            error.__cause__ = cause
        self.fail(error)

    def _lost(self) -> None:
        """End it: the backend has said that the session is over."""
        self.fail(RendezvousSessionError(f"node {self._who.node}: the backend has ended session {self.session.id}"))

    def _react(self) -> None:
        """Act on what the view shows: an error ends the membership, a vacant post needs a coordinator.

        The coordinator starts when there is first work for it; most nodes never have one.
        """
        view, who = self.view, self._who
        if self.error is not None:
            return
        if view.error is not None:
            self._fail_by(view.error)
            return
        if view.record is not None and view.record.session == self.session.id:
            if not self._presence.was_put:
                self._presence = replace(self._presence, was_here=True, was_put=True)
        elif (error := ousting(self._presence, standing_by(view))) is not None:
            _log.warning("%s", error, extra=who.fields)
            self.fail(error)
            self._start(self._end)  # A newcomer must not wait for what is still bound to this session.
            return
        if self._coordinator is None and self._presence.was_put and is_wanted(view, self.session, who.settings):
            self._coordinator = Coordinator(self._backend, self.session, who, view)
            self._begin(self._coordinator.run)
