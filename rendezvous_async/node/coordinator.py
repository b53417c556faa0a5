"""The coordinator: one node folds the roster into seats and head; any node can, and the next one takes over.

A node has a ``Coordinator`` from the first time that the post (the leased key ``coordinator``) is its own or vacant. It
takes the post, and does what ``core.duty`` says until that stands down: reads, commits and waits are made here, and
nothing is decided. Whatever goes wrong, it gives the post back and lets another try.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import anyio

from rendezvous_async.admin import read_records
from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline, answer_within
from rendezvous_async.backends.base import Backend, Commit, Entry, Listing, Put, Session, Token, Watch
from rendezvous_async.core.duty import Duty, Purpose, Read, StandDown, campaign
from rendezvous_async.core.history import HISTORY
from rendezvous_async.core.rules import Wait
from rendezvous_async.core.state import COORDINATOR, NODES, SEATS, STATE, Stamp, node_of
from rendezvous_async.core.transaction import Capacity, Transaction
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.logs import ROUND
from rendezvous_async.node.events import EventKind
from rendezvous_async.node.participant import Participant
from rendezvous_async.node.translation import causes_of, conditions_of, rows_of, seen_by, stamp_at, stamp_of, writes_of
from rendezvous_async.node.view import View
from rendezvous_async.settings import Settings
from rendezvous_async.texts import counted, printable

__all__ = ["Coordinator", "is_wanted"]

_log = logging.getLogger("rendezvous_async.node")

CAMPAIGN_SPREAD = 0.0002
"""Seconds per member over which campaigns are spread, so that not all of a large world ask at once."""
MAX_CAMPAIGN_SPREAD = 0.2
RETRY_AFTER = 0.2


def is_wanted(view: View, session: Session, settings: Settings) -> bool:
    """Tell whether this session has the post or could take it: only then does a node need a ``Coordinator``."""
    post = view.entry(COORDINATOR)
    return post.session == session.id if post is not None else _may_campaign(view, settings)


def _may_campaign(view: View, settings: Settings) -> bool:
    """Tell whether the post is vacant, and the run is open and has these settings."""
    head = view.head
    vacant = view.loaded and view.entry(COORDINATOR) is None
    return vacant and head is not None and head.closed is None and head.accepts(settings)


class Coordinator:
    """Takes the post when it is vacant, and does the work that comes with it.

    Args:
        backend: The run's.
        session: This node's; the post is bound to it.
        who: This node; it campaigns only for a run that has its settings.
        view: What this node sees of the run.
    """

    def __init__(self, backend: Backend, session: Session, who: Participant, view: View) -> None:
        self._backend = backend
        self._session = session
        self._who = who
        self._view = view

    def __repr__(self) -> str:
        return f"<Coordinator node={self._who.node!r} run={self._backend.run_id!r}>"

    async def run(self) -> None:
        """Campaign and coordinate until cancelled."""
        node, run_id, fields = self._who.node, self._backend.run_id, self._who.fields
        while True:
            post = await self._campaign()
            capacity = Capacity(self._backend.max_writes, self._backend.max_bytes, len(self._backend.prefix))
            duty = Duty(self._who.settings, post, capacity, node)
            self._who.events.emit(EventKind.COORDINATING)
            try:
                reason = await self._fold(duty)
                _log.info("node %s no longer coordinates run %r: %s", node, run_id, reason, extra=fields)
            except RendezvousError as error:
                _log.warning("node %s gives up coordinating run %r: %s", node, run_id, error, extra=fields)
            except Exception:
                _log.exception("node %s fails to coordinate run %r; please report", node, run_id, extra=fields)
            finally:
                self._who.events.emit(EventKind.RESIGNED)
            try:
                await self._send(duty.resignation())
            except RendezvousError as error:
                _log.debug("node %s could not give the post back: %s", node, error, extra=fields)
            await self._pause()

    async def _campaign(self) -> Stamp:
        """Wait for the post to be vacant, and take it."""
        view, who = self._view, self._who
        while True:
            post = view.entry(COORDINATOR)
            if post is not None and post.session == self._session.id:
                return stamp_of(post.token)
            if not _may_campaign(view, who.settings):
                await view.changed.wait()
                continue
            size = 0 if view.head is None else view.head.size
            await anyio.sleep(who.rng.uniform(0, min(size * CAMPAIGN_SPREAD, MAX_CAMPAIGN_SPREAD)))
            if not _may_campaign(view, who.settings):
                continue
            try:
                _, news = await self._send(campaign(who.node))
            except RendezvousConnectionError:
                await self._pause()
                continue
            view.following.learn(news)
            if not news:
                await view.changed.wait()

    async def _pause(self) -> None:
        await anyio.sleep(RETRY_AFTER * (1 + self._who.rng.random()))

    async def _fold(self, duty: Duty) -> str:
        """Do what the duty says until it stands down, and return why it does.

        Raises:
            RendezvousError: Anything that makes it impossible to go on; the caller gives the post back.
        """
        roster: Watch
        attempt, patience = self._who.fresh_id(), self._who.timeouts.heartbeat
        async with AsyncExitStack() as stack:
            while True:
                duty.look(seen_by(self._view))
                match duty.next(clock.now(), attempt, clock.wall()):
                    case Transaction() as transaction:
                        await self._carry_out(duty, transaction)
                        attempt = self._who.fresh_id()
                    case Read.SEATS:
                        await stack.aclose()  # The roster is read again, after the seats.
                        with answer_within(patience, "read the seats"):
                            seats = await self._backend.list(SEATS)
                        duty.read_seats(rows_of(seats))
                    case Read.ROSTER:
                        roster = await stack.enter_async_context(self._backend.watch(NODES))
                        with answer_within(patience, "read the roster"):
                            self._tell(duty, await anext(roster), is_first=True)
                        if duty.chronicle.is_in_the_dark(duty.tally):
                            with answer_within(patience, "read what happened before"):
                                await self._look_back(duty)
                    case Wait(until):
                        await self._wait(duty, roster, until)
                    case StandDown(reason):
                        return reason

    async def _carry_out(self, duty: Duty, transaction: Transaction) -> None:
        """Commit and tell the duty the outcome; then tell the view, unless this node may be out."""
        commit, news = await self._send(transaction)
        if commit.won:
            duty.won(stamp_of(commit.token))
            self._view.following.learn(news)
            if transaction.what == Purpose.FORM:
                fields = {**self._who.fields, ROUND: duty.tally.head.round}
                round, members = duty.tally.head.round, counted(duty.tally.head.size, "node")
                _log.info("run %r: round %d formed with %s", self._backend.run_id, round, members, extra=fields)
        elif duty.lost(stamp_at(commit.entry(STATE)), stamp_at(commit.entry(COORDINATOR))):
            self._view.following.learn(news)

    async def _wait(self, duty: Duty, roster: Watch, until: float | None) -> None:
        """Wait for news of the roster or the head, at most until then."""
        stalls_at = roster.current_at + self._session.ttl
        if stalls_at <= clock.now():
            raise RendezvousConnectionError("the watch on the roster shows no progress")
        with anyio.CancelScope(deadline=stalls_at if until is None else min(until, stalls_at)) as scope:
            with self._view.changed.calling(scope.cancel):
                self._tell(duty, await anext(roster))

    async def _look_back(self, duty: Duty) -> None:
        """Read why members went before this node took the post: from the history, and what the backend remembers."""
        told = (await self._backend.list(HISTORY)).entries
        state = Token(*duty.state)
        # What has changed since the head was written; the head itself is among it, so there is an answer at once.
        async with self._backend.watch(STATE, NODES, after=Token(state.epoch, state.revision - 1)) as since:
            causes = causes_of(await anext(since))
        duty.chronicle.explain(duty.tally, read_records(told), {node_of(key): cause for key, cause in causes.items()})

    def _tell(self, duty: Duty, news: Listing, is_first: bool = False) -> None:
        for error in duty.read_roster(rows_of(news), causes_of(news), None if is_first else clock.now()):
            text, why = "run %r: passing over a node: %s", printable(str(error))
            _log.warning(text, self._backend.run_id, why, extra={**self._who.fields, ROUND: duty.tally.head.round})

    async def _send(self, transaction: Transaction) -> tuple[Commit, list[Entry]]:
        """Commit; return the outcome, and what it says of head and post."""
        if clock.lease_now() >= self._session.deadline:
            raise RendezvousConnectionError(f"{transaction.what}: this node's session is over by its own clock")
        writes, when = writes_of(transaction, self._session.id), conditions_of(transaction)
        deadline = Deadline.after(self._who.timeouts.heartbeat, transaction.what)
        commit = await self._backend.commit(*writes, when=when, deadline=deadline)
        if not commit.won:
            return commit, list(commit.entries)
        written = (write for write in writes if isinstance(write, Put) and write.key in (STATE, COORDINATOR))
        return commit, [put.entry(commit.token) for put in written]
