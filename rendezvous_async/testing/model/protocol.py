"""The protocol that is put to the test: the pure functions of ``core``, and the commits that a coordinator makes.

What decides is the real code: ``rules.step`` on a real ``Tally``, ``rules.admit``, ``rules.change_of``, and the
coordinator's own cutting of seats into batches. What a coordinator writes, and on which conditions, is written down
here once more, commit by commit, in the order of ``coordinator._Duty``; a test compares it with what a real
coordinator sends. A planted bug is a subclass that overrides one of these methods.

Time is nobody's: a coordinator that waits until a time may find at any moment that it has come. So the notes that it
keeps from step to step need not be part of a state, and a wait is always followed to its end.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple, cast

import msgspec
from msgspec.structs import replace

from rendezvous_async.backends.base import Backend, Put
from rendezvous_async.coordinator import _batches
from rendezvous_async.core import rules
from rendezvous_async.core.rules import Admission, Change, Form, HandOver, Joined, Notes, Rewrite, Step, Wait
from rendezvous_async.core.state import Closed, Head, Last, Node, Phase, Seat, seat_key
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.settings import Settings
from rendezvous_async.testing.model.values import (
    Budget,
    Commit,
    Duty,
    HeadRow,
    Plan,
    RecordRow,
    SeatRow,
    State,
    replaced,
)

__all__ = ["WHAT", "Config", "Protocol"]

REWRITE, BEGIN, SEATS, HEAD, FORM, CLEAN, RESIGN = range(7)
WHAT = (
    "rewrites the head",
    "begins an attempt",
    "writes a batch of seats",
    "writes the head that counts the seats",
    "forms a round in one commit",
    "cleans up seats",
    "gives the post back",
)
NEW = 999
"""The attempt id of a plan until it gets one of its own."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is explored.

    Attributes:
        nodes: How many there are.
        min_nodes: Of a round.
        max_nodes: Of a round.
        rounds: How many may form; in the last one nobody returns.
        max_writes: What a commit may hold; None: enough for all.
        coordinators: How many nodes may be at it at a time, rightly or not.
        doomed: Whether to follow a coordinator that has lost its post until it finds out. As each of its commits
            compares the post and is refused, it can do nothing else, and may as well find out at once; there are
            about five times as many states if it does not.
        budget: How much trouble there may be.
    """

    nodes: int = 3
    min_nodes: int = 2
    max_nodes: int = 2
    rounds: int = 2
    max_writes: int | None = None
    coordinators: int = 2
    doomed: bool = False
    budget: Budget = Budget()

    def __str__(self) -> str:
        trouble = [f"{count} {kind}" for kind, count in msgspec.structs.asdict(self.budget).items() if count]
        return (
            f"{self.nodes} nodes, {self.min_nodes}:{self.max_nodes}, {self.rounds} rounds, "
            f"{'one commit' if self.max_writes is None else 'batches'}, {self.coordinators} coordinators"
            f"{', the doomed included' if self.doomed else ''}; "
            f"{', '.join(trouble) or 'no trouble'}"
        )


class Forming(NamedTuple):
    """The decision to form a round: head and seats with the attempt ``NEW``, and the nodes in batches."""

    head: HeadRow
    seats: tuple[SeatRow | None, ...]
    batches: tuple[tuple[int, ...], ...]

    def plan(self, attempt: int) -> Plan:
        """Return the plan for an attempt of its own."""
        seats = tuple(None if seat is None else replace(seat, attempt=attempt) for seat in self.seats)
        return Plan(replace(self.head, attempt=attempt), seats, self.batches, 0)


class Protocol:
    """The rules and the commits, on rows; answers of the real functions are remembered."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.settings = Settings(config.min_nodes, config.max_nodes)
        self._heads: dict[HeadRow, Head] = {}
        self._decisions: dict[object, HeadRow | Forming | None] = {}
        self._admissions: dict[object, Admission] = {}
        self._stamps: dict[tuple[HeadRow, int], HeadRow] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.config}>"

    # The real functions, to be overridden by planted bugs

    def step(self, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        """Call ``rules.step``."""
        return rules.step(tally, notes, now, attempt)

    def admit(self, head: Head | None, seat: Seat | None, arrival: str, last: Last | None) -> Admission:
        """Call ``rules.admit``."""
        return rules.admit(head, seat, arrival, self.settings, last)

    # The same on rows

    def decide(
        self, head: HeadRow, seats: tuple[SeatRow | None, ...], roster: tuple[RecordRow | None, ...]
    ) -> HeadRow | Forming | None:
        """Return the head to write, the round to form, or None if there is nothing to wait for but news."""
        key = (head, seats, roster)
        if key not in self._decisions:
            self._decisions[key] = self._decide(head, seats, roster)
        return self._decisions[key]

    def admission(self, head: HeadRow | None, seat: SeatRow | None, arrival: int, last: int, rank: int) -> Admission:
        """Return what a node at the barrier reads from a head and a seat."""
        key = (head, seat, arrival, last, rank)
        if key not in self._admissions:
            self._admissions[key] = self.admit(
                None if head is None else self.head_of(head),
                None if seat is None else seat_of(seat),
                str(arrival),
                Last(last, rank) if last else None,
            )
        return self._admissions[key]

    def change_of(self, head: HeadRow, held: tuple[int, int, int, int, int]) -> Change | None:
        """Return what a member reads from a stamped head."""
        round, rank, size, token, _ = held
        return rules.change_of(self.head_of(head), Joined(round, rank, size, ("", token)))

    def stamped(self, head: HeadRow, revision: int) -> HeadRow:
        """Return a head as it is read from an entry with that revision."""
        if (head, revision) not in self._stamps:
            self._stamps[head, revision] = row_of(self.head_of(head).stamped(("", revision)))
        return self._stamps[head, revision]

    def counted(self, head: HeadRow, seats: tuple[SeatRow | None, ...]) -> tuple[SeatRow | None, ...]:
        """Return the seats that count under a head."""
        there = {str(node): seat_of(seat) for node, seat in enumerate(seats) if seat is not None}
        members = Tally(self.head_of(head), there).seats
        return tuple(seat if str(node) in members else None for node, seat in enumerate(seats))

    def head_of(self, row: HeadRow) -> Head:
        """Return the record that a row stands for."""
        if row not in self._heads:
            self._heads[row] = Head(
                settings=self.settings,
                round=row.round,
                phase=Phase.FORMED if row.formed else Phase.GATHERING,
                attempt=str(row.attempt or ""),
                size=row.size,
                waiting=row.waiting,
                returned=row.returned,
                lost=row.lost,
                token=None if row.token is None else ("", row.token),
                closed=Closed("", "") if row.closed else None,
            )
        return self._heads[row]

    def _decide(
        self, head: HeadRow, seats: tuple[SeatRow | None, ...], roster: tuple[RecordRow | None, ...]
    ) -> HeadRow | Forming | None:
        fingerprint = self.settings.fingerprint
        tally = tally_of(
            self.head_of(head),
            {str(node): seat_of(seat) for node, seat in enumerate(seats) if seat is not None},
            [
                (str(node), node_of(record, fingerprint), record.order)
                for node, record in enumerate(roster)
                if record is not None
            ],
        )
        decision, notes = self.step(tally, Notes(counted_at=0.0), 0.0, str(NEW))
        if isinstance(decision, Wait) and decision.until is not None:
            decision, _ = self.step(tally, notes, decision.until, str(NEW))
            assert not isinstance(decision, Wait), f"{decision} after its time had come would spin"
        match decision:
            case Wait():
                return None
            case Rewrite(head=rewritten):
                return row_of(rewritten)
            case Form(head=formed, seats=given):
                return self._forming(head.round, formed, given)
            case HandOver():
                raise AssertionError(f"{decision}: all nodes of the model have the same settings")

    def _forming(self, old: int, head: Head, given: dict[str, Seat]) -> Forming:
        seats: tuple[SeatRow | None, ...] = (None,) * self.config.nodes
        for node, seat in given.items():
            row = SeatRow(seat.round, int(seat.attempt), int(seat.arrival), seat.rank)
            seats = replaced(seats, int(node), row)
        puts = [Put(seat_key(node), b"") for node in given]
        limits = SimpleNamespace(prefix="", max_writes=self.config.max_writes or 1000, max_bytes=1 << 20)
        batches = _batches(puts, cast(Backend, limits), spare=3 if old else 2)
        nodes = tuple(tuple(int(put.key.rpartition("/")[2]) for put in batch) for batch in batches)
        return Forming(row_of(head), seats, nodes)

    # The commits, as coordinator._Duty makes them

    def fence(self, duty: Duty) -> tuple[int | None, int | None]:
        """Return the revisions of the head and of the post that every commit of a coordinator compares."""
        return duty.state, duty.post

    def rewrite(self, duty: Duty, head: HeadRow) -> Commit:
        """Return the commit that writes other counts or another phase."""
        return Commit(REWRITE, *self.fence(duty), head=head)

    def script(self, duty: Duty, plan: Plan) -> list[Commit]:
        """Return the commits that form a round, in their order."""
        fence = self.fence(duty)
        attempt, round, old = plan.head.attempt, plan.head.round, duty.head.round
        batches = [
            tuple((node, seat) for node in batch if (seat := plan.seats[node]) is not None) for batch in plan.batches
        ]
        if len(batches) == 1:
            return [Commit(FORM, *fence, head=plan.head, seats=batches[0], mark=round, unmark=old)]
        return [
            Commit(BEGIN, *fence, begin=attempt),
            *(Commit(SEATS, *fence, attempt, seats=batch) for batch in batches),
            Commit(HEAD, *fence, attempt, head=plan.head, mark=round, unmark=old, end=1),
        ]

    def clean_up(self, duty: Duty) -> Commit:
        """Return the commit that deletes seats of nodes that are not members."""
        return Commit(CLEAN, *self.fence(duty), drop=duty.extra, end=1)

    def resign(self, duty: Duty) -> Commit:
        """Return the commit that gives the post back."""
        return Commit(RESIGN, None, duty.post, resign=1)

    # What a store does

    def accepts_put(self, open: bool) -> bool:
        """Tell whether a put under a session is done: only if that is open."""
        return open

    def goes_with(self, row: RecordRow, session: int) -> bool:
        """Tell whether a record is deleted with a session: a key belongs to the session of its last put."""
        return row.session == session

    def is_doomed(self, state: State, duty: Duty) -> bool:
        """Tell whether every commit of a coordinator will be refused, because the post that it compares is gone."""
        post = self.fence(duty)[1]
        return post is not None and (state.post is None or state.post.revision != post)


def seat_of(row: SeatRow) -> Seat:
    """Return the record that a row stands for."""
    return Seat(round=row.round, attempt=str(row.attempt), arrival=str(row.arrival), rank=row.rank)


def node_of(row: RecordRow, fingerprint: str) -> Node:
    """Return the record that a row stands for."""
    last = Last(row.last_round, row.last_rank) if row.last_round else None
    return Node(arrival=str(row.arrival), fingerprint=fingerprint, last=last)


def row_of(head: Head) -> HeadRow:
    """Return the row that stands for a record."""
    return HeadRow(
        head.round,
        int(head.phase is Phase.FORMED),
        int(head.attempt or 0),
        head.size,
        head.waiting,
        head.returned,
        head.lost,
        None if head.token is None else head.token[1],
        int(head.closed is not None),
    )
