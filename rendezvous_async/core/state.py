"""The records of a run, as frozen values, and the keys they live at.

::

    state           Head    small, token-fenced, watched by all
    nodes/<id>      Node    leased: the node is here, and this is its latest arrival at the barrier
    seats/<id>      Seat    a member's place in the round; counts only if the head names its attempt
    coordinator     Post    leased: who folds the roster into seats and head
    forming                 the id of the attempt under way; unwatched
    rounds/<n>              exists while round n is current; its revision is the round's fencing token
    rounds/<n>/...          the round's own key-value store
    history/<n>             the last changes, for people to read; see ``history.py``

Every record is small, whatever the number of nodes. Readers pass over fields that they do not know, and a new field
has a default, so versions can be mixed; ``features.py`` says what to do where that is not enough.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from rendezvous_async.core.shape import Shape
from rendezvous_async.settings import Settings, decode_segment, encode_segment
from rendezvous_async.texts import printable

__all__ = ["Closed", "Head", "Last", "Member", "Node", "Phase", "Post", "Seat", "Stamp"]

STATE = "state"
COORDINATOR = "coordinator"
FORMING = "forming"
NODES = "nodes/"
SEATS = "seats/"

LIFE_LENGTH = 8
"""Length of the prefix that all arrivals of one ``Rendezvous`` share."""
WORLD_SHAPE = "world-shape@0.2"
"""The feature that a run requires whose settings are not plain, or were changed while it runs."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=1024)]
Fingerprint = Annotated[str, Meta(max_length=8192)]
Labels = Annotated[dict[Text, Text], Meta(max_length=64)]
Feature = Annotated[str, Meta(min_length=1, max_length=64)]
Features = Annotated[tuple[Feature, ...], Meta(max_length=32)]
Stamp = tuple[str, int]
"""A backend's token, as plain values: (epoch, revision)."""


class Phase(StrEnum):
    """Whether the head's round is held by its members, or the next one is being gathered."""

    GATHERING = "gathering"
    FORMED = "formed"


class Closed(msgspec.Struct, frozen=True):
    """Why the run is over, and who said so."""

    reason: str
    by: str

    @property
    def in_words(self) -> str:
        """Who and why, safe to show."""
        return f"{printable(self.by) or 'an unnamed node'}: {printable(self.reason) or 'no reason given'}"


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of the run, as small as can be.

    Attributes:
        settings: What holds for the run now.
        round: The last round that formed; 0 if none has.
        phase: Whether that round is still held.
        attempt: The attempt that formed it; a seat with another attempt id does not count.
        size: How many members it has.
        waiting: While formed: returned members, and newcomers who would be in a larger world.
        returned: While formed: members that are back at the barrier; they are among those that wait.
        lost: While formed: members that died or left and are not back.
        token: The round's fencing token. None in the very commit that forms the round: that commit's revision is it.
        closed: Set once, and never cleared.
        requires: Features that a node must know to take part; see ``features.py``.
        held_back: While formed: newcomers who would be in a larger world, and are not let in yet.
        origin: The fingerprint of the settings that nodes bring; empty: it is that of ``settings``.
        generation: How often ``settings`` or ``target`` were changed while the run was going on.
        target: The size that no world exceeds; 0 leaves it to the settings.
        let_in: While formed: newcomers of this round are not held back (any more), whatever becomes of their number.
        uncounted: While formed: the run was scaled, and nobody has counted since how many newcomers could be let in.
        recorded: The number of the last record in the history.
    """

    settings: Settings
    round: Count = 0
    phase: Phase = Phase.GATHERING
    attempt: Text = ""
    size: Count = 0
    waiting: Count = 0
    returned: Count = 0
    lost: Count = 0
    token: Stamp | None = None
    closed: Closed | None = None
    requires: Features = ()
    held_back: Count = 0
    origin: Fingerprint = ""
    generation: Count = 0
    target: Count = 0
    let_in: bool = False
    uncounted: bool = False
    recorded: Count = 0

    def __post_init__(self) -> None:
        if self.target:
            _ = self.shape  # Raises if no world can have the target's size.

    @property
    def shape(self) -> Shape:
        """Which worlds are valid now."""
        settings = self.settings
        return Shape(settings.sizes, settings.domain, settings.per_domain, self.target or None)

    @property
    def most(self) -> int:
        """The size of the largest world that may form now."""
        return self.target or (self.settings.max_nodes if self.settings.per_domain == 1 else self.shape.most)

    @property
    def fingerprint(self) -> str:
        """Of the settings that a node must bring to take part."""
        return self.origin or self.settings.fingerprint

    def accepts(self, settings: Settings) -> bool:
        """Tell whether a node that brings these settings may take part, and coordinate."""
        return self.origin == settings.fingerprint if self.origin else self.settings == settings

    def stamped(self, stamp: Stamp) -> Head:
        """Return this head, read from an entry with the token ``stamp``, with the round's token filled in."""
        return self if self.round == 0 or self.token is not None else msgspec.structs.replace(self, token=stamp)

    def gathering(self) -> Head:
        """Return the head as it is while the next round gathers."""
        return msgspec.structs.replace(
            self,
            phase=Phase.GATHERING,
            waiting=0,
            returned=0,
            lost=0,
            held_back=0,
            let_in=False,
            uncounted=False,
        )

    def under(self, settings: Settings) -> Head:
        """Return the same under settings that other nodes bring: whatever was changed in the old ones is over."""
        head = msgspec.structs.replace(self, settings=settings, origin="", generation=0, target=0)
        return head.gathering().requiring_its_features()

    def requiring_its_features(self) -> Head:
        """Return the head with the features in ``requires`` that its settings need."""
        if WORLD_SHAPE in self.requires or (self.settings.is_plain and not self.generation):
            return self
        return msgspec.structs.replace(self, requires=(*self.requires, WORLD_SHAPE))


