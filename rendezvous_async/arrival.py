"""How a node arrives: the commit that puts its record, and what it means when that record is no longer its own.

No I/O here: these are functions of what a node sees. ``membership`` sends the commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from rendezvous_async.backends.base import Condition, Entry, Put, Write
from rendezvous_async.coordinator import claim
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.state import COORDINATOR, STATE, Head, Node, Seat, node_key, node_of
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.errors import (
    RendezvousDisplacedError,
    RendezvousError,
    RendezvousSessionError,
    RendezvousStateError,
)
from rendezvous_async.participant import Participant
from rendezvous_async.view import View

__all__ = ["arrival_commit", "ousting", "own_record", "replacing", "tally_others"]

R = TypeVar("R", Node, Seat)


def arrival_commit(
    view: View, who: Participant, session: str, record: Node, *, founds: bool, replaces: bool = False
) -> tuple[list[Write], list[Condition]]:
    """Return the commit by which a node arrives: its record, and with it what the run lacks as far as it sees.

    Args:
        view: What the node sees of the run.
        who: The node.
        session: That the record is bound to.
        record: What to put.
        founds: Whether to found a run that is not there, and to take its post.
        replaces: Whether to replace the settings of the head.
    """
    key, head, settings = node_key(who.node), view.head, who.settings
    writes: list[Write] = [Put(key, encode(record), session)]
    when = [Condition(key, None if view.record is None else view.record.token)]
    if head is None and founds:
        head = Head(settings=settings)
    elif head is not None and replaces:
        head = head.under(settings)
    if head is not None and head is not view.head:
        writes.append(Put(STATE, encode(head)))
        when.append(Condition(STATE, view.token(STATE)))
    if founds and head is not None and head.settings == settings and view.entry(COORDINATOR) is None:
        writes.append(claim(who.node, session))
        when.append(Condition(COORDINATOR, None))
    return writes, when


def tally_others(head: Head, seats: Iterable[Entry], records: Iterable[Entry], node: str) -> Tally:
    """Return the tally of everybody but one node; what cannot be read is as good as not there."""
    return tally_of(
        head,
        {name: seat for name, seat, _ in readable(Seat, seats)},
        (row for row in readable(Node, records) if row[0] != node),
    )


def readable(kind: type[R], entries: Iterable[Entry]) -> Iterator[tuple[str, R, int]]:
    """Yield the node, the record and the revision of each entry that can be read."""
    for entry in entries:
        try:
            yield node_of(entry.key), decode(kind, entry.value, entry.key), entry.token.revision
        except RendezvousStateError:
            continue


def own_record(view: View) -> Node | None:
    """Return the record that stands at the node's key, whoever put it; None if there is none that can be read."""
    entry = view.record
    try:
        return None if entry is None else decode(Node, entry.value, entry.key)
    except RendezvousStateError:
        return None


def replacing(before: Node | None, record: Node) -> Node:
    """Return the record as it is put in the place of another one: it names a live node that it displaces."""
    if before is None:
        return record
    displaced = before.displaced if before.is_of_one_life_with(record) else before.address or "an unknown address"
    return msgspec.structs.replace(record, displaced=displaced)


def ousting(
    other: Node | None, own: Node, *, run_id: str, node: str, session: str, was_here: bool, was_put: bool
) -> RendezvousError | None:
    """Return why a node is out whose record is gone, or another session's; None if it is only not there yet.

    Args:
        other: What stands at its key instead.
        own: Any record of its own.
        run_id: Of the run.
        node: Its id.
        session: The one that it has now.
        was_here: Whether it had a record in this or an earlier session. If another node has its id now, that one came
            later, and the newest counts: this one must not fight back.
        was_put: Whether it put its record in this session.
    """
    if other is not None and was_here and not other.is_of_one_life_with(own):
        return RendezvousDisplacedError(
            f"run {run_id!r}: another node with the id {node!r} has joined from {other.address!r} and has taken the "
            "place of this one; give each node an id of its own, or leave out node="
        )
    if was_put:
        return RendezvousSessionError(f"node {node}: the backend has ended session {session}, its record is gone")
    return None
