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
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import anyio
import msgspec

from rendezvous_async import clock
from rendezvous_async.backends.base import Backend, Condition, Listing, Put, Session, Token, Watch, Write
from rendezvous_async.clock import Patience, answer_within
from rendezvous_async.coordinator import Coordinator
from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import COORDINATOR, NODES, STATE, Head, Node, Phase, node_key
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousSessionError,
    RendezvousSettingsError,
)
from rendezvous_async.events import EventKind, Events
from rendezvous_async.settings import Settings, Timeouts
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
        self,
        backend: Backend,
        session: Session,
        view: View,
        watch: Watch,
        node: str,
        settings: Settings,
        timeouts: Timeouts,
        interval: float,
        rng: random.Random,
        events: Events,
        start: Start,
    ) -> None:
        self.session = session
        self.view = view
        self.error: RendezvousError | None = None
        self._watch = watch
        self._backend = backend
        self._node = node
        self._settings = settings
        self._timeouts = timeouts
        self._interval = interval
        self._rng = rng
        self._events = events
        self._start = start
        self._record: Token | None = None
        self._arrival: str | None = None
        self._coordinator = Coordinator(backend, session, node, settings, view, rng, timeouts.heartbeat, self._on_duty)
        self._coordinates = False
        self._scopes: dict[anyio.CancelScope, None] = {}
        self._due = clock.now() + interval
        self._first = asyncio.get_running_loop().call_at(
            min(self._due, session.deadline), self._begin, self._keep_alive
        )

    @classmethod
    async def open(
        cls,
        backend: Backend,
        ttl: float,
        node: str,
        settings: Settings,
        timeouts: Timeouts,
        interval: float,
        rng: random.Random,
        events: Events,
        start: Start,
    ) -> Membership:
        """Open a session and the watch that goes with it.

        Raises:
            RendezvousConnectionError: No answer within ``timeouts.heartbeat``.
        """
        view = View(node)
        watch = backend.watch(*view.names)  # First, so that both go out together.
        try:
            session = await backend.open_session_within(ttl, Patience(timeouts.heartbeat, "open a session"))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await watch.aclose()
            raise
        membership = cls(backend, session, view, watch, node, settings, timeouts, interval, rng, events, start)
        if not watch.deliver(membership._take, membership._fail_by):
            membership._begin(membership._follow)
        session.lost.call(membership._lost)
        view.changed.call(membership._see_to_post)
        return membership

    def __repr__(self) -> str:
        return f"<Membership node={self._node!r} session={self.session.id}{'' if self.error is None else ' over'}>"

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
            self._start(self._watch.aclose)

    def _stop(self, error: RendezvousError) -> None:
        self.error = error
        self._first.cancel()
        for scope in self._scopes:
            scope.cancel()
        self.view.changed.fire()

    async def arrive(self, record: Node) -> None:
        """Put this node's record, and see to it that there is a run to arrive in.

        A founder creates the run's state and takes the post in the same commit. Whoever finds no run and is no founder
        puts its record all the same and waits for one; if none comes, it founds the run after all.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousSettingsError: It has other settings, and other nodes are here.
            RendezvousSessionError: The session is over.
            RendezvousConnectionError: No answer; call again with the same record.
        """
        view = self.view
        founds = self._rng.random() * self._settings.min_nodes < FOUNDERS
        while True:
            self.check()
            seen = (self._record, view.token(STATE), view.token(COORDINATOR))
            if view.loaded and (not self._stands(record) or (founds and view.head is None)):
                await self._put(record, founds)
            if self._stands(record) and view.head is not None:
                break
            if seen == (self._record, view.token(STATE), view.token(COORDINATOR)):
                self.check()
                founds = await self._wait_for_founder() or founds
        self._see_to_post()
        self._events.emit(EventKind.ARRIVED, view.head.round, record.arrival)

    def _stands(self, record: Node) -> bool:
        """Tell whether this arrival's record was put."""
        return self._arrival == record.arrival

    async def _put(self, record: Node, founds: bool) -> None:
        """Put the record, with all that must be written first; if somebody was faster, the view has the news."""
        key, value = node_key(self._node), encode(record)
        writes: list[Write] = [Put(key, value, self.session.id)]
        when = [Condition(key, self._record)]
        if founds or self.view.head is not None:
            await self._add_head(writes, when)
        if founds and self.view.entry(COORDINATOR) is None:
            writes.append(self._coordinator.claim())
            when.append(Condition(COORDINATOR, None))
        patience = Patience(self._timeouts.heartbeat, f"node {self._node} arrives")
        commit = await self._backend.commit(*writes, when=when, patience=patience)
        if commit.won:
            self._record, self._arrival = commit.token, record.arrival
            if len(writes) > 1:
                self._take_own(writes, commit.token)
            return
        mine = commit.entry(key)
        self._record = None if mine is None else mine.token
        # One that lost may have got through before, though its answer did not.
        stands = mine is not None and mine.value == value and mine.session == self.session.id
        self._arrival = record.arrival if stands else None
        self.view.apply(entry for entry in commit.entries if entry.key in self.view.names)

    async def _wait_for_founder(self) -> bool:
        """Wait until something has changed; True if there is no run after a while, and this node must found it."""
        if not self.view.loaded or self.view.head is not None:
            await self.view.changed.wait()
            return False
        return not await self.view.changed.wait(FOUND_AFTER * (1 + self._rng.random()))

    async def end(self) -> bool:
        """End the session, so that nothing of this node is left behind; False if the backend could not be told."""
        try:
            with answer_within(self._timeouts.close, f"node {self._node} leaves"):
                await self.abandon()
                await self.session.aclose()
        except Exception as error:  # Whatever it is: to leave must not fail. It is tried again before a new session.
            _log.warning("node %s could not say that it leaves: %s", self._node, error)
            return False
        return True

    async def abandon(self) -> None:
        """Stop all tasks and the watch, and say nothing: whatever this node has written goes when its time is over."""
        if self.error is None:
            self._stop(RendezvousSessionError(f"node {self._node} has left"))
        await self._watch.aclose()

    async def _add_head(self, writes: list[Write], when: list[Condition]) -> None:
        """Look at the head to arrive under; if it must be written first, add that to the commit."""
        head = self.view.head
        if head is not None and head.closed is not None:
            raise RendezvousClosedError(head.closed.reason, head.closed.by, run_id=self._backend.run_id)
        if head is None:
            head = Head(settings=self._settings)
        elif head.settings != self._settings:
            await self._check_alone(head)
            head = msgspec.structs.replace(head, settings=self._settings, phase=Phase.GATHERING, waiting=0, lost=0)
        else:
            return
        writes.append(Put(STATE, encode(head)))
        when.append(Condition(STATE, self.view.token(STATE)))

    async def _check_alone(self, head: Head) -> None:
        with answer_within(self._timeouts.heartbeat, "read the roster"):
            roster = await self._backend.list(NODES)
        others = [entry.key for entry in roster.entries if entry.key != node_key(self._node)]
        if others:
            raise RendezvousSettingsError(
                f"run {self._backend.run_id!r} was started with {head.settings.fingerprint!r}, node {self._node} has "
                f"{self._settings.fingerprint!r}, and {len(others)} other nodes are here: use the same nodes, ranks "
                "and timeouts on all nodes, or another run id"
            )

    def _take_own(self, writes: list[Write], token: Token) -> None:
        """Take what this node has just written into its view, ahead of the push."""
        puts = [write for write in writes if isinstance(write, Put) and write.key in self.view.names]
        self.view.apply(put.entry(token) for put in puts)

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
                    self.fail(RendezvousSessionError(f"node {self._node}: a call in the background was cancelled"))
                finally:
                    del self._scopes[scope]

        self._start(guard)

    def _fail_by(self, error: Exception) -> None:
        """End it because of an error in one of the tasks, or in what is done in their place."""
        if not isinstance(error, RendezvousError):
            _log.error("node %s: a background task failed; please report this", self._node, exc_info=error)
            cause, error = error, RendezvousSessionError(f"node {self._node}: a background task failed: {error!r}")
            error.__cause__ = cause
        self.fail(error)

    async def _keep_alive(self) -> None:
        """Send keep-alives, from the moment that the first is due; ends when this node's own clock says so."""
        session, interval, due = self.session, self._interval, self._due
        while True:
            now = clock.now()
            if now - due > interval:
                _log.warning("node %s: the event loop stalled for %.1f s: something blocks it", self._node, now - due)
                self._events.emit(EventKind.STALLED, detail=f"{now - due:.3f} s")
            if now >= session.deadline:
                raise RendezvousSessionError(self._out_by_clock())
            due = now + interval  # From the sending: no answer within the interval, and the next one follows at once.
            try:
                seconds = min(self._timeouts.heartbeat, interval, session.deadline - now)
                await session.keep_alive(Patience(seconds, "keep-alive"))
            except RendezvousConnectionError as error:
                left = session.deadline - clock.now()
                _log.warning("node %s: %s; out in %.1f s unless it comes back", self._node, error, left)
            await asyncio.sleep(min(due, session.deadline) - clock.now())

    def _lost(self) -> None:
        """End it: the backend has said that the session is over."""
        self.fail(RendezvousSessionError(f"node {self._node}: the backend has ended session {self.session.id}"))

    async def _follow(self) -> None:
        """Read the watch of a backend that does not deliver."""
        async for listing in self._watch:
            self._take(listing)

    def _take(self, listing: Listing) -> None:
        """Take what was pushed into the view."""
        try:
            self.view.apply(listing.entries)
        except Exception as error:
            self._fail_by(error)

    def _see_to_post(self) -> None:
        """Have the coordinator at work from the first time that there is work for it; most nodes never need one."""
        if self._arrival is not None and not self._coordinates and self.error is None and self._coordinator.is_wanted:
            self._coordinates = True
            self._begin(self._coordinator.run)

    def _on_duty(self, on: bool) -> None:
        self._events.emit(EventKind.COORDINATING if on else EventKind.RESIGNED)

    def _out_by_clock(self) -> str:
        return (
            f"node {self._node}: no keep-alive was answered for {self.session.ttl * 0.75:g} s, so by its own clock "
            "this node is out"
        )
