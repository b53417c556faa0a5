"""The coordinator: one node folds the roster into seats and head; any node can, and the next one takes over.

A node has a ``Coordinator`` from the first time that the post (the leased key ``coordinator``) is its own or vacant. It
takes the post, and then folds: take the head, read the seats, then the roster; ask ``core.rules.step`` what to do; do
it; wait for a change.

Every write compares the head's token and the post's: a coordinator that was cut off, paused or replaced loses the
compare, and stands down. A round too large for one commit is written in batches that compare the attempt's own key
as well, the head last: nothing counts before the head says so. Whatever goes wrong, it gives the post back and lets
another try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import anyio

from rendezvous_async import clock
from rendezvous_async.backends.base import (
    Backend,
    Commit,
    Condition,
    Delete,
    Entry,
    Listing,
    Put,
    Session,
    Token,
    Watch,
    Write,
)
from rendezvous_async.clock import Patience, answer_within
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.rules import Form, HandOver, Notes, Rewrite, Wait, step
from rendezvous_async.core.state import (
    COORDINATOR,
    FORMING,
    NODES,
    SEATS,
    STATE,
    Head,
    Node,
    Post,
    Seat,
    node_of,
    round_key,
    seat_key,
)
from rendezvous_async.core.tally import Tally
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rendezvous_async.participant import Participant
from rendezvous_async.settings import Settings
from rendezvous_async.texts import counted, printable
from rendezvous_async.view import View

__all__ = ["Coordinator", "claim", "is_wanted"]

_log = logging.getLogger("rendezvous_async.node")

CAMPAIGN_SPREAD = 0.0002
"""Seconds per member over which campaigns are spread, so that not all of a large world ask at once."""
MAX_CAMPAIGN_SPREAD = 0.2
RETRY_AFTER = 0.2


def claim(node: str, session: str) -> Put:
    """Return the write by which a node takes the post."""
    return Put(COORDINATOR, encode(Post(node)), session)


def is_wanted(view: View, session: Session, settings: Settings) -> bool:
    """Tell whether the post is the one of this session, or could be: only then a node needs a ``Coordinator``."""
    post = view.entry(COORDINATOR)
    return post.session == session.id if post is not None else _may_campaign(view, settings)


def _may_campaign(view: View, settings: Settings) -> bool:
    """Tell whether the post is vacant, and of a run that needs somebody with these settings."""
    head = view.head
    vacant = view.loaded and view.entry(COORDINATOR) is None
    return vacant and head is not None and head.closed is None and head.settings == settings


class Coordinator:
    """Takes the post when it is vacant, and does its work.

    Args:
        backend: The run's.
        session: This node's; the post is bound to it.
        who: This node; it campaigns only for a run that has its settings.
        view: What this node sees of the run.
        on_duty: Told True when this node takes the post, False when it gives it up.
    """

    def __init__(
        self,
        backend: Backend,
        session: Session,
        who: Participant,
        view: View,
        on_duty: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._session = session
        self._who = who
        self._view = view
        self._on_duty = on_duty

    def __repr__(self) -> str:
        return f"<Coordinator node={self._who.node!r} run={self._backend.run_id!r}>"

    @property
    def post(self) -> Token | None:
        """The token of the post, if this node holds it as far as it knows."""
        entry = self._view.entry(COORDINATOR)
        return entry.token if entry is not None and entry.session == self._session.id else None

    async def run(self) -> None:
        """Campaign and coordinate until cancelled."""
        while True:
            post = await self._campaign()
            self._on_duty(True)
            try:
                await _Duty(self, post).fold()
            except RendezvousError as error:
                _log.warning("node %s gives up coordinating run %r: %s", self._who.node, self._backend.run_id, error)
            except Exception:
                _log.exception(
                    "node %s fails to coordinate run %r; please report", self._who.node, self._backend.run_id
                )
            finally:
                self._on_duty(False)
            await self._resign(post)
            await anyio.sleep(RETRY_AFTER * (1 + self._who.rng.random()))

    async def _campaign(self) -> Token:
        """Wait for the post to be vacant, and take it."""
        while True:
            while (post := self.post) is None and not _may_campaign(self._view, self._who.settings):
                await self._view.changed.wait()
            if post is not None:
                return post
            size = 0 if self._view.head is None else self._view.head.size
            await anyio.sleep(self._who.rng.uniform(0, min(size * CAMPAIGN_SPREAD, MAX_CAMPAIGN_SPREAD)))
            if not _may_campaign(self._view, self._who.settings):
                continue
            put = claim(self._who.node, self._session.id)
            try:
                commit = await self._call("campaign", put, when=[Condition(COORDINATOR, None)])
            except RendezvousConnectionError:
                await anyio.sleep(RETRY_AFTER * (1 + self._who.rng.random()))
                continue
            entries = (put.entry(commit.token),) if commit.won else commit.entries
            self._view.hear(entries)
            if not commit.won and not entries:
                await self._view.changed.wait()

    async def _resign(self, post: Token) -> None:
        """Give the post back, if it is still held: somebody else may do better."""
        try:
            await self._call("resign", Delete(COORDINATOR), when=[Condition(COORDINATOR, post)])
        except RendezvousError as error:
            _log.debug("node %s could not give the post back: %s", self._who.node, error)

    async def _call(self, what: str, *writes: Write, when: Sequence[Condition]) -> Commit:
        if clock.lease_now() >= self._session.deadline:
            raise RendezvousConnectionError(f"{what}: this node's session is over by its own clock")
        return await self._backend.commit(*writes, when=when, patience=Patience(self._who.timeouts.heartbeat, what))


class _StandDown(Exception):
    """Another node has the post, or there is nothing to coordinate any more."""


class _Duty:
    """One term of office: from taking the post until it is lost."""

    def __init__(self, coordinator: Coordinator, post: Token) -> None:
        self._own = coordinator
        self._backend = coordinator._backend
        self._view = coordinator._view
        self._timeout = coordinator._who.timeouts.heartbeat
        self._post = post
        self._state: Token
        self._tally: Tally
        self._notes = Notes()

    async def fold(self) -> None:
        """Read, step, act, wait; returns when the post is lost, or there is nothing to coordinate with these settings.

        Raises:
            RendezvousError: Anything that makes it impossible to go on; the caller gives the post back.
        """
        try:
            while True:
                await self._take_over()
                async with self._backend.watch(NODES) as roster:
                    with answer_within(self._timeout, "read the roster"):
                        self._take(await anext(roster))
                    await self._work(roster)
        except _StandDown as reason:
            _log.info("node %s no longer coordinates run %r: %s", self._own._who.node, self._backend.run_id, reason)

    async def _take_over(self) -> None:
        """Take the head as it was pushed, and read the seats; the roster comes after: each as new as the one before.

        The head may be old by now: every commit compares its token, so the first one is refused and brings the news.
        """
        self._state, head = self._known_head()
        with answer_within(self._timeout, "take over the run"):
            seats = await self._backend.list(SEATS)
        places = {node: seat for node, seat in map(_read_seat, seats.entries) if seat is not None}
        self._tally = Tally(head, places)
        await self._clean_up(seats.entries, head.round - 1)

    async def _work(self, roster: Watch) -> None:
        """Do step after step; returns when the round was replaced by somebody else, and all must be read again."""
        attempt = self._own._who.fresh_id()
        while self._follow():
            now = clock.now()
            decision, notes = step(self._tally, self._notes, now, attempt)
            match decision:
                case Wait(until):
                    self._notes = notes
                    await self._wait(roster, until)
                case Rewrite(head):
                    if await self._write_head(head):
                        self._notes = notes
                case HandOver(head):
                    await self._hand_over(head)
                case Form() as form:
                    if not await self._form(form):
                        return
                    self._notes = notes
                    attempt = self._own._who.fresh_id()

    def _follow(self) -> bool:
        """Adopt what others wrote to the head: a close. False if it is of another attempt."""
        if self._view.token(COORDINATOR) != self._post:
            raise _StandDown("another node has the post")
        token, head = self._known_head()
        if token != self._state:
            if head.attempt != self._tally.head.attempt:
                return False
            self._tally.follow(head)
            self._state = token
        return True

    def _known_head(self) -> tuple[Token, Head]:
        """Return the head as this node sees it, and its token."""
        token, head = self._view.token(STATE), self._view.head
        if token is None or head is None or head.settings != self._own._who.settings:
            raise _StandDown("the run's state is gone, or of other settings")
        return token, head

    async def _wait(self, roster: Watch, until: float | None) -> None:
        """Wait for news of the roster or the head, at most until then."""
        stalls_at = roster.current_at + self._own._session.ttl
        if stalls_at <= clock.now():
            raise RendezvousConnectionError("the watch on the roster shows no progress")
        with anyio.CancelScope(deadline=stalls_at if until is None else min(until, stalls_at)) as scope:
            with self._view.changed.calling(scope.cancel):
                self._take(await anext(roster))

    def _take(self, listing: Listing) -> None:
        """Take what has changed in the roster; a record that cannot be read is as good as none."""
        for entry in listing.entries:
            node = node_of(entry.key)
            if entry.value is None:
                self._tally.remove(node)
                continue
            try:
                self._tally.put(node, decode(Node, entry.value, entry.key), entry.token.revision)
            except RendezvousStateError as error:
                _log.warning("run %r: passing over node %s: %s", self._backend.run_id, printable(node), error)
                self._tally.remove(node)

    async def _write_head(self, head: Head) -> bool:
        put = Put(STATE, encode(head))
        commit = await self._commit("rewrite the head", put)
        if commit.won:
            self._adopt(put, commit)
            self._tally.follow(head)
        return commit.won

    async def _hand_over(self, head: Head) -> None:
        """Write a head with the settings of others, and give up the post in the same commit."""
        put = Put(STATE, encode(head))
        commit = await self._commit("hand the run over", put, Delete(COORDINATOR))
        if commit.won:
            self._adopt(put, commit)
            raise _StandDown(f"more nodes agree on {head.settings.fingerprint!r}")

    async def _form(self, form: Form) -> bool:
        """Write the seats, then the head with the round's marker; in one commit if it fits, else in batches."""
        old = self._tally.head.round
        head = Put(STATE, encode(form.head))
        last: list[Write] = [head, Put(round_key(form.head.round), b"")]
        if old:
            last.append(Delete(round_key(old)))
        seats = [Put(seat_key(node), encode(seat)) for node, seat in form.seats.items()]
        fence: tuple[Condition, ...] = ()
        batches = list(_batches(seats, self._backend, spare=len(last)))
        if len(batches) > 1:
            begun = await self._commit("begin an attempt", Put(FORMING, form.head.attempt.encode()))
            if not begun.won:
                return False
            fence = (Condition(FORMING, begun.token),)
            for batch in batches:
                if not (await self._commit("write seats", *batch, when=fence)).won:
                    return False
            commit = await self._commit("form the round", *last, Delete(FORMING), when=fence)
        else:
            commit = await self._commit("form the round", *seats, *last)
        if not commit.won:
            return False
        self._adopt(head, commit)
        before = self._tally.seats
        self._tally = self._tally.succeeded_by(form.head.stamped(_stamp(commit.token)), form.seats)
        size = counted(form.head.size, "node")
        _log.info("run %r: round %d formed with %s", self._backend.run_id, form.head.round, size)
        await self._clear([seat_key(node) for node in before if node not in form.seats], old)
        return True

    async def _clean_up(self, seats: Sequence[Entry], old: int) -> None:
        """Delete what an earlier coordinator may have left: seats that do not count, the store of the last round."""
        await self._clear([entry.key for entry in seats if node_of(entry.key) not in self._tally.seats], old)

    async def _clear(self, keys: Sequence[str], old: int) -> None:
        """Delete seats of nodes that are not members, and the store of a round that is over.

        With seats goes every attempt under way: a head commit, or this very one, may be applied long after its author
        stopped waiting for the answer and took office again, and no head may count on seats that are deleted here.
        """
        deletes = [Delete(key) for key in keys]
        if old > 0:
            deletes.append(Delete(round_key(old) + "/"))
        room = self._backend.max_writes - 1
        for start in range(0, len(deletes), room):
            if not (await self._commit("clean up", Delete(FORMING), *deletes[start : start + room])).won:
                return

    async def _commit(self, what: str, *writes: Write, when: tuple[Condition, ...] = ()) -> Commit:
        """Commit on the condition that the head is the known one and the post is held; a loss brings the news."""
        fence = (Condition(STATE, self._state), Condition(COORDINATOR, self._post))
        commit = await self._own._call(what, *writes, when=(*fence, *when))
        if not commit.won:
            post = commit.entry(COORDINATOR)
            if commit.entry(STATE) is None or post is None or post.token != self._post:
                # This node may be out. Its watch says so before it tells what has become of the head.
                raise _StandDown("the post or the run's state is gone, or another node has the post")
            self._view.hear(commit.entries)
        return commit

    def _adopt(self, head: Put, commit: Commit) -> None:
        """Take the head that was just written as the known one."""
        self._state = commit.token
        self._view.hear([head.entry(commit.token)])


def _stamp(token: Token) -> tuple[str, int]:
    return token.epoch, token.revision


def _read_seat(entry: Entry) -> tuple[str, Seat | None]:
    """Return the seat at an entry, or None for one that cannot be read: it is as good as none."""
    try:
        return node_of(entry.key), decode(Seat, entry.value, entry.key)
    except RendezvousStateError:
        return node_of(entry.key), None


def _batches(puts: Sequence[Put], backend: Backend, spare: int) -> Iterator[Sequence[Put]]:
    """Cut ``puts`` into batches that fit a commit together with ``spare`` more writes."""
    batch: list[Put] = []
    size = 0
    for put in puts:
        bytes_ = len(backend.prefix) + len(put.key) + len(put.value)
        if batch and (len(batch) + spare >= backend.max_writes or size + bytes_ > backend.max_bytes // 2):
            yield batch
            batch, size = [], 0
        batch.append(put)
        size += bytes_
    yield batch
