"""What coordinators do, move by move: the real machine, ``core.duty.Duty``, brought to the state that a row describes.

Each read and each commit is a separate move, so anything can happen in between. A coordinator learns of each record
separately and at any time, and of a new head at any time. One that lost its post goes on as if it had not, until a
commit is refused or it learns of the loss. A commit may get no answer: then its author ends its duty and gives the post
back, and both commits are in flight, to be applied at any later moment or never; if the post is still this node's, it
may begin again meanwhile.

States hold rows and not machines, since rows are cheap to hash and can be renamed. What a machine does at a row is
cached. Two things are simpler than in ``node.coordinator``, without losing anything. A coordinator that reads
everything again is one that has not begun. And there is no clock: a wait until some time may end at any moment, so the
notes are not part of a state, and a wait is always followed to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from rendezvous_async.core import duty
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.duty import Purpose, Read, StandDown, Todo
from rendezvous_async.core.history import HISTORY
from rendezvous_async.core.rules import Form, Wait
from rendezvous_async.core.state import COORDINATOR, FORMING, NODES, SEATS, STATE, Head, Seat
from rendezvous_async.core.state import node_of as node_at
from rendezvous_async.core.transaction import Capacity, Drop, Row, Save, Seen, Transaction
from tests.proof.model.canonical import attempts_of
from tests.proof.model.protocol import Protocol, node_of, row_of, row_of_seat, seat_of
from tests.proof.model.store import commit
from tests.proof.model.values import FRESH, OWN, PAST, Commit, Duty, HeadRow, Plan, RecordRow, SeatRow, State, replaced

__all__ = ["Duties"]

READ_SEATS, CLEAN, READ_ROSTER, WORK, FORM, CLEAR = range(6)
PURPOSES = tuple(Purpose)
WORDS = {
    Purpose.CLEAN_UP: "cleans up seats",
    Purpose.REWRITE: "rewrites the head",
    Purpose.BEGIN: "begins an attempt",
    Purpose.SEATS: "writes a batch of seats",
    Purpose.FORM: "forms a round in one commit",
    Purpose.RESIGN: "gives the post back",
}
NEW = 999
"""The attempt id of a round until it gets one of its own."""


class Turn(NamedTuple):
    """What a machine does next at some row: its answer, the commit if it is one, and the row once that has won."""

    todo: Todo
    commit: Commit | None = None
    won: Duty | None = None
    forms: int = 0
    """The round that is to be formed; 0: none."""


class Duties:
    """The coordinators' moves under one protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._rounds = protocol.config.rounds
        self._capacity = Capacity(protocol.config.max_writes or 1000, 1 << 20)
        self._turns: dict[tuple[Duty, int], Turn] = {}
        self._looks: dict[tuple[object, ...], Duty | None] = {}
        self._read: dict[tuple[Duty, tuple[SeatRow | None, ...]], Duty | None] = {}

    def describe(self, what: Commit) -> str:
        """Say in words what a commit does."""
        seats = ", ".join(f"n{node} rank {seat.rank} in round {seat.round}" for node, seat in what.seats)
        head = "" if what.head is None else f" (round {what.head.round}, size {what.head.size})"
        return f"a coordinator {_words(what)}{head}{': ' if seats else ''}{seats}"

    def begin(self, state: State, node: int) -> State:
        """Begin with the head; the post is this node's."""
        assert state.post is not None
        machine = self._new(state.post.revision)
        machine.look(self._seen(state, state.post.revision))
        return _with(state, node, self._row(machine, state.post.revision, (), None))

    def of(self, state: State, node: int, row: Duty) -> Iterator[tuple[str, bool, State]]:
        """Yield what the coordinator at ``node`` may do: what, whether it is free, and the state after it."""
        if row.state != state.revision or row.post == PAST:
            after = self._looking(state, row)
            if after != row:
                what = "learns of another head" if row.post != PAST else "learns that it has lost the post"
                yield what, True, _with(state, node, after)
        if row.stage == WORK:
            for other, (known, record) in enumerate(zip(row.roster, state.records, strict=True)):
                if known != (there := _as_read(record)):
                    told = replace(row, roster=replaced(row.roster, other, there))
                    yield f"learns of n{other}", True, _with(state, node, told)
        attempt = NEW if row.plan is None else row.plan.head.attempt
        turn = self._turn(row, attempt)
        match turn.todo:
            case Wait():
                return
            case Read.SEATS:
                yield "reads the seats", True, _with(state, node, self._reading(state, row))
            case Read.ROSTER:
                roster = tuple(map(_as_read, state.records))
                yield "reads the roster", True, _with(state, node, replace(row, stage=WORK, roster=roster))
            case Transaction() if turn.forms <= self._rounds:
                if turn.forms and attempt == NEW:
                    attempt = max(attempts_of(state), default=0) + 1
                yield from self._commit(state, node, row, attempt, self._turn(row, attempt))

    def _commit(
        self, state: State, node: int, row: Duty, attempt: int, turn: Turn
    ) -> Iterator[tuple[str, bool, State]]:
        """Yield the move that sends a commit and gets an answer, and the one that gets none."""
        what = turn.commit
        assert what is not None
        words = _words(what)
        done = commit(state, what)
        if done is None:
            yield f"{words}: refused", True, _with(state, node, self._looking(state, row, attempt))
            return
        yield words, True, _with(done, node, turn.won)
        if state.budget.late:
            budget = replace(state.budget, late=state.budget.late - 1)
            resign = _commit_of(self._new(row.post).resignation())
            sent = replace(state, budget=budget, late=(*state.late, what, resign))
            yield f"{words}, gets no answer, and gives up", False, _with(sent, node, None)

    # The machine

    def _new(self, post: int) -> duty.Duty:
        return duty.Duty(self._protocol.settings, ("", post), self._capacity)

    def _at(self, row: Duty) -> duty.Duty:
        """Return a machine that was brought, by its own methods, to the state of a row."""
        machine, none = self._new(row.post), ("", FRESH)
        machine.look(Seen(self._protocol.head_of(row.head), ("", row.state), ("", row.post)))
        if row.stage == READ_SEATS:
            return machine
        junk = [(f"{SEATS}{node}", b"", 0) for node in row.extra]
        machine.read_seats([*_seat_rows(row.seats), *junk])
        while machine.script and row.stage not in (CLEAN, CLEAR):
            machine.won(none)
        if row.stage in (CLEAN, READ_ROSTER):
            return machine
        fingerprint = self._protocol.settings.fingerprint
        machine.read_roster(
            (f"{NODES}{node}", encode(node_of(record, fingerprint)), record.order)
            for node, record in enumerate(row.roster)
            if record is not None
        )
        if row.plan is not None:
            _decide(machine, row.plan.head.attempt)
            for _ in range(row.plan.done):
                machine.won(("", row.plan.head.attempt))
        return machine

    def _row(
        self, machine: duty.Duty, post: int, roster: tuple[RecordRow | None, ...], done: int | None
    ) -> Duty | None:
        """Return the row that stands for where a machine is; ``done`` is how many commits of its attempt have won."""
        if machine.reason or machine.unread is Read.HEAD:
            return None
        plan = None
        match machine.unread:
            case Read.SEATS:
                stage = READ_SEATS
            case Read.ROSTER:
                stage = CLEAN if machine.script else READ_ROSTER
            case _:
                stage = CLEAR if machine.script else WORK
                if isinstance(machine.decision, Form) and done is not None:
                    head, given = machine.decision.head, machine.decision.seats
                    stage, plan = FORM, Plan(row_of(head), self._seats(given), done)
        drops = [write.name for _, writes in machine.script for write in writes if isinstance(write, Drop)]
        extra = tuple(sorted(int(node_at(name)) for name in drops if name.startswith(SEATS)))
        head_row, seats = row_of(machine.tally.head), self._seats(machine.tally.seats)
        return Duty(stage, post, machine.state[1], head_row, seats, extra, roster, plan)

    def _seats(self, seats: dict[str, Seat]) -> tuple[SeatRow | None, ...]:
        nodes = range(self._protocol.config.nodes)
        return tuple(row_of_seat(seats[str(node)]) if str(node) in seats else None for node in nodes)

    def _turn(self, row: Duty, attempt: int) -> Turn:
        """Return what the machine at a row does next."""
        if (row, attempt) not in self._turns:
            machine = self._at(row)
            todo = _decide(machine, attempt)
            turn = Turn(todo)
            if isinstance(todo, Transaction):
                what = _commit_of(todo)
                forms = machine.decision.head.round if isinstance(machine.decision, Form) else 0
                machine.won(("", what.begin or (what.head.attempt if what.head is not None and what.mark else FRESH)))
                done = 0 if row.plan is None else row.plan.done
                turn = Turn(todo, what, self._row(machine, row.post, row.roster, done + 1), forms)
            self._turns[row, attempt] = turn
        return self._turns[row, attempt]

    def _reading(self, state: State, row: Duty) -> Duty | None:
        """Return where a machine is once it has read the seats."""
        key = (row, state.seats)
        if key not in self._read:
            machine = self._at(row)
            machine.read_seats(_seat_rows(state.seats))
            self._read[key] = self._row(machine, row.post, row.roster, None)
        return self._read[key]

    def _looking(self, state: State, row: Duty, refused: int = 0) -> Duty | None:
        """Return where a machine is once it has looked; with an attempt, after a commit of it was ``refused``."""
        key = (row, state.head, state.revision, refused)
        if key not in self._looks:
            machine, seen = self._at(row), self._seen(state, row.post)
            if refused:
                _decide(machine, refused)
                machine.lost(seen.state, seen.post)
            machine.look(seen)
            done = None if row.plan is None else row.plan.done
            after = self._row(machine, row.post, row.roster, done)
            begins = after is not None and after.stage == READ_SEATS != row.stage
            self._looks[key] = None if begins else after
        return self._looks[key]

    def _seen(self, state: State, post: int) -> Seen:
        head = self._protocol.stamped(state.head, state.revision)
        return Seen(self._protocol.head_of(head), ("", state.revision), None if post == PAST else ("", post))


