"""The canonical form of a state: two states that differ only in names, or in what makes no difference, are one.

* Revisions: one that is no longer current is remembered as ``PAST``. A commit in flight that compares such a revision
  is refused whenever it arrives, so it is dropped at once.
* What a node at the barrier has seen is kept only while it can still make a difference: a head whose attempt has given
  this arrival a seat, or a seat whose attempt the head may yet name.
* A seat in the store whose attempt can no longer be named by any head is only something to be deleted.
* Attempts and the order of arrivals are numbered without gaps.
* Nodes are interchangeable: they are put in the order of what is known of them, and where that does not decide, in
  the order that gives the smallest state.
"""

from __future__ import annotations

from itertools import groupby, permutations, product
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from tests.proof.model.values import (
    BARRIER,
    FRESH,
    IN,
    PAST,
    Commit,
    Duty,
    HeadRow,
    NodeRow,
    Plan,
    RecordRow,
    SeatRow,
    State,
    World,
)

__all__ = ["attempts_of", "canonical", "compact", "encode", "orders_of"]

T = TypeVar("T")
JUNK = SeatRow(0, 0, 0, 0)
encode = msgspec.msgpack.Encoder().encode


def canonical(state: State) -> State:
    """Return the one state that stands for all that are the same as this one."""
    state = compact(state)
    keys = [
        encode((node, record, seat, duty is not None and duty.stage))
        for node, record, seat, duty in zip(state.nodes, state.records, state.seats, state.duties, strict=True)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if len(set(keys)) == len(keys):
        if order == list(range(len(keys))):
            return state
        return Renaming(None, None, order).state(state)
    ties = [list(permutations(group)) for _, group in groupby(order, key=keys.__getitem__)]
    choices = ([node for group in choice for node in group] for choice in product(*ties))
    return min((Renaming(None, None, choice).state(state) for choice in choices), key=encode)


def compact(state: State) -> State:
    """Return the state without what can no longer matter; the nodes keep their places."""
    state = _relevant(_up_to_date(state))
    attempts = _gapless(attempts_of(state))
    orders = _gapless(orders_of(state))
    if attempts is None and orders is None:
        return state
    return Renaming(attempts, orders, None).state(state)


def _up_to_date(state: State) -> State:
    """Return the state with the names of revisions settled, and without commits that can only be refused."""
    now, revision = state.revision, 0 if state.revision == FRESH else state.revision
    post = state.post
    held = None if post is None else post.revision
    duties = tuple(
        None
        if duty is None
        else replace(duty, state=revision if duty.state == now else PAST, post=0 if duty.post == held else PAST)
        for duty in state.duties
    )
    late = {
        replace(commit, state=None if commit.state is None else revision, post=None if commit.post is None else 0)
        for commit in state.late
        if (commit.state is None or commit.state == now)
        and (commit.post is None or commit.post == held)
        and (commit.forming is None or commit.forming == state.forming)
    }
    return replace(
        state,
        revision=revision,
        post=None if post is None else replace(post, revision=0),
        duties=duties,
        late=tuple(sorted(late, key=encode)),
    )


def _relevant(state: State) -> State:
    """Return the state without what was seen, written or formed and can make no difference any more."""
    planned = _planned(state)
    possible = {state.head.attempt, *planned}
    nodes = tuple(
        _without_the_past(state, index, node, planned, possible) if node.phase == BARRIER else node
        for index, node in enumerate(state.nodes)
    )
    seats = tuple(seat if seat is None or seat.attempt in possible else JUNK for seat in state.seats)
    told = {state.head.attempt}
    for node in nodes:
        if node.phase == IN and node.held is not None:
            told.add(node.held[4])
        elif node.head is not None:
            told.add(node.head.attempt)
    worlds = tuple(world for world in state.worlds if world.attempt in told)
    return replace(state, nodes=nodes, seats=seats, worlds=worlds)


def _planned(state: State) -> dict[int, list[tuple[int, SeatRow]]]:
    """Return the attempts that a head may still name, each with the seats that it gives."""
    planned: dict[int, list[tuple[int, SeatRow]]] = {}
    for duty in state.duties:
        if duty is not None and duty.plan is not None:
            seats = planned.setdefault(duty.plan.head.attempt, [])
            seats += [(node, seat) for node, seat in enumerate(duty.plan.seats) if seat is not None]
    for commit in state.late:
        if commit.head is not None:
            planned.setdefault(commit.head.attempt, [])
        for node, seat in commit.seats:
            planned.setdefault(seat.attempt, []).append((node, seat))
    return planned


def _without_the_past(
    state: State, index: int, node: NodeRow, planned: dict[int, list[tuple[int, SeatRow]]], possible: set[int]
) -> NodeRow:
    head, seat = node.head, node.seat
    if seat is not None and (
        seat.arrival != node.arrival
        or (seat.attempt not in possible and (head is None or head.attempt != seat.attempt))
    ):
        seat = None
    if head is not None:
        head = HeadRow(head.round, 1, head.attempt, head.size, token=head.token)
        given = [seat, state.seats[index], *(s for i, s in planned.get(head.attempt, ()) if i == index)]
        if not any(s is not None and s.attempt == head.attempt and s.arrival == node.arrival for s in given):
            head = None
    return replace(node, head=head, seat=seat)


def attempts_of(state: State) -> set[int]:
    """Return every attempt that anybody knows of, a round's token included."""
    found = set(_of_head(state.head))
    found.update((state.revision, state.forming), (token for _, token in state.markers))
    found.update(seat.attempt for seat in state.seats if seat is not None)
    for node in state.nodes:
        if node.held is not None:
            found.update(node.held[3:])
        if node.head is not None:
            found.update(_of_head(node.head))
        if node.seat is not None:
            found.add(node.seat.attempt)
    for duty in state.duties:
        if duty is not None:
            found.update(_of_head(duty.head))
            found.update(seat.attempt for seat in duty.seats if seat is not None)
            if duty.plan is not None:
                found.add(duty.plan.head.attempt)
    for commit in state.late:
        found.update((commit.begin, commit.forming or 0))
        found.update(seat.attempt for _, seat in commit.seats)
        if commit.head is not None:
            found.update(_of_head(commit.head))
    found.update(world.attempt for world in state.worlds)
    return {attempt for attempt in found if attempt > 0}


def _of_head(head: HeadRow) -> tuple[int, int]:
    return head.attempt, head.token or 0


def orders_of(state: State) -> set[int]:
    found = {record.order for record in state.records if record is not None}
    for duty in state.duties:
        if duty is not None:
            found.update(record.order for record in duty.roster if record is not None)
    found.update(node.late.order for node in state.nodes if node.late is not None and node.late.order)
    return found


def _gapless(found: set[int]) -> dict[int, int] | None:
    """Return how to number these from 1 without gaps, in their order; None if they are."""
    if not found or max(found) == len(found):
        return None
    return {name: number for number, name in enumerate(sorted(found), 1)}


class Renaming:
    """Gives attempts, orders and nodes other names, everywhere; ``nodes`` lists who comes first, second and so on."""

    def __init__(self, attempts: dict[int, int] | None, orders: dict[int, int] | None, nodes: list[int] | None) -> None:
        self._attempts = attempts or {}
        self._orders = orders or {}
        self._nodes = nodes
        self._places = None if nodes is None else {old: new for new, old in enumerate(nodes)}

    def state(self, state: State) -> State:
        post = state.post
        attempt = self._attempts.get
        return State(
            self._head(state.head),
            attempt(state.revision, state.revision),
            None if post is None else replace(post, node=self._place(post.node)),
            attempt(state.forming, state.forming),
            tuple((round, attempt(token, token)) for round, token in state.markers),
            self._records(state.records),
            self._seats(state.seats),
            tuple(map(self._node, self._row(state.nodes))),
            tuple(None if duty is None else self._duty(duty) for duty in self._row(state.duties)),
            tuple(sorted((self._commit(commit) for commit in state.late), key=encode)),
            tuple(self._world(world) for world in state.worlds),
            state.budget,
        )

    def _row(self, row: tuple[T, ...]) -> tuple[T, ...]:
        return row if self._nodes is None or not row else tuple(row[node] for node in self._nodes)

    def _place(self, node: int) -> int:
        return node if self._places is None else self._places[node]

    def _head(self, head: HeadRow) -> HeadRow:
        attempt, token = head.attempt, head.token
        if attempt not in self._attempts and token not in self._attempts:
            return head
        attempts = self._attempts
        return replace(
            head, attempt=attempts.get(attempt, attempt), token=None if token is None else attempts.get(token, token)
        )

    def _seat(self, seat: SeatRow) -> SeatRow:
        attempt = self._attempts.get(seat.attempt)
        return seat if attempt is None else replace(seat, attempt=attempt)

    def _seats(self, seats: tuple[SeatRow | None, ...]) -> tuple[SeatRow | None, ...]:
        row = self._row(seats)
        return tuple(None if seat is None else self._seat(seat) for seat in row) if self._attempts else row

    def _records(self, records: tuple[RecordRow | None, ...]) -> tuple[RecordRow | None, ...]:
        records = self._row(records)
        if not self._orders:
            return records
        return tuple(None if r is None else replace(r, order=self._orders[r.order]) for r in records)

    def _node(self, node: NodeRow) -> NodeRow:
        if self._attempts:
            held = node.held
            if held is not None:
                held = (*held[:3], self._attempts.get(held[3], held[3]), self._attempts.get(held[4], held[4]))
            node = replace(
                node,
                held=held,
                head=None if node.head is None else self._head(node.head),
                seat=None if node.seat is None else self._seat(node.seat),
            )
        if self._orders and node.late is not None and node.late.order:
            node = replace(node, late=replace(node.late, order=self._orders[node.late.order]))
        return node

    def _duty(self, duty: Duty) -> Duty:
        plan = duty.plan
        if plan is not None:
            plan = Plan(self._head(plan.head), self._seats(plan.seats), plan.done)
        return Duty(
            duty.stage,
            duty.post,
            self._attempts.get(duty.state, duty.state),
            self._head(duty.head),
            self._seats(duty.seats),
            tuple(sorted(map(self._place, duty.extra))),
            self._records(duty.roster),
            plan,
        )

    def _commit(self, commit: Commit) -> Commit:
        attempts = self._attempts
        return replace(
            commit,
            state=None if commit.state is None else attempts.get(commit.state, commit.state),
            forming=None if commit.forming is None else attempts.get(commit.forming, commit.forming),
            head=None if commit.head is None else self._head(commit.head),
            seats=tuple(sorted((self._place(node), self._seat(seat)) for node, seat in commit.seats)),
            drop=tuple(sorted(map(self._place, commit.drop))),
            begin=attempts.get(commit.begin, commit.begin),
        )

    def _world(self, world: World) -> World:
        attempt = self._attempts.get(world.attempt, world.attempt)
        return World(world.round, attempt, world.size, self._row(world.seats))
