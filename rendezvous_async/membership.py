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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

import anyio

from rendezvous_async import clock
from rendezvous_async.arrival import arrival_commit, ousting, own_record, replacing, tally_others
from rendezvous_async.backends.base import (
    OWN,
    Backend,
    Commit,
    Put,
    Session,
    Write,
    owned,
)
from rendezvous_async.clock import answer_within
from rendezvous_async.coordinator import Coordinator, is_wanted
from rendezvous_async.core.agreement import AGREE_WITHIN, is_abandoned, is_settled
from rendezvous_async.core.state import COORDINATOR, NODES, SEATS, STATE, Head, Node
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousSessionError,
    RendezvousSettingsError,
)
from rendezvous_async.events import EventKind
from rendezvous_async.goodbye import say_goodbye
from rendezvous_async.keep_alive import KeepAlive
from rendezvous_async.participant import Participant
from rendezvous_async.view import View

__all__ = ["Membership", "Start"]

Start: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Starts a task that belongs to the owner."""

_log = logging.getLogger("rendezvous_async.node")

SILENT = 0.5
"""Seconds after a goodbye without an answer in which no other is said."""
FOUNDERS = 8
"""About so many of ``min_nodes`` that find no run try to found it at once; the others wait a moment for them."""
FOUND_AFTER = 1.0
"""Seconds, and up to as many again, after which whoever waited for a founder founds the run itself."""


class Membership:
    """A node's session with a run, and the tasks that go with it.

    Attributes:
        view: What this node sees of the run.
        session: The lease that everything hangs on.
        error: Why it is over; None while it goes on.
    """

    def __init__(
        self,
        backend: Backend,
        session: Session,
        view: View,
        who: Participant,
        start: Start,
        record: Node,
        founds: bool,
        was_here: bool,
    ) -> None:
        self.session = session
        self.view = view
        self.error: RendezvousError | None = None
        self._backend = backend
        self._who = who
        self._start = start
        self._first_record = record
        self._founds = founds
        self._was_here = was_here
        self._was_put = False
        self._agree_until: float | None = None
        self._announced = ""
        self._silent_until = 0.0
        self._coordinator: Coordinator | None = None
        self._scopes: dict[anyio.CancelScope, None] = {}
        self._keep_alive = KeepAlive(session, who)
        self._first = asyncio.get_running_loop().call_later(
            self._keep_alive.first_in, self._begin, self._keep_alive.run
        )

    @classmethod
    async def open(
        cls, backend: Backend, who: Participant, start: Start, record: Node, until: float, was_here: bool = False
    ) -> Membership:
        """Open a session and the watch that goes with it.

        Where the backend can, the record is put in the same step, as if there were no run yet; ``arrive`` looks at what
        there is, and puts right what was wrong.

        Args:
            backend: The run's.
            who: This node.
            start: Starts the owner's tasks.
            record: What to put.
            until: When to give up.
            was_here: Whether this node had a record in an earlier session; see ``ousting``.

        Raises:
            RendezvousConnectionError: No answer within ``timeouts.heartbeat``, or until then.
        """
        patience = who.patience("open a session", until)
        founds = who.rng.random() * who.settings.min_nodes < FOUNDERS
        view = View(who.node, backend)
        writes, when = arrival_commit(view, who, OWN, record, founds=founds)
        try:
            session, commit = await backend.begin(who.ttl, patience, *writes, when=when, watch=view.watch)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await view.watch.aclose()
            raise
        membership = cls(backend, session, view, who, start, record, founds, was_here)
        if not view.is_fed:
            membership._begin(membership._follow)
        if commit is not None:
            membership._note(owned(writes, session.id), commit)
        session.lost.call(membership._lost)
        view.changed.call(membership._look)
        membership._look()
        return membership

    def __repr__(self) -> str:
        return f"<Membership node={self._who.node!r} session={self.session.id}{'' if self.error is None else ' over'}>"

    @property
    def is_out(self) -> bool:
        """Whether it is over, by what is known or by this node's own clock; also the first thing after a stall."""
        return self.error is not None or self._keep_alive.is_out

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
        """End it for this reason, unless it is over already: stop all tasks, and tell everybody who waits."""
        if self.error is None:
            self._stop(error)
            self._start(self.view.watch.aclose)

    def _stop(self, error: RendezvousError) -> None:
        # The news that ends this may be read before the keep-alive that is late has its turn.
        self._keep_alive.report_stall()
        self.error = error
        self._first.cancel()
        for scope in self._scopes:
            scope.cancel()
        self.view.changed.fire()

    async def arrive(self, record: Node, until: float) -> None:
        """Put this node's record, and see to it that there is a run to arrive in.

        A founder creates the run's state and takes the post in the same commit. Whoever finds no run and is no founder
        puts its record all the same and waits for one; if none comes, it founds the run after all.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousSettingsError: It has other settings, and they hold.
            RendezvousDisplacedError: Another node has this node's id.
            RendezvousSessionError: The session is over.
            RendezvousConnectionError: No answer, or no run to arrive in until then; call again with the same record.
        """
        view = self.view
        while True:
            self.check()
            seen = (view.record, view.token(STATE), view.token(COORDINATOR))
            stands, head = self._stands(record), view.head
            if stands and head is not None and head.closed is None and head.settings == self._who.settings:
                break
            if view.loaded and (not stands or self._founds or head is not None):
                await self._put(record, until)
            if seen == (view.record, view.token(STATE), view.token(COORDINATOR)):
                self.check()
                await self._wait_for_news(until)
        self._agree_until = None
        self._look()
        if self._announced != record.arrival:
            self._announced = record.arrival
            self._who.events.emit(EventKind.ARRIVED, head.round, record.arrival)

    async def _put(self, record: Node, until: float) -> None:
        """Put the record, with all that must be written first; if somebody was faster, the view has the news."""
        head, who = self.view.head, self._who
        replaces = head is not None and await self._may_replace(head, until)
        if head is not None and head.settings != who.settings and not replaces and self._stands(record):
            return  # It is for the coordinator to say whose settings hold.
        record = replacing(own_record(self.view), record)
        writes, when = arrival_commit(self.view, who, self.session.id, record, founds=self._founds, replaces=replaces)
        patience = self._who.patience("arrive", until)
        self._note(writes, await self._backend.commit(*writes, when=when, patience=patience))

    def _stands(self, record: Node) -> bool:
        """Tell whether a record stands, under this session; its commit may have got through though the answer did not.

        The same arrival may stand under another session: its opening was sent again, and it is about to end.
        """
        standing, entry = own_record(self.view), self.view.record
        stands = standing is not None and standing.arrival == record.arrival
        return stands and entry is not None and entry.session == self.session.id

    def _note(self, writes: Sequence[Write], commit: Commit) -> None:
        """Take in how the commit of an arrival went; what it wrote comes into the view ahead of the push."""
        written = (write.entry(commit.token) for write in writes if isinstance(write, Put))
        self.view.hear(written if commit.won else commit.entries)

    async def _wait_for_news(self, until: float) -> None:
        """Wait until something has changed; if there is no run after a while, this node must found it."""
        now = clock.now()
        if now >= until:
            raise RendezvousConnectionError(f"node {self._who.node}: nothing is known of a run to arrive in")
        found_at = math.inf
        if self.view.loaded and self.view.head is None:
            found_at = now + FOUND_AFTER * (1 + self._who.rng.random())
        then = min(until, found_at, math.inf if self._agree_until is None else self._agree_until)
        if not await self.view.changed.wait(None if then == math.inf else then - now) and then == found_at:
            self._founds = True

    async def end(self, level: int = logging.WARNING) -> bool:
        """End the session, so that nothing of this node is left behind; False if the backend could not be told.

        It is told again before this node opens a new session, but not right after the last attempt.
        """
        if clock.now() < self._silent_until and self._trouble() is not None:
            return False
        await self.abandon()
        who = f"node {self._who.node}: leaving run {self._backend.run_id!r}"
        told = await say_goodbye(self.session, who, self._who.timeouts.close, self._trouble, level)
        self._silent_until = clock.now() + SILENT
        return told

    def _trouble(self) -> str | None:
        """Why the backend cannot be reached, as far as this node knows."""
        return self._backend.trouble or self._keep_alive.unanswered

    async def _end(self) -> None:
        await self.end()

    async def abandon(self) -> None:
        """Stop all tasks and the watch, and say nothing: what this node wrote goes with its time, or its client."""
        if self.error is None:
            self._stop(RendezvousSessionError(f"node {self._who.node} has left"))
        await self.view.watch.aclose()

    async def _may_replace(self, head: Head, until: float) -> bool:
        """Tell whether to replace the settings of a head; see ``core.agreement`` for what else can come of it.

        Raises:
            RendezvousSettingsError: They hold, and this node has others.
        """
        run_id, who, now = self._backend.run_id, self._who, clock.now()
        if head.closed is not None:
            raise RendezvousClosedError(head.closed.reason, head.closed.by, run_id=run_id)
        if head.settings == who.settings:
            return False
        with answer_within(*who.patience("read the roster", until)):
            seats = (await self._backend.list(SEATS)).entries if head.round else ()
            others = tally_others(head, seats, (await self._backend.list(NODES)).entries, who.node)
        if is_abandoned(others):
            return True
        if self._agree_until is None:
            self._agree_until = now + AGREE_WITHIN
        if now >= self._agree_until or is_settled(others):
            count = others.live_members + len(others.newcomers)
            raise RendezvousSettingsError(
                f"run {run_id!r} has the settings {head.settings.fingerprint!r}, like {count} other "
                f"{'node' if count == 1 else 'nodes'} here, but node {who.node} has {who.settings.fingerprint!r}: use "
                "the same nodes, ranks and timeouts on all nodes, or another run id"
            )
        return False

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
                    # Nobody has cancelled this task: the error is a call's, and must not end the owner.
                    self.fail(RendezvousSessionError(f"node {self._who.node}: a call in the background was cancelled"))
                finally:
                    del self._scopes[scope]

        self._start(guard)

    def _fail_by(self, error: Exception) -> None:
        """End it because of an error in one of the tasks, or in what is done in their place."""
        if not isinstance(error, RendezvousError):
            _log.error("node %s: a background task failed; please report this", self._who.node, exc_info=error)
            cause, error = error, RendezvousSessionError(f"node {self._who.node}: a background task failed: {error!r}")
            error.__cause__ = cause
        self.fail(error)

    def _lost(self) -> None:
        """End it: the backend has said that the session is over."""
        self.fail(RendezvousSessionError(f"node {self._who.node}: the backend has ended session {self.session.id}"))

    async def _follow(self) -> None:
        """Read the watch of a backend that does not deliver."""
        async for listing in self.view.watch:
            self.view.push(listing)

    def _look(self) -> None:
        """See to what the view shows: an error ends this, and a post to be taken needs a coordinator.

        It is at work from the first time that there is work for it; most nodes never have one.
        """
        view, who = self.view, self._who
        if self.error is not None:
            return
        if view.error is not None:
            self._fail_by(view.error)
            return
        if view.record is not None and view.record.session == self.session.id:
            self._was_here = self._was_put = True
        elif (error := self._ousting()) is not None:
            _log.warning("%s", error)
            self.fail(error)
            self._start(self._end)  # A newcomer must not wait for what is still bound to this session.
            return
        if self._coordinator is None and self._was_put and is_wanted(view, self.session, who.settings):
            self._coordinator = Coordinator(self._backend, self.session, who, view, self._on_duty)
            self._begin(self._coordinator.run)

    def _ousting(self) -> RendezvousError | None:
        """Return why this node is out, now that the record at its key is not its own."""
        return ousting(
            own_record(self.view),
            self._first_record,
            run_id=self._backend.run_id,
            node=self._who.node,
            session=self.session.id,
            was_here=self._was_here,
            was_put=self._was_put,
        )

    def _on_duty(self, on: bool) -> None:
        self._who.events.emit(EventKind.COORDINATING if on else EventKind.RESIGNED)
