"""How a node arrives: the transaction that puts its record, and what it means when that record is no longer its own.

An arrival is done when the node's record stands under its session, in a run that is open and has its settings.
``next_step`` says what is left to do for that; ``ousting`` says why a node that was in is out. No I/O here:
``node.membership`` sends the transactions and reads the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rendezvous_async.core.agreement import is_abandoned, is_settled
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.duty import claim
from rendezvous_async.core.rules import Wait
from rendezvous_async.core.state import COORDINATOR, STATE, Head, Node, Seat, Stamp, node_key
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.core.transaction import Row, Save, Seen, Transaction, readable
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousDisplacedError,
    RendezvousError,
    RendezvousSessionError,
    RendezvousSettingsError,
    RendezvousStateError,
)
from rendezvous_async.settings import Settings
from rendezvous_async.texts import counted

__all__ = [
    "Here",
    "Presence",
    "ReadOthers",
    "Standing",
    "arrival",
    "next_step",
    "ousting",
    "standing_at",
    "tally_others",
]


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of its own part in a run.

    Attributes:
        run_id: The run.
        node: Its id.
        settings: The settings that it wants for the run.
        record: A record that it has put. Another process with the same id puts records of another life.
        session: Its present session.
        founds: Whether to found a run that is not there, and to take its post.
        was_here: Whether it had a record in this or an earlier session. If another node has its id now, that one came
            later, and the newest counts: this one must not fight back.
        was_put: Whether it put its record in this session.
    """

    run_id: str
    node: str
    settings: Settings
    record: Node
    session: str
    founds: bool = False
    was_here: bool = False
    was_put: bool = False


class Standing(msgspec.Struct, frozen=True):
    """What stands at a node's own key. Another node with the same id may have put it.

    Attributes:
        record: None if it cannot be read.
        stamp: The stamp of the entry.
        session: The session that the entry is bound to.
    """

    record: Node | None
    stamp: Stamp
    session: str | None


class Here(msgspec.Struct, frozen=True):
    """The node has arrived."""

    round: int


class ReadOthers(msgspec.Struct, frozen=True):
    """The run has other settings: read seats and roster, and ask again with ``tally_others`` of them."""


def next_step(
    presence: Presence,
    record: Node,
    seen: Seen,
    standing: Standing | None,
    others: Tally | None = None,
    is_patient: bool = True,
) -> Here | Transaction | ReadOthers | Wait:
    """Return what a node does next to arrive.

    Args:
        presence: What it knows of itself.
        record: The record that it arrives with.
        seen: What it sees of the run.
        standing: What stands at its key.
        others: The other nodes, if they were just read.
        is_patient: Whether it still waits for others to agree with its settings; see ``core.agreement``.

    Raises:
        RendezvousClosedError: The run is closed.
        RendezvousSettingsError: It has other settings, and they hold.
    """
    head, run_id = seen.head, presence.run_id
    # Its commit may have won though no answer came. The same arrival may stand under another session: its opening was
    # sent again, and that session is about to end.
    stands = (
        standing is not None
        and standing.session == presence.session
        and standing.record is not None
        and standing.record.arrival == record.arrival
    )
    if head is None:
        return Wait() if stands and not presence.founds else arrival(presence, record, seen, standing)
    if head.closed is not None:
        raise RendezvousClosedError(head.closed.reason, head.closed.by, run_id=run_id)
    if head.accepts(presence.settings):
        return Here(head.round) if stands else arrival(presence, record, seen, standing)
    if others is None or others.head != head:
        return ReadOthers()
    if is_abandoned(others):
        return arrival(presence, record, seen, standing, replaces=True)
    if not is_patient or is_settled(others):
        count = others.live_members + len(others.newcomers)
        raise RendezvousSettingsError(
            f"run {run_id!r} has the settings {head.fingerprint!r}"
            f"{' (it was scaled since, but nodes still start with these)' if head.generation else ''}"
            f", like {counted(count, 'other node')} here, "
            f"but node {presence.node} has {presence.settings.fingerprint!r}: use the same nodes, ranks and timeouts "
            "on all nodes, or another run id"
        )
    # The coordinator decides whose settings hold.
    return Wait() if stands else arrival(presence, record, seen, standing)


def arrival(
    presence: Presence, record: Node, seen: Seen, standing: Standing | None, replaces: bool = False
) -> Transaction:
    """Return the transaction by which a node arrives: its record, and with it what the run lacks.

    Args:
        presence: What the node knows of itself.
        record: What to put.
        seen: What it sees of the run.
        standing: What stands at its key.
        replaces: Whether to replace the settings of the head.
    """
    key, head, settings = node_key(presence.node), seen.head, presence.settings
    before = None if standing is None else standing.record
    if before is not None:  # A live node with the same id may lose its place by this.
        displaced = before.displaced if before.is_of_one_life_with(record) else before.address or "an unknown address"
        record = msgspec.structs.replace(record, displaced=displaced)
    writes = [Save(key, encode(record), leased=True)]
    when: dict[str, Stamp | None] = {key: None if standing is None else standing.stamp}
    if head is None and presence.founds:
        head = Head(settings=settings).requiring_its_features()
    elif head is not None and replaces:
        head = head.under(settings)
    if head is not None and head is not seen.head:
        writes.append(Save(STATE, encode(head)))
        when[STATE] = seen.state
    if presence.founds and head is not None and head.accepts(settings) and seen.post is None:
        writes.append(claim(presence.node))
        when[COORDINATOR] = None
    return Transaction("arrive", tuple(writes), when)


def standing_at(key: str, value: bytes | None, stamp: Stamp, session: str | None) -> Standing:
    """Return what an entry at a node's own key says."""
    try:
        return Standing(decode(Node, value, key), stamp, session)
    except RendezvousStateError:
        return Standing(None, stamp, session)


def tally_others(head: Head, seats: Iterable[Row], records: Iterable[Row], node: str) -> Tally:
    """Return the tally of all nodes but one. A record that cannot be read counts as absent."""
    return tally_of(
        head,
        {name: seat for name, seat, _ in readable(Seat, seats)},
        (row for row in readable(Node, records) if row[0] != node),
    )


def ousting(presence: Presence, standing: Standing | None) -> RendezvousError | None:
    """Return why a node is out whose record is gone, or another session's; None if it is only not there yet."""
    other = None if standing is None else standing.record
    if other is not None and presence.was_here and not other.is_of_one_life_with(presence.record):
        return RendezvousDisplacedError(
            f"run {presence.run_id!r}: another node with the id {presence.node!r} has joined from {other.address!r} "
            "and has taken the place of this one; give each node an id of its own, or leave out node="
        )
    if presence.was_put:
        return RendezvousSessionError(
            f"node {presence.node}: the backend has ended session {presence.session}, its record is gone"
        )
    return None
