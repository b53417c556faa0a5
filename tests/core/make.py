"""Short ways to make the values of the core, for its tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from rendezvous_async.core.state import Closed, Head, Last, Node, Phase, Post, Seat
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.settings import Settings

TWO_TO_FOUR = Settings(2, 4, last_call=30.0, regroup=3.0)
STAMP = ("epoch", 7)


def record(
    arrival: str,
    last: tuple[int, int] | None = None,
    *,
    settings: Settings = TWO_TO_FOUR,
    address: str = "",
    labels: Mapping[str, str] | None = None,
) -> Node:
    """Return a node's record."""
    return Node(
        arrival=arrival,
        fingerprint=settings.fingerprint,
        last=None if last is None else Last(*last),
        address=address,
        labels=dict(labels or {}),
    )


def formed(
    names: Sequence[str],
    *,
    round: int = 1,
    attempt: str = "first",
    settings: Settings = TWO_TO_FOUR,
    waiting: int = 0,
    lost: int = 0,
) -> tuple[Head, dict[str, Seat]]:
    """Return the head and the seats of a round of the nodes ``names``, one letter each, whose arrivals are <name>1."""
    seats = {name: Seat(round=round, attempt=attempt, arrival=f"{name}1", rank=rank) for rank, name in enumerate(names)}
    head = Head(
        settings=settings,
        round=round,
        phase=Phase.FORMED,
        attempt=attempt,
        size=len(seats),
        waiting=waiting,
        lost=lost,
        token=STAMP,
    )
    return head, seats


def gathering(roster: Mapping[str, Node], settings: Settings = TWO_TO_FOUR) -> Tally:
    """Return the tally of a run in which no round has formed yet; nodes came in the order of ``roster``."""
    return roster_of(Head(settings=settings), {}, roster)


def roster_of(head: Head, seats: Mapping[str, Seat], roster: Mapping[str, Node]) -> Tally:
    """Return a tally; nodes came in the order of ``roster``, at revisions 1, 2, 3..."""
    return tally_of(head, seats, ((name, node, order) for order, (name, node) in enumerate(roster.items(), start=1)))


# What hypothesis draws: any value that the codec must carry.

counts = st.integers(0, 2**40)
texts = st.text(max_size=40)
labels = st.dictionaries(texts, texts, max_size=4)
seconds = st.floats(0.001, 1e6)
policies = st.sampled_from(["sticky", "sorted", "label:rack"])


@st.composite
def all_settings(draw: st.DrawFn) -> Settings:
    low, high = sorted((draw(st.integers(1, 1000)), draw(st.integers(1, 1000))))
    step = draw(st.sampled_from([0, 1, max(1, high - low)]))
    listed = (low, high, high + 3) if step == 0 and low < high else ()
    domain = draw(st.sampled_from(["", "nvlink"]))
    return Settings(
        low,
        listed[-1] if listed else high,
        draw(policies),
        draw(seconds),
        draw(seconds),
        step if listed else max(1, step),
        listed,
        domain,
        grow=draw(st.sampled_from([0.0, 5.0, math.inf])),
    )


heads = st.builds(
    Head,
    settings=all_settings(),
    round=counts,
    phase=st.sampled_from(Phase),
    attempt=texts,
    size=counts,
    waiting=counts,
    returned=counts,
    lost=counts,
    token=st.none() | st.tuples(texts, st.integers(0, 2**40)),
    closed=st.none() | st.builds(Closed, texts, texts),
    requires=st.lists(st.text(min_size=1, max_size=10), max_size=3).map(tuple),
    held_back=counts,
    origin=texts,
    generation=counts,
    let_in=st.booleans(),
    uncounted=st.booleans(),
)
nodes = st.builds(
    Node,
    arrival=texts,
    fingerprint=texts,
    last=st.none() | st.builds(Last, counts, counts),
    address=texts,
    labels=labels,
)
seats = st.builds(Seat, round=counts, attempt=texts, arrival=texts, rank=counts, address=texts, labels=labels)
posts = st.builds(Post, texts)
records = st.one_of(heads, nodes, seats, posts)
