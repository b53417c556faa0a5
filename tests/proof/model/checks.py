"""The guarantees, as checks of every state and of every move.

Each is named in words; ``explore`` reports the first that does not hold. A check compares what nodes believe and what
the store holds with ``State.worlds``, which tells what was formed and which no node can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rendezvous_async.core.rules import Change
from rendezvous_async.core.shape import largest_size
from tests.proof.model.protocol import Protocol
from tests.proof.model.values import (
    BARRIER,
    DONE,
    IN,
    LINGERING,
    OUT,
    OWN,
    NodeRow,
    RecordRow,
    SeatRow,
    State,
    World,
)

__all__ = ["CHECKS", "broken_by", "broken_in", "is_settled"]

ONE_WORLD = "at most one world per round number"
ROUNDS_GROW = "round numbers only grow"
SIZE = "a round has a size that the head allowed when it formed"
WHOLE = "a round has whole domains, with contiguous ranks"
SPEC = "what holds for the run changes only by scaling"
KEPT = "a member is told of another size only if a smaller valid world can be made of its own"
IN_VAIN = "newcomers count only if a larger world can come, and are let in only when it is time"
LET_IN = "newcomers who were let in are not held back again"
RANKS = "ranks are exactly 0 to size - 1"
AT_THE_BARRIER = "only an arrival at the barrier is in the round"
ACCOUNTED = "a round forms only when every member of the last one has returned, left or lost its session"
CLOSED = "closed is final"
FENCED = "a fenced write succeeds with the current round's token, and with no other"
NO_GHOST = "no record and no post without an open session"
SEATS_STAY = "while a member holds the round, every seat of it stands as it was given"
TOLD = "a member of the current round is not told that it is out, and of an old one is"
HERE = "a node at the barrier with an open session has its record in the roster"
PROGRESS = "if at least min nodes stay, a round forms"
CHECKS = (
    ONE_WORLD,
    ROUNDS_GROW,
    SIZE,
    WHOLE,
    SPEC,
    KEPT,
    IN_VAIN,
    LET_IN,
    RANKS,
    AT_THE_BARRIER,
    ACCOUNTED,
    CLOSED,
    FENCED,
    NO_GHOST,
    SEATS_STAY,
    TOLD,
    HERE,
    PROGRESS,
)


def broken_by(before: State, after: State, protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Yield each check that a move breaks, with what was seen."""
    old, new = before.head, after.head
    wiped = before.budget.wipe != after.budget.wipe
    if old.closed and not new.closed and not wiped:
        yield CLOSED, f"the head of round {new.round} is open again"
    if new.round < old.round and not wiped:
        yield ROUNDS_GROW, f"the head went from round {old.round} to {new.round}"
    if new.spec != old.spec and not wiped and before.budget.scale == after.budget.scale:
        yield SPEC, f"the head went from spec {old.spec} to {new.spec}, and nobody has scaled the run"
    if new.held_back and (old.waiting > old.returned or old.let_in) and new.round == old.round and not wiped:
        yield LET_IN, f"{new.held_back} newcomers are held back, and {old.waiting} of them were let in"
    if old.let_in and not new.let_in and before.budget.scale != after.budget.scale:
        yield LET_IN, "newcomers were let in, and scaling makes nobody remember it"
    if before.budget.grow != after.budget.grow and not new.let_in and not wiped:
        yield LET_IN, "a member lets newcomers in, and the head does not say so"
    if protocol.config.by_hand and before.budget.grow == after.budget.grow and not new.returned and not new.lost:
        everybody = _largest(after, range(len(after.nodes)), new.spec, protocol)
        complete = everybody == protocol.shapes[new.spec].most
        if new.waiting and not old.waiting and not old.let_in and new.formed and not complete:
            yield IN_VAIN, f"{new.waiting} newcomers were let in, and nobody had asked for it"
    if new.attempt != old.attempt and not wiped:
        yield from _formed_wrongly(before, after, protocol)
    for node, (was, row) in enumerate(zip(before.nodes, after.nodes, strict=True)):
        if row.phase == IN and was.phase != IN:
            yield from _joined_wrongly(after, node, row)


