"""The coordinator's work as a machine without I/O: what it sees goes in, what to do next comes out.

A ``Duty`` is one term of office, from taking the post until it stands down.

::

    look ─► read the seats ─► (clean up) ─► read the roster ─► step ─┬─► wait
     ▲                                                              ├─► rewrite the head
     │                                                              ├─► hand the run over, and stand down
     └─────── another has replaced the round ───────────────────────┴─► form a round, and clean up

**Taking over** reads the head, then the seats, then the roster, each at least as new as the one before. The head may be
old by then: every transaction compares its stamp, so the first one is refused and brings the news.

**Fenced.** Every transaction compares the stamps of the head and of the post. A coordinator that was cut off, paused or
replaced loses the comparison, and stands down.

**Forming.** A round that fits is one transaction. A larger one begins by putting its attempt's id into ``forming``;
the batches of seats and the head compare the stamp of that as well. The head comes last: nothing counts before it
names the attempt.

**Cleaning up** deletes seats of nodes that are not members, and the store of the round before, only after the head
that excludes them. With seats goes every attempt under way: a head may be applied long after its author stopped waiting
for the answer and took office again, and no head may count on seats that are deleted here.

**Recorded.** A step that tells people something new has a record of the history with it (``chronicle``), unless there
is no room for it in the transaction: no step waits for the history.

The shell (``node.coordinator``) calls ``look`` and ``next``, does what it is told, and reports what came of it. The
exhaustive model drives the same methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, StrEnum, auto
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from rendezvous_async.core.chronicle import Chronicle, counted_in
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.history import HistoryRecord, history_key
from rendezvous_async.core.rules import Form, HandOver, Notes, Rewrite, Wait, step
from rendezvous_async.core.state import (
    COORDINATOR,
    FORMING,
    STATE,
    Node,
    Post,
    Seat,
    Stamp,
    node_of,
    round_key,
    seat_key,
)
from rendezvous_async.core.tally import Tally
from rendezvous_async.core.transaction import Capacity, Drop, Row, Save, Seen, Transaction, readable
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.settings import Settings

__all__ = ["Duty", "Purpose", "Read", "Script", "StandDown", "Todo", "campaign", "claim"]


class Purpose(StrEnum):
    """What a coordinator's transaction is for."""

    CAMPAIGN = "campaign"
    CLEAN_UP = "clean up"
    REWRITE = "rewrite the head"
    HAND_OVER = "hand the run over"
    BEGIN = "begin an attempt"
    SEATS = "write seats"
    FORM = "form the round"
    RESIGN = "resign"


class Read(Enum):
    """What a coordinator has not read yet; each comes after those before it."""

    HEAD = auto()
    SEATS = auto()
    ROSTER = auto()


class StandDown(msgspec.Struct, frozen=True):
    """Stop: another node has the post, or there is nothing to coordinate any more."""

    reason: str


Todo: TypeAlias = Transaction | Literal[Read.SEATS, Read.ROSTER] | Wait | StandDown
Script: TypeAlias = list[tuple[Purpose, tuple[Save | Drop, ...]]]
"""Transactions in their order: what each is for, and what it writes."""


def claim(node: str) -> Save:
    """Return the write by which a node takes the post."""
    return Save(COORDINATOR, encode(Post(node)), leased=True)


def campaign(node: str) -> Transaction:
    """Return the transaction by which a node takes the post if it is vacant."""
    return Transaction(Purpose.CAMPAIGN, (claim(node),), {COORDINATOR: None})


