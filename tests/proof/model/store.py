"""What a backend does, on the rows of the model: conditional commits, and sessions whose keys go with them.

The same semantics as ``backends.table.Table``, in the little that the protocol uses of it; a test lets both do the
same and compares them.
"""

from __future__ import annotations

from msgspec.structs import replace

from tests.proof.model.protocol import Protocol
from tests.proof.model.values import FRESH, OWN, Commit, HeadRow, State, World, replaced

__all__ = ["commit", "end_session", "wiped"]


def commit(state: State, what: Commit) -> State | None:
    """Return the state after a commit; None if one of its conditions does not hold."""
    if what.state is not None and what.state != state.revision:
        return None
    if what.post is not None and (state.post is None or what.post != state.post.revision):
        return None
    if what.forming is not None and what.forming != state.forming:
        return None
    seats, forming, markers, post = state.seats, state.forming, state.markers, state.post
    head, revision, worlds = state.head, state.revision, state.worlds
    for node, seat in what.seats:
        seats = replaced(seats, node, seat)
    for node in what.drop:
        seats = replaced(seats, node, None)
    if what.begin:
        forming = what.begin
    if what.end:
        forming = 0
    if what.resign:
        post = None
    if what.head is not None:
        forms = bool(what.mark)
        head, revision = what.head, what.head.attempt if forms else FRESH
        if forms:
            gone = {what.mark, what.unmark}
            kept = [marker for marker in markers if marker[0] not in gone]
            markers = tuple(sorted([*kept, (what.mark, revision)]))
            given = tuple(
                (seat.arrival, seat.rank) if seat is not None and seat.attempt == head.attempt else None
                for seat in seats
            )
            worlds = (*worlds, World(head.round, head.attempt, head.size, given))
    return replace(
        state, head=head, revision=revision, post=post, forming=forming, markers=markers, seats=seats, worlds=worlds
    )


def end_session(state: State, node: int, session: int, protocol: Protocol) -> State:
    """Return the state after a session of a node has ended: its keys have gone with it."""
    record, post, row = state.records[node], state.post, state.nodes[node]
    records = state.records
    if record is not None and protocol.goes_with(record, session):
        records = replaced(records, node, None)
    if post is not None and post.is_of(node, session):
        post = None
    row = replace(row, open=0) if session == OWN else replace(row, lingers=0, late=None)
    return replace(state, records=records, post=post, nodes=replaced(state.nodes, node, row))


def wiped(state: State) -> State:
    """Return the state after the store has lost everything: no key, no session, and every revision is of the past."""
    none = (None,) * len(state.nodes)
    return replace(
        state,
        head=HeadRow(),
        revision=FRESH,
        post=None,
        forming=0,
        markers=(),
        records=none,
        seats=none,
        nodes=tuple(replace(row, open=0, lingers=0, late=None) for row in state.nodes),
        budget=replace(state.budget, wipe=state.budget.wipe - 1),
    )