def _formed_wrongly(before: State, after: State, protocol: Protocol) -> Iterator[tuple[str, str]]:
    head, config = after.head, protocol.config
    world = _world(after, head.attempt)
    if world is None or after.revision != head.attempt:
        yield ONE_WORLD, f"the head names an attempt that formed no round: {head}"
        return
    if head.round <= before.head.round:
        yield ROUNDS_GROW, f"round {head.round} was formed after round {before.head.round}"
    for node, row in enumerate(before.nodes):
        known = max(row.last_round, row.held[0] if row.held is not None else 0)
        if row.phase not in (OUT, DONE) and head.round <= known:
            yield ONE_WORLD, f"round {head.round} was formed, and n{node} held one of that number before"
    shape = protocol.shapes[before.head.spec]
    if head.size not in shape.sizes.allowed or head.size > (shape.target or head.size):
        yield SIZE, f"round {head.round} has the size {head.size}"
    members = {node: seat for node, seat in enumerate(world.seats) if seat is not None}
    if config.domains:
        by_rank = [after.nodes[node].domain for _, node in sorted((seat[1], node) for node, seat in members.items())]
        counts = Counter(by_rank)
        torn = len([domain for domain, _ in groupby(by_rank)]) > len(counts)
        if torn or 0 in by_rank or any(count % config.per_domain for count in counts.values()):
            yield WHOLE, f"round {head.round} has, by rank, members of the domains {by_rank}"
    ranks = sorted(seat[1] for seat in world.seats if seat is not None)
    if ranks != list(range(head.size)):
        yield RANKS, f"round {head.round} of size {head.size} has the ranks {ranks}"
    last = _world(before, before.head.attempt)
    for node, seat in enumerate(world.seats):
        row, member = before.nodes[node], None if last is None else last.seats[node]
        if seat is not None and (
            (member is not None and member[0] == seat[0])
            or seat[0] > row.arrival
            or (row.phase == IN and row.arrival == seat[0])
        ):
            yield AT_THE_BARRIER, f"n{node} is in round {head.round} by arrival {seat[0]}, which was not at the barrier"
        record = before.records[node]
        if member is not None and record is not None and record.arrival == member[0]:
            yield ACCOUNTED, f"round {head.round} was formed while n{node} held round {before.head.round}"


def _largest(state: State, nodes: Sequence[int], spec: int, protocol: Protocol) -> int:
    """Return the size of the largest valid world of these nodes; 0 if there is none."""
    domains = {"": len(nodes)}
    if protocol.config.domains:
        domains = Counter(str(state.nodes[node].domain) for node in nodes if state.nodes[node].domain)
    return largest_size(domains, protocol.shapes[spec])


def _joined_wrongly(after: State, node: int, row: NodeRow) -> Iterator[tuple[str, str]]:
    assert row.held is not None
    round, rank, size, token, attempt = row.held
    world = _world(after, attempt)
    if world is None or (world.round, world.size, world.attempt) != (round, size, token):
        yield ONE_WORLD, f"n{node} believes in rank {rank} of {size} in round {round}, which was not formed so"
    elif world.seats[node] is None or world.seats[node] != (row.arrival, rank):
        yield AT_THE_BARRIER, f"n{node} took rank {rank} in round {round}, which was not given to this arrival"
    if round <= row.last_round:
        yield ROUNDS_GROW, f"n{node} went from round {row.last_round} to {round}"


