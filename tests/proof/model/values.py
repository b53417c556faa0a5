"""One state of the model: the store, the nodes, the coordinators and the commits under way, as nested tuples.

Everything is an integer, None or a tuple of these, so that a state is cheap to hash, to copy and to compare. The
records of ``core.state`` become rows of the same fields; ``rules`` turns rows into records and back.

**Revisions** are only ever compared for equality, so they get names instead of numbers. The commit that forms a round
is named after its attempt; any other put is ``FRESH``, which ``canonical`` renames to 0. A revision that is no longer
current never comes back, so it is remembered as ``PAST``. Only the order in which nodes arrived counts as a number:
``RecordRow.order``.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = [
    "ARRIVING",
    "BARRIER",
    "DONE",
    "FRESH",
    "IN",
    "OUT",
    "PAST",
    "Budget",
    "Commit",
    "Duty",
    "HeadRow",
    "NodeRow",
    "Plan",
    "PostRow",
    "RecordRow",
    "SeatRow",
    "State",
    "World",
    "replaced",
    "start",
]

T = TypeVar("T")

FRESH = -2
PAST = -1

OUT, ARRIVING, BARRIER, IN, DONE = range(5)
"""Where a node's process stands: not there, its record on the way, at the barrier, in a round, knows of the close."""

OWN, LINGERING = 1, 2
"""Whose session a key is bound to: the process's own, or that of a dead process of the same node."""


class HeadRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A head; ``attempt`` 0 is none, ``token`` is the name of the revision that formed the round.

    ``spec`` counts how often the run was scaled: each time to the next spec of the configuration.
    """

    round: int = 0
    formed: int = 0
    attempt: int = 0
    size: int = 0
    waiting: int = 0
    returned: int = 0
    lost: int = 0
    token: int | None = None
    closed: int = 0
    held_back: int = 0
    spec: int = 0
    let_in: int = 0
    uncounted: int = 0


class SeatRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A seat; all zeros: one that can never count again."""

    round: int
    attempt: int
    arrival: int
    rank: int


class RecordRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's record, with the order of its put and the session it is bound to; ``last_round`` 0 is none.

    ``domain`` is the label that the node brings; 0: none.
    """

    arrival: int
    last_round: int
    last_rank: int
    order: int
    session: int = OWN
    domain: int = 0


class PostRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who holds the coordinator's post, under which session."""

    node: int
    session: int
    revision: int

    def is_of(self, node: int, session: int) -> bool:
        """Tell whether it is bound to this session."""
        return self.node == node and self.session == session


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's process and what it knows.

    Attributes:
        phase: ``OUT``, ``ARRIVING``, ``BARRIER``, ``IN`` or ``DONE``.
        arrival: Counts its joins; the last one's id.
        last_round: What it remembers to have held, and ``last_rank``.
        open: Whether its session is open in the store; it may not know.
        held: ``(round, rank, size, token, attempt)`` of the world that it is in.
        head: At the barrier, the head it has last seen, if that can still matter.
        seat: At the barrier, the seat it has last seen, likewise.
        lingers: Whether the session of a dead process of this node is still open.
        late: A record that the dead process sent and that has not arrived; its ``order`` is the one it compares.
        domain: The label that it brings; 0: none.
    """

    phase: int = OUT
    arrival: int = 0
    last_round: int = 0
    last_rank: int = 0
    open: int = 0
    held: tuple[int, int, int, int, int] | None = None
    head: HeadRow | None = None
    seat: SeatRow | None = None
    lingers: int = 0
    late: RecordRow | None = None
    domain: int = 0


class Plan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A round that a coordinator is writing: head, seats by node, and how many commits have won."""

    head: HeadRow
    seats: tuple[SeatRow | None, ...]
    done: int


class Duty(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A coordinator at work: where its machine is, and what it has read; enough to bring a new machine there.

    ``state`` and ``post`` are the revisions that it compares.

    Attributes:
        stage: What it does next: ``read seats``, ``clean up``, ``read roster``, ``work``, ``form`` or ``clear``.
        head: Stamped.
        seats: By node; None for those that do not count.
        extra: To be deleted in ``clean up`` and ``clear``: nodes.
        roster: By node, as it last heard of them.
    """

    stage: int
    post: int
    state: int
    head: HeadRow
    seats: tuple[SeatRow | None, ...]
    extra: tuple[int, ...] = ()
    roster: tuple[RecordRow | None, ...] = ()
    plan: Plan | None = None


class Commit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A coordinator's commit: up to three conditions (None: not compared), and what it writes.

    ``begin`` puts the key ``forming`` for that attempt, ``end`` deletes it, ``mark`` and ``unmark`` put and delete the
    markers of rounds (0: none), ``resign`` deletes the post.
    """

    what: int
    state: int | None
    post: int | None
    forming: int | None = None
    head: HeadRow | None = None
    seats: tuple[tuple[int, SeatRow], ...] = ()
    drop: tuple[int, ...] = ()
    begin: int = 0
    end: int = 0
    mark: int = 0
    unmark: int = 0
    resign: int = 0


class World(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A round as it was formed; the checks compare what nodes believe with it. Seats: ``(arrival, rank)`` by node."""

    round: int
    attempt: int
    size: int
    seats: tuple[tuple[int, int] | None, ...]


class Budget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many more of each kind of trouble there may be.

    Attributes:
        expire: A live process loses its session, and does not know at first.
        leave: A node leaves, or gives up a join: it ends its session.
        crash: A process dies; its session stays open for a while, and its record may still be on the way.
        late: A coordinator gets no answer to a commit, which is applied later, or never.
        close: Somebody closes the run.
        back: A member returns to the barrier though nothing has happened.
        wipe: The store loses everything, and starts a new epoch.
        scale: Somebody scales the run.
        grow: A member lets newcomers in.
    """

    expire: int = 0
    leave: int = 0
    crash: int = 0
    late: int = 0
    close: int = 0
    back: int = 0
    wipe: int = 0
    scale: int = 0
    grow: int = 0


class State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything at one moment."""

    head: HeadRow
    revision: int
    post: PostRow | None
    forming: int
    markers: tuple[tuple[int, int], ...]
    records: tuple[RecordRow | None, ...]
    seats: tuple[SeatRow | None, ...]
    nodes: tuple[NodeRow, ...]
    duties: tuple[Duty | None, ...]
    late: tuple[Commit, ...]
    worlds: tuple[World, ...]
    budget: Budget


def start(nodes: int, budget: Budget, domains: tuple[int, ...] = ()) -> State:
    """Return the state in which nobody has come yet; ``domains`` are those of the nodes, if there are any.

    The head is there already: a joiner creates it, if it is absent, in the commit that puts its record, and a head of
    round 0 without a record means nothing.
    """
    none = (None,) * nodes
    rows = tuple(NodeRow(domain=domain) for domain in domains or (0,) * nodes)
    return State(HeadRow(), 0, None, 0, (), none, none, rows, none, (), (), budget)


def replaced(row: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """Return ``row`` with one element replaced."""
    return (*row[:index], value, *row[index + 1 :])