class Duty:
    """One term of office.

    Args:
        settings: This node's; it coordinates only a run that has them.
        post: The stamp of the post that it holds.
        capacity: Of one transaction.
        node: This node's id, for the history.

    Attributes:
        unread: What to read next; None once everything has been read.
        state: The stamp of the head that it goes by.
        tally: That head, with what it has read of seats and roster.
        decision: The step under way; None if there is none, or if it only cleans up.
        script: The transactions under way.
        chronicle: What it knows of the past.
        reason: Why it stands down; empty until then.
    """

    state: Stamp
    tally: Tally
    _notes_when_done: Notes

    def __init__(self, settings: Settings, post: Stamp, capacity: Capacity, node: str = "") -> None:
        self.unread: Read | None = Read.HEAD
        self.decision: Rewrite | HandOver | Form | None = None
        self.script: Script = []
        self._settings = settings
        self._post = post
        self._capacity = capacity
        self._forming: Stamp | None = None
        self._notes = Notes()
        self.reason = ""
        self.chronicle = Chronicle(node)
        self._since: float | None = None
        self._record: HistoryRecord | None = None
        self._decided_at = 0.0

    def __repr__(self) -> str:
        return f"<Duty post={self._post} {self.reason or (self.script[0][0] if self.script else self.unread)}>"

    def look(self, seen: Seen) -> None:
        """Take in what the node sees of head and post.

        Ignored between the reads of a take-over, and in the middle of a script: its transactions compare what they were
        made for.
        """
        if self.script or self.unread in (Read.SEATS, Read.ROSTER):
            return
        self._since = seen.since
        if seen.post != self._post:
            self.reason = "another node has the post"
        elif seen.head is None or seen.state is None or not seen.head.accepts(self._settings):
            self.reason = "the run's state is gone, or of other settings"
        elif self.unread is Read.HEAD or seen.head.attempt != self.tally.head.attempt:
            self.state, self.tally, self.unread = seen.state, Tally(seen.head, {}), Read.SEATS
        elif seen.state != self.state:
            self.tally.follow(seen.head)
            self.state = seen.state

    def next(self, now: float, attempt: str, wall: float = 0.0) -> Todo:
        """Return what to do next.

        Args:
            now: The node's own clock.
            attempt: A fresh id, in case a round forms.
            wall: The time of day, for people.
        """
        if self.reason:
            return StandDown(self.reason)
        if not self.script:
            assert self.unread is not Read.HEAD, "a coordinator looks before it does anything"
            if self.unread is not None:
                return self.unread
            decision, notes = step(self.tally, self._notes, now, attempt)
            if isinstance(decision, Wait):
                self._notes = notes
                return decision
            began, ends = math.inf if self._since is None else self._since, self._notes.last_call_ends
            last_call = ends is not None and ends <= now
            self._record, self._decided_at = self.chronicle.record_of(self.tally, decision, began, last_call), now
            if self._record is not None:
                decision = replace(decision, head=counted_in(decision.head))
            self.decision, self._notes_when_done = decision, notes
            self.script = self._script_of(decision)
        what, writes = self.script[0]
        if self._record is not None and len(self.script) == 1:
            writes = self._capacity.with_one_more(writes, self._recording(self._record, now, wall))
        return Transaction(what, writes, self._fence())

    def resignation(self) -> Transaction:
        """Return the transaction that gives the post back, if it is still held."""
        return Transaction(Purpose.RESIGN, (Drop(COORDINATOR),), {COORDINATOR: self._post})

    # Outcomes

    def read_seats(self, rows: Iterable[Row]) -> None:
        """Take all seats; those that do not count, or cannot be read, were left by an earlier coordinator."""
        rows = tuple(rows)
        head = self.tally.head
        self.tally = Tally(head, {node: seat for node, seat, _ in readable(Seat, rows)})
        self.unread = Read.ROSTER
        self.script = self._clean_up(
            [key for key, _, _ in rows if node_of(key) not in self.tally.seats], head.round - 1
        )

    def read_roster(
        self, rows: Iterable[Row], causes: Mapping[str, str] | None = None, now: float | None = None
    ) -> list[RendezvousStateError]:
        """Take records that are new, have changed or are gone.

        Args:
            rows: The records.
            causes: By key, why some are gone, or were before they came again.
            now: The node's own clock; None if they may have been there for long.

        Returns:
            The errors of records that cannot be read; they count as absent.
        """
        self.unread = None
        errors = []
        for key, value, revision in rows:
            node, cause = node_of(key), (causes or {}).get(key, "")
            if value is None:
                self.chronicle.went(self.tally, node, cause)
                self.tally.remove(node)
                continue
            try:
                record = decode(Node, value, key)
            except RendezvousStateError as error:
                self.tally.remove(node)
                errors.append(error)
            else:
                self.chronicle.came(self.tally, node, record, now, cause)
                self.tally.put(node, record, revision)
        return errors

    def won(self, stamp: Stamp) -> None:
        """Go on after the last transaction won; it has that stamp."""
        what, _ = self.script.pop(0)
        if what is Purpose.BEGIN:
            self._forming = stamp
        if self.script or self.decision is None:
            return
        decision, self.decision = self.decision, None
        self.state, self._notes = stamp, self._notes_when_done
        self.chronicle.written(decision)
        self._record = None
        match decision:
            case Rewrite(head):
                self.tally.follow(head)
            case HandOver(head):
                self.reason = f"more nodes agree on {head.fingerprint!r}"
            case Form(head, seats):
                before, self._forming = self.tally, None
                self.tally = before.succeeded_by(head.stamped(stamp), seats)
                gone = [seat_key(node) for node in before.seats if node not in seats]
                self.script = self._clean_up(gone, before.head.round)

    def lost(self, state: Stamp | None, post: Stamp | None) -> bool:
        """Go on after the last transaction was refused, given the stamps of head and post that stand instead.

        Clean-up is then left to the next coordinator; an attempt is given up, and all is read again.

        Returns:
            Whether the node may learn from the answer. It must not if the head or the post is gone, or another node has
            the post: it may be out, and its watch says so before it shows what has become of the head.
        """
        given_up, self.script, self.decision, self._forming, self._record = self.decision, [], None, None, None
        if state is None or post != self._post:
            self.reason = "the post or the run's state is gone, or another node has the post"
            return False
        if isinstance(given_up, Form):
            self.unread = Read.HEAD
        return True

    # What to write

    def _fence(self) -> dict[str, Stamp | None]:
        """Return what every transaction compares; the parts of an attempt also compare its own key."""
        fence: dict[str, Stamp | None] = {STATE: self.state, COORDINATOR: self._post}
        return fence if self._forming is None else fence | {FORMING: self._forming}

    def _recording(self, record: HistoryRecord, now: float, wall: float) -> Save:
        """Return the write of a record that goes with the last transaction of a step."""
        since = None if self._since is None else round(now - self._since, 3)
        record = replace(record, at=round(wall, 3), since=since, forming=round(now - self._decided_at, 3))
        return Save(history_key(record.n), encode(record))

    def _script_of(self, decision: Rewrite | HandOver | Form) -> Script:
        head = Save(STATE, encode(decision.head))
        match decision:
            case Rewrite():
                return [(Purpose.REWRITE, (head,))]
            case HandOver():
                return [(Purpose.HAND_OVER, (head, Drop(COORDINATOR)))]
            case Form(formed, given):
                old = self.tally.head.round
                last = (head, Save(round_key(formed.round), b""), *((Drop(round_key(old)),) if old else ()))
                seats = [Save(seat_key(node), encode(seat)) for node, seat in given.items()]
                batches = list(self._capacity.batches(seats, spare=len(last) + 1))  # The history's.
                if len(batches) == 1:
                    return [(Purpose.FORM, (*seats, *last))]
                return [
                    (Purpose.BEGIN, (Save(FORMING, formed.attempt.encode()),)),
                    *((Purpose.SEATS, batch) for batch in batches),
                    (Purpose.FORM, (*last, Drop(FORMING))),
                ]

    def _clean_up(self, keys: Sequence[str], old: int) -> Script:
        """Return what deletes these seats, and the store of a round that is over."""
        drops = [*map(Drop, keys), *((Drop(round_key(old) + "/"),) if old > 0 else ())]
        room = self._capacity.room - 1
        return [
            (Purpose.CLEAN_UP, (Drop(FORMING), *drops[start : start + room])) for start in range(0, len(drops), room)
        ]