def broken_in(state: State, protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Yield each check that does not hold in a state, with what was seen."""
    head = protocol.stamped(state.head, state.revision)
    world = _world(state, head.attempt)
    if head.formed and head.waiting > head.returned and not head.lost:
        everybody = _largest(state, range(len(state.nodes)), head.spec, protocol)
        if everybody <= head.size:
            yield IN_VAIN, f"{head.waiting} wait for a world larger than {head.size}, and all nodes make {everybody}"
    marker = ((head.round, head.attempt),) if head.round else ()
    if state.markers != marker or (head.round and head.token != head.attempt):
        yield FENCED, f"the markers are {state.markers} with the round's token {head.token}, and must be {marker}"
    for node, (row, record) in enumerate(zip(state.nodes, state.records, strict=True)):
        if record is not None and not _is_open(row, record.session):
            yield NO_GHOST, f"n{node} has a record, and no open session"
        if row.phase == BARRIER and row.open and record is None:
            yield HERE, f"n{node} is at the barrier, and its record is not in the roster"
        if row.phase == IN and row.held is not None:
            yield from _believes_wrongly(state, node, row, record, protocol)
    post = state.post
    if post is not None and not _is_open(state.nodes[post.node], post.session):
        yield NO_GHOST, f"n{post.node} has the post, and no open session"
    if world is not None and any(
        record is not None and seat is not None and record.arrival == seat[0]
        for record, seat in zip(state.records, world.seats, strict=True)
    ):
        for node, seat in enumerate(world.seats):
            there = state.seats[node]
            if seat is not None and (there is None or there != SeatRow(world.round, world.attempt, *seat)):
                yield SEATS_STAY, f"n{node} has the seat {there}, and was given rank {seat[1]} in round {world.round}"
        if not head.formed:
            yield ACCOUNTED, f"the head says that nobody holds round {head.round}, and somebody does"


def _believes_wrongly(
    state: State, node: int, row: NodeRow, record: RecordRow | None, protocol: Protocol
) -> Iterator[tuple[str, str]]:
    assert row.held is not None
    round, rank, size, token, attempt = row.held
    for other, peer in enumerate(state.nodes):
        if other != node and peer.held is not None and peer.held[0] == round:
            if peer.held[2:] != (size, token, attempt):
                yield ONE_WORLD, f"n{node} and n{other} believe in different worlds of round {round}"
            elif peer.held[1] == rank:
                yield RANKS, f"n{node} and n{other} both have rank {rank} in round {round}"
    writes = (round, token) in state.markers
    if writes != (attempt == state.head.attempt):
        yield FENCED, f"n{node} of round {round} {'may' if writes else 'may not'} write in round {state.head.round}"
    change = protocol.change_of(protocol.stamped(state.head, state.revision), row.held)
    holds = attempt == state.head.attempt and record is not None and record.arrival == row.arrival
    if holds and change is Change.EVICTED:
        yield TOLD, f"n{node} holds round {round}, and is told that it is out"
    if change is Change.RESIZED:
        shape = protocol.shapes[state.head.spec]
        valid = [each for each in shape.sizes.allowed if each <= (shape.target or each) and not each % shape.per_domain]
        if size in valid or min(valid) > size:
            yield KEPT, f"n{node} is told that {size} does not fit {valid} any more"
    if attempt != state.head.attempt and change not in (Change.EVICTED, Change.CLOSED):
        yield TOLD, f"n{node} of round {round} is told {change} of round {state.head.round}"


def is_settled(state: State, protocol: Protocol) -> bool:
    """Tell whether there is nothing left to wait for: closed, too few nodes, the last round, or all are in or spare."""
    head, config = state.head, protocol.config
    there = [row for row in state.nodes if row.phase not in (OUT, DONE)]
    here = [node for node, row in enumerate(state.nodes) if row.phase not in (OUT, DONE)]
    largest = _largest(state, here, head.spec, protocol)
    if head.closed or not largest:
        return True
    if max(head.round, *(max(row.last_round, row.held[0] if row.held else 0) for row in there)) >= config.rounds:
        return True
    inside = [row.held is not None and row.held[4] == head.attempt and bool(row.open) for row in there]
    grows = head.size < largest and (not config.by_hand or head.waiting or head.let_in)
    return head.round > 0 and sum(inside) == head.size <= largest and not grows


def _world(state: State, attempt: int) -> World | None:
    return next((world for world in state.worlds if world.attempt == attempt), None)


def _is_open(row: NodeRow, session: int) -> bool:
    return bool((session == OWN and row.open) or (session == LINGERING and row.lingers))