class Last(msgspec.Struct, frozen=True):
    """The round that a node last held, and its rank there."""

    round: Count
    rank: Count


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's own record: one arrival at the barrier.

    Attributes:
        arrival: A fresh id for each call of ``join()``; all ids of one ``Rendezvous`` share a prefix.
        fingerprint: Of the settings that the node brings; a node with others is not a candidate.
        last: What it held before, if anything.
        address: How other members reach it; free text.
        labels: What it says about itself, for example its rack.
        displaced: The address of a live node with the same id whose place it took.
        stalled: Seconds for which its event loop stood still before it lost its last session; None if it did not.
    """

    arrival: Text
    fingerprint: Fingerprint
    last: Last | None = None
    address: Text = ""
    labels: Labels = {}
    displaced: Text = ""
    stalled: float | None = None

    def is_of_one_life_with(self, other: Node) -> bool:
        """Tell whether one ``Rendezvous`` wrote both records."""
        return self.arrival[:LIFE_LENGTH] == other.arrival[:LIFE_LENGTH]


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's place: given to one arrival, by one attempt."""

    round: Count
    attempt: Text
    arrival: Text
    rank: Count
    address: Text = ""
    labels: Labels = {}


class Post(msgspec.Struct, frozen=True):
    """The coordinator's record: which node holds the post."""

    node: Text


class Member(msgspec.Struct, frozen=True):
    """A member of a world, as users see it."""

    rank: int
    node: str
    address: str
    labels: dict[str, str]


def node_key(node: str) -> str:
    """Return where the record of ``node`` lives."""
    return NODES + encode_segment(node)


def seat_key(node: str) -> str:
    """Return where the seat of ``node`` lives."""
    return SEATS + encode_segment(node)


def node_of(key: str) -> str:
    """Return the node whose record or seat lives at ``key``."""
    return decode_segment(key.rpartition("/")[2])


def round_key(round: int) -> str:
    """Return where the marker of a round lives; with a slash behind it, the round's own store."""
    return f"rounds/{round}"