def _decide(machine: duty.Duty, attempt: int) -> Todo:
    """Return what a machine does next; a time that it waits for has come."""
    todo = machine.next(0.0, str(attempt))
    if isinstance(todo, Wait) and todo.until is not None:
        todo = machine.next(todo.until, str(attempt))
        assert not isinstance(todo, Wait), f"{todo} after its time had come would spin"
    assert not isinstance(todo, StandDown)
    return todo


def _commit_of(transaction: Transaction) -> Commit:
    """Return the row that stands for a transaction; the store of a round is not part of the model."""
    head: HeadRow | None = None
    seats: list[tuple[int, SeatRow]] = []
    drop: list[int] = []
    begin = end = mark = unmark = resign = 0
    for write in transaction.writes:
        match write:
            case Save(key=str(key), value=value):
                if key == STATE:
                    head = row_of(decode(Head, value))
                elif key == FORMING:
                    begin = int(value)
                elif key.startswith(SEATS):
                    seats.append((int(node_at(key)), row_of_seat(decode(Seat, value))))
                elif not key.startswith(HISTORY):  # It is for people; the model has no history.
                    mark = int(node_at(key))
            case Drop(name=str(name)):
                if name == FORMING:
                    end = 1
                elif name == COORDINATOR:
                    resign = 1
                elif name.startswith(SEATS):
                    drop.append(int(node_at(name)))
                elif not name.endswith("/"):
                    unmark = int(node_at(name))
    when = {key: None if stamp is None else stamp[1] for key, stamp in transaction.when.items()}
    return Commit(
        PURPOSES.index(Purpose(transaction.what)),
        when.get(STATE),
        when.get(COORDINATOR),
        when.get(FORMING),
        head,
        tuple(seats),
        tuple(drop),
        begin,
        end,
        mark,
        unmark,
        resign,
    )


def _words(what: Commit) -> str:
    return "writes the head that counts the seats" if what.mark and what.end else WORDS[PURPOSES[what.what]]


def _seat_rows(seats: tuple[SeatRow | None, ...]) -> list[Row]:
    return [(f"{SEATS}{node}", encode(seat_of(seat)), 0) for node, seat in enumerate(seats) if seat is not None]


def _as_read(record: RecordRow | None) -> RecordRow | None:
    return None if record is None else replace(record, session=OWN)


def _with(state: State, node: int, row: Duty | None) -> State:
    return replace(state, duties=replaced(state.duties, node, row))
