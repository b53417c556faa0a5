"""Everything that can happen next: what nodes, the store and bad luck do. What coordinators do is in ``duties``.

A node's join has two moves: it comes (its record is in flight), and its record is put; anything can happen in between,
so a record that arrives late needs no rule of its own. At the barrier a node reads the head and its seat, one at a
time, at any time; it sees the newest value, while what it saw of the other may be old by then. A member may look at any
time, too; since it may also act as if it had not, what it has seen is not part of a state.

A move is *free* if it needs neither bad luck nor a user's decision. The check of progress uses only those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from rendezvous_async.core.rules import Change, Joined, Shut
from tests.proof.model.canonical import orders_of
from tests.proof.model.duties import Duties
from tests.proof.model.protocol import Protocol
from tests.proof.model.store import commit, end_session, wiped
from tests.proof.model.values import (
    ARRIVING,
    BARRIER,
    DONE,
    FRESH,
    IN,
    LINGERING,
    OUT,
    OWN,
    NodeRow,
    PostRow,
    RecordRow,
    State,
    replaced,
)

__all__ = ["Move", "Moves"]


class Move(NamedTuple):
    """What happens, whether it is free, and the state after it."""

    what: str
    free: bool
    state: State


class Moves:
    """The moves of one protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._rounds = protocol.config.rounds
        self._coordinators = protocol.config.coordinators
        self._duties = Duties(protocol)

    def of(self, state: State) -> Iterator[Move]:
        """Yield every move that is possible in ``state``."""
        if self._protocol.config.doomed:
            return self._of(state)
        return (Move(what, free, self._without_doomed(after)) for what, free, after in self._of(state))

    def _without_doomed(self, state: State) -> State:
        for node, duty in enumerate(state.duties):
            if duty is not None and (state.post is None or state.post.revision != duty.post):
                state = replace(state, duties=replaced(state.duties, node, None))
        return state

    def _of(self, state: State) -> Iterator[Move]:
        for node, row in enumerate(state.nodes):
            for what, free, after in self._of_node(state, node, row):
                yield Move(f"n{node} {what}", free, after)
            if row.lingers:
                for what, free, after in self._of_the_dead(state, node, row):
                    yield Move(f"n{node}'s dead process: {what}", free, after)
            duty = state.duties[node]
            if duty is not None:
                for what, free, after in self._duties.of(state, node, duty):
                    yield Move(f"n{node} {what}", free, after)
        for late in state.late:
            after_late = commit(state, late)
            assert after_late is not None, "commits that would be refused are dropped"
            others = tuple(other for other in after_late.late if other != late)
            yield Move(f"late: {self._duties.describe(late)}", False, replace(after_late, late=others))
        if state.budget.close and not state.head.closed:
            closed = replace(self._protocol.stamped(state.head, state.revision), closed=1)
            budget = replace(state.budget, close=state.budget.close - 1)
            yield Move("somebody closes the run", False, replace(state, head=closed, revision=FRESH, budget=budget))
        if state.budget.scale and not state.head.closed:
            scaled = self._protocol.scaled(self._protocol.stamped(state.head, state.revision))
            budget = replace(state.budget, scale=state.budget.scale - 1)
            yield Move("somebody scales", False, replace(state, head=scaled, revision=FRESH, budget=budget))
        might_hold_back = state.head.held_back or (state.head.uncounted and self._protocol.config.by_hand)
        if state.budget.grow and might_hold_back and not state.head.closed:
            grown = self._protocol.let_in(self._protocol.stamped(state.head, state.revision))
            budget = replace(state.budget, grow=state.budget.grow - 1)
            yield Move("newcomers are let in", False, replace(state, head=grown, revision=FRESH, budget=budget))
        if state.budget.wipe:
            yield Move("the store loses everything", False, wiped(state))

    def _of_node(self, state: State, node: int, row: NodeRow) -> Iterator[tuple[str, bool, State]]:
        budget = state.budget
        if row.phase == OUT:
            yield "comes", False, self._arriving(state, node, row)
            return
        if row.phase == DONE:
            return
        if row.phase == ARRIVING and self._protocol.accepts_put(bool(row.open)):
            yield "has its record put", True, self._put(state, node, row)
        elif row.phase == BARRIER:
            head, seat = self._protocol.stamped(state.head, state.revision), state.seats[node]
            given = seat is not None and seat.arrival == row.arrival
            for what, seen, matters in (  # A look that changes nothing is no move, unless ``admit`` thinks otherwise.
                ("sees the head", replace(row, head=head), given),
                ("sees its seat", replace(row, seat=seat), given),
                ("sees the head and its seat", replace(row, head=head, seat=seat), False),
            ):
                after = self._look(state, node, seen)
                if matters or after.nodes[node].phase != BARRIER:
                    yield what, True, after
        elif row.phase == IN and row.held is not None:
            yield from self._of_member(state, node, row, row.held)
        if not row.open:
            yield "finds its session lost, and comes again", True, self._arriving(state, node, row)
        elif state.duties[node] is None and sum(duty is not None for duty in state.duties) < self._coordinators:
            if state.post is None and not state.head.closed and state.records[node] is not None:
                yield "takes the post", True, replace(state, post=PostRow(node, OWN, FRESH))
            elif state.post is not None and state.post.is_of(node, OWN):
                yield "begins to coordinate and reads the head", True, self._duties.begin(state, node)
        if row.open and budget.expire:
            after = replace(state, budget=replace(budget, expire=budget.expire - 1))
            yield "loses its session, and does not know", False, end_session(after, node, OWN, self._protocol)
        if budget.leave:
            after = replace(state, budget=replace(budget, leave=budget.leave - 1))
            yield "leaves", False, self._gone(after, node, row, OUT)
        if budget.crash and not row.lingers:
            after = replace(state, budget=replace(budget, crash=budget.crash - 1))
            yield "dies", False, self._dead(after, node, row)

    def _of_member(
        self, state: State, node: int, row: NodeRow, held: tuple[int, int, int, int, int]
    ) -> Iterator[tuple[str, bool, State]]:
        change = self._protocol.change_of(self._protocol.stamped(state.head, state.revision), held)
        if change is Change.CLOSED:
            yield "sees that the run is closed", True, self._gone(state, node, row, DONE)
        elif row.open and state.head.round < self._rounds:
            if change is not None:
                word = change.value.replace("_", " ")
                yield f"sees its world change ({word}) and returns", True, self._arriving(state, node, row)
            elif state.budget.back:
                after = replace(state, budget=replace(state.budget, back=state.budget.back - 1))
                yield "returns for no reason", False, self._arriving(after, node, row)

    def _of_the_dead(self, state: State, node: int, row: NodeRow) -> Iterator[tuple[str, bool, State]]:
        yield "its session ends", True, end_session(state, node, LINGERING, self._protocol)
        if row.late is not None:
            there = state.records[node]
            if row.late.order == (0 if there is None else there.order):
                after = self._record(state, node, row.late, LINGERING)
                yield "its record is put", False, self._with(after, node, replace(row, late=None))

    # What changes

    def _arriving(self, state: State, node: int, row: NodeRow) -> State:
        """Begin a join: in the same session if that is open, else in a new one."""
        last_round, last_rank = row.last_round, row.last_rank
        if row.held is not None:
            last_round, last_rank = row.held[:2]
        after = NodeRow(ARRIVING, row.arrival + 1, last_round, last_rank, 1, lingers=row.lingers, late=row.late)
        after = replace(after, domain=row.domain)
        if not row.open:
            state = replace(state, duties=replaced(state.duties, node, None))
        return self._with(state, node, after)

    def _put(self, state: State, node: int, row: NodeRow) -> State:
        record = RecordRow(row.arrival, row.last_round, row.last_rank, 0, domain=row.domain)
        return self._with(self._record(state, node, record, OWN), node, replace(row, phase=BARRIER))

    def _record(self, state: State, node: int, record: RecordRow, session: int) -> State:
        order = max(orders_of(state), default=0) + 1
        record = replace(record, order=order, session=session)
        return replace(state, records=replaced(state.records, node, record))

    def _look(self, state: State, node: int, row: NodeRow) -> State:
        """Take what was seen, and what ``admit`` makes of it."""
        answer = self._protocol.admission(row.head, row.seat, row.arrival, row.last_round, row.last_rank)
        match answer:
            case Joined(round=round, rank=rank, size=size, token=token):
                assert row.seat is not None
                held = (round, rank, size, token[1], row.seat.attempt)
                return self._with(state, node, replace(row, phase=IN, held=held, head=None, seat=None))
            case Shut():
                return self._gone(state, node, row, DONE)
            case _:
                return self._with(state, node, row)

    def _gone(self, state: State, node: int, row: NodeRow, phase: int) -> State:
        """End the session and everything that this process does; it remembers what it held."""
        state = end_session(state, node, OWN, self._protocol)
        last = (row.last_round, row.last_rank) if row.held is None else row.held[:2]
        after = NodeRow(phase, row.arrival, *last, lingers=row.lingers, late=row.late, domain=row.domain)
        return self._with(replace(state, duties=replaced(state.duties, node, None)), node, after)

    def _dead(self, state: State, node: int, row: NodeRow) -> State:
        """End the process; its session stays open, what it sent is still on the way, and it remembers nothing."""
        record = state.records[node]
        late = None
        if row.open and row.phase == ARRIVING:
            order = 0 if record is None else record.order
            late = RecordRow(row.arrival, row.last_round, row.last_rank, order, domain=row.domain)
        if record is not None and record.session == OWN:
            state = replace(state, records=replaced(state.records, node, replace(record, session=LINGERING)))
        if state.post is not None and state.post.node == node:
            state = replace(state, post=replace(state.post, session=LINGERING))
        after = NodeRow(OUT, row.arrival, lingers=row.open, late=late, domain=row.domain)
        return self._with(replace(state, duties=replaced(state.duties, node, None)), node, after)

    def _with(self, state: State, node: int, row: NodeRow) -> State:
        return replace(state, nodes=replaced(state.nodes, node, row))
