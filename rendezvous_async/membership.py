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
import msgspec

from rendezvous_async import clock
from rendezvous_async.backends.base import (
    OWN,
    Backend,
    Commit,
    Condition,
    Entry,
    Put,
    Session,
    Token,
    Write,
    owned,
)
from rendezvous_async.clock import Patience, answer_within
from rendezvous_async.coordinator import Coordinator, claim, is_wanted
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.state import COORDINATOR, NODES, STATE, Head, Node, Phase, node_key
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousSessionError,
    RendezvousSettingsError,
    RendezvousStateError,
)
from rendezvous_async.events import EventKind
from rendezvous_async.participant import Participant
from rendezvous_async.view import View

__all__ = ["Membership", "Start"]

Start: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Starts a task that belongs to the owner."""

_log = logging.getLogger(__name__)

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
        self, backend: Backend, session: Session, view: View, who: Participant, start: Start, founds: bool
    ) -> None:
        self.session = session
        self.view = view
        self.error: RendezvousError | None = None
        self._backend = backend
        self._who = who
        self._start = start
        self._founds = founds
        self._record: Token | None = None
        self._arrival: str | None = None
        self._coordinator: Coordinator | None = None
        self._scopes: dict[anyio.CancelScope, None] = {}
        self._due = clock.now() + who.interval
        self._first = asyncio.get_running_loop().call_at(
            min(self._due, session.deadline), self._begin, self._keep_alive
        )

    @classmethod
    async def open(cls, backend: Backend, who: Participant, start: Start, record: Node, until: float) -> Membership:
        """Open a session and the watch that goes with it.

        Where the backend can, the record is put in the same step, as if there were no run yet; ``arrive`` looks at what
        there is, and puts right what was wrong.

        Raises:
            RendezvousConnectionError: No answer within ``timeouts.heartbeat``, or until then.
        """
        patience = who.patience("open a session", until)
        founds = who.rng.random() * who.settings.min_nodes < FOUNDERS
        view = View(who.node, backend)
        writes, when = _arrival(view, who, OWN, None, record, founds)
        try:
            session, commit = await backend.begin(who.ttl, patience, *writes, when=when, watch=view.watch)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await view.watch.aclose()
            raise
        membership = cls(backend, session, view, who, start, founds)
        if not view.is_fed:
            membership._begin(membership._follow)
        if commit is not None:
            membership._note(record, owned(writes, session.id), commit)
        session.lost.call(membership._lost)
        view.changed.call(membership._look)
        membership._look()
        return membership

    def __repr__(self) -> str:
        return f"<Membership node={self._who.node!r} session={self.session.id}{'' if self.error is None else ' over'}>"

    @property
    def is_out(self) -> bool:
        """Whether it is over, by what is known or by this node's own clock; also the first thing after a stall."""
        return self.error is not None or clock.now() >= self.session.deadline

    def check(self) -> None:
        """Raise if this node is out.

        Raises:
            RendezvousSessionError: The session is lost, or its time is over by this node's own clock.
            RendezvousError: Whatever else has ended it.
        """
        if self.error is not None:
            raise self.error
        if self.is_out:
            raise RendezvousSessionError(self._out_by_clock())

    def fail(self, error: RendezvousError) -> None:
        """End it for this reason, unless it is over already: stop all tasks, and tell everybody who waits."""
        if self.error is None:
            self._stop(error)
            self._start(self.view.watch.aclose)

    def _stop(self, error: RendezvousError) -> None:
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
            RendezvousSettingsError: It has other settings, and other nodes are here.
            RendezvousSessionError: The session is over.
            RendezvousConnectionError: No answer, or no run to arrive in until then; call again with the same record.
        """
        view = self.view
        while True:
            self.check()
            seen = (self._record, view.token(STATE), view.token(COORDINATOR))
            stands, head = self._arrival == record.arrival, view.head
            if stands and head is not None and head.closed is None and head.settings == self._who.settings:
                break
            if view.loaded and (not stands or self._founds or head is not None):
                await self._put(record, until)
            if seen == (self._record, view.token(STATE), view.token(COORDINATOR)):
                self.check()
                await self._wait_for_founder(until)
        self._look()
        self._who.events.emit(EventKind.ARRIVED, head.round, record.arrival)

    async def _put(self, record: Node, until: float) -> None:
        """Put the record, with all that must be written first; if somebody was faster, the view has the news."""
        if self.view.head is not None:
            await self._check_head(self.view.head, until)
        writes, when = _arrival(self.view, self._who, self.session.id, self._record, record, self._founds)
        patience = self._who.patience("arrive", until)
        self._note(record, writes, await self._backend.commit(*writes, when=when, patience=patience))

    def _note(self, record: Node, writes: Sequence[Write], commit: Commit) -> None:
        """Take in how the commit of an arrival went; what it wrote comes into the view ahead of the push."""
        if commit.won:
            self._record, self._arrival = commit.token, record.arrival
            self.view.hear(write.entry(commit.token) for write in writes if isinstance(write, Put))
        else:
            mine = commit.entry(node_key(self._who.node))
            self._record = None if mine is None else mine.token
            # One that lost may have got through before, though its answer did not.
            stands = mine is not None and mine.value == encode(record) and mine.session == self.session.id
            self._arrival = record.arrival if stands else None
            self.view.hear(commit.entries)

    async def _wait_for_founder(self, until: float) -> None:
        """Wait until something has changed; if there is no run after a while, this node must found it."""
        left = until - clock.now()
        if left <= 0:
            raise RendezvousConnectionError(f"node {self._who.node}: nothing is known of a run to arrive in")
        lacks_run = self.view.loaded and self.view.head is None
        patience = FOUND_AFTER * (1 + self._who.rng.random()) if lacks_run else math.inf
        if not await self.view.changed.wait(min(patience, left)) and patience < left:
            self._founds = True

    async def end(self) -> bool:
        """End the session, so that nothing of this node is left behind; False if the backend could not be told."""
        try:
            with answer_within(self._who.timeouts.close, f"node {self._who.node} leaves"):
                await self.abandon()
                await self.session.aclose()
        except Exception as error:  # Whatever it is: to leave must not fail. It is tried again before a new session.
            _log.warning("node %s could not say that it leaves: %s", self._who.node, error)
            return False
        return True

    async def abandon(self) -> None:
        """Stop all tasks and the watch, and say nothing: what this node wrote goes with its time, or its client."""
        if self.error is None:
            self._stop(RendezvousSessionError(f"node {self._who.node} has left"))
        await self.view.watch.aclose()

    async def _check_head(self, head: Head, until: float) -> None:
        """Raise if this node cannot arrive under a head, also not by replacing its settings."""
        if head.closed is not None:
            raise RendezvousClosedError(head.closed.reason, head.closed.by, run_id=self._backend.run_id)
        if head.settings == self._who.settings:
            return
        who = self._who
        with answer_within(*who.patience("read the roster", until)):
            roster = await self._backend.list(NODES)
        others = [entry.key for entry in roster.entries if self._holds_to(head, entry)]
        if others:
            raise RendezvousSettingsError(
                f"run {self._backend.run_id!r} was started with {head.settings.fingerprint!r}, node {who.node} has "
                f"{who.settings.fingerprint!r}, and {len(others)} other nodes are here: use the same nodes, ranks "
                "and timeouts on all nodes, or another run id"
            )

    def _holds_to(self, head: Head, entry: Entry) -> bool:
        """Tell whether a record is of another node that is here under this head; one that cannot be read counts.

        Others may have come in this moment, and find the same head: whoever replaces it first has its way.
        """
        if entry.key == node_key(self._who.node):
            return False
        try:
            return decode(Node, entry.value, entry.key).fingerprint == head.settings.fingerprint
        except RendezvousStateError:
            return True

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

    async def _keep_alive(self) -> None:
        """Send keep-alives, from the moment that the first is due; ends when this node's own clock says so."""
        session, interval, due = self.session, self._who.interval, self._due
        while True:
            now = clock.now()
            if now - due > interval:
                _log.warning(
                    "node %s: the event loop stalled for %.1f s: something blocks it", self._who.node, now - due
                )
                self._who.events.emit(EventKind.STALLED, detail=f"{now - due:.3f} s")
            if now >= session.deadline:
                raise RendezvousSessionError(self._out_by_clock())
            due = now + interval  # From the sending: no answer within the interval, and the next one follows at once.
            try:
                seconds = min(self._who.timeouts.heartbeat, interval, session.deadline - now)
                await session.keep_alive(Patience(seconds, "keep-alive"))
            except RendezvousConnectionError as error:
                left = session.deadline - clock.now()
                _log.warning("node %s: %s; out in %.1f s unless it comes back", self._who.node, error, left)
            await asyncio.sleep(min(due, session.deadline) - clock.now())

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
        elif self._coordinator is None and self._arrival is not None and is_wanted(view, self.session, who.settings):
            self._coordinator = Coordinator(self._backend, self.session, who, view, self._on_duty)
            self._begin(self._coordinator.run)

    def _on_duty(self, on: bool) -> None:
        self._who.events.emit(EventKind.COORDINATING if on else EventKind.RESIGNED)

    def _out_by_clock(self) -> str:
        return (
            f"node {self._who.node}: no keep-alive was answered for {self.session.ttl * 0.75:g} s, so by its own clock "
            "this node is out"
        )


def _arrival(
    view: View, who: Participant, session: str, before: Token | None, record: Node, founds: bool
) -> tuple[list[Write], list[Condition]]:
    """Return the commit by which a node arrives: its record, and with it what the run lacks as far as it sees.

    Args:
        before: The token of the node's record as it stands; None if there is none.
        founds: Whether to found a run that is not there, and to take its post.
    """
    key, head, settings = node_key(who.node), view.head, who.settings
    writes: list[Write] = [Put(key, encode(record), session)]
    when = [Condition(key, before)]
    if head is None and founds:
        head = Head(settings=settings)
    elif head is not None and head.settings != settings:
        head = msgspec.structs.replace(head, settings=settings, phase=Phase.GATHERING, waiting=0, lost=0)
    if head is not None and head is not view.head:
        writes.append(Put(STATE, encode(head)))
        when.append(Condition(STATE, view.token(STATE)))
    if founds and view.entry(COORDINATOR) is None:
        writes.append(claim(who.node, session))
        when.append(Condition(COORDINATOR, None))
    return writes, when
