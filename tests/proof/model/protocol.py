"""The rows of the model as the records of ``core.state`` and back, and what nodes read from them.

The decisions are made by the real code: ``rules.admit`` and ``rules.change_of`` here, ``core.duty`` in ``duties``. What
the store does with sessions stands here, too, so that a bug in it can be planted.
"""

from __future__ import annotations

import math

import msgspec

from rendezvous_async.core import rules
from rendezvous_async.core.rules import Admission, Change, Joined
from rendezvous_async.core.shape import Shape
from rendezvous_async.core.spec import let_in, rescaled
from rendezvous_async.core.state import Closed, Head, Last, Node, Phase, Seat
from rendezvous_async.settings import settings_for
from rendezvous_async.sizes import Sizes
from tests.proof.model.values import Budget, HeadRow, RecordRow, SeatRow

__all__ = ["Config", "Protocol", "node_of", "row_of", "row_of_seat", "seat_of"]

LABEL = "rack"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is explored.

    Attributes:
        nodes: The number of nodes.
        min_nodes: The minimum size of a round.
        max_nodes: The maximum size of a round.
        step: From each allowed size to the next.
        domains: The domain of each node, 0 for one without the label; empty: there are no domains.
        per_domain: A round has a multiple of this number of nodes from each domain.
        specs: To what the run is scaled, one after another: sizes and target, as for ``rescaled``.
        by_hand: Whether newcomers who would make the world larger are held back until a member lets them in.
        rounds: How many may form; in the last one no member returns.
        max_writes: The limit of writes per commit; None means no limit.
        coordinators: How many nodes may coordinate at a time, rightly or not.
        doomed: Whether to follow a coordinator that has lost its post until it finds out. As each of its commits
            compares the post and is refused, it can do nothing else, and may as well find out at once; there are
            about five times as many states if it does not.
        budget: How much trouble there may be.
    """

    nodes: int = 3
    min_nodes: int = 2
    max_nodes: int = 2
    step: int = 1
    domains: tuple[int, ...] = ()
    per_domain: int = 1
    specs: tuple[tuple[str | None, int | None], ...] = ()
    by_hand: bool = False
    rounds: int = 2
    max_writes: int | None = None
    coordinators: int = 2
    doomed: bool = False
    budget: Budget = Budget()

    def __str__(self) -> str:
        trouble = [f"{count} {kind}" for kind, count in msgspec.structs.asdict(self.budget).items() if count]
        shape = f":{self.step}" if self.step > 1 else ""
        shape += f" of {self.per_domain} each in the domains {self.domains}" if self.domains else ""
        shape += "".join(f" then {nodes or 'the same'} target {target}" for nodes, target in self.specs)
        shape += ", growing by hand" if self.by_hand else ""
        return (
            f"{self.nodes} nodes, {self.min_nodes}:{self.max_nodes}{shape}, {self.rounds} rounds, "
            f"{'one commit' if self.max_writes is None else 'batches'}, {self.coordinators} coordinators"
            f"{', the doomed included' if self.doomed else ''}; "
            f"{', '.join(trouble) or 'no trouble'}"
        )


class Protocol:
    """What nodes and the store do, on rows; answers of the real functions are remembered."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.settings = settings_for(
            Sizes(config.min_nodes, config.max_nodes, config.step),
            domain=LABEL if config.domains else "",
            per_domain=config.per_domain,
            grow=math.inf if config.by_hand else 0.0,
        )
        self._scaled = [Head(settings=self.settings).requiring_its_features()]
        for nodes, target in config.specs:
            self._scaled.append(rescaled(self._scaled[-1], nodes, target))
        self.shapes: list[Shape] = [head.shape for head in self._scaled]
        """What is valid, by how often the run was scaled."""
        self._heads: dict[HeadRow, Head] = {}
        self._admissions: dict[object, Admission] = {}
        self._stamps: dict[tuple[HeadRow, int], HeadRow] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.config}>"

    def admission(self, head: HeadRow | None, seat: SeatRow | None, arrival: int, last: int, rank: int) -> Admission:
        """Return what a node at the barrier reads from a head and a seat."""
        key = (head, seat, arrival, last, rank)
        if key not in self._admissions:
            self._admissions[key] = rules.admit(
                None if head is None else self.head_of(head),
                None if seat is None else seat_of(seat),
                str(arrival),
                self.settings,
                Last(last, rank) if last else None,
            )
        return self._admissions[key]

    def change_of(self, head: HeadRow, held: tuple[int, int, int, int, int]) -> Change | None:
        """Return what a member reads from a stamped head."""
        round, rank, size, token, _ = held
        return rules.change_of(self.head_of(head), Joined(round, rank, size, ("", token)))

    def stamped(self, head: HeadRow, revision: int) -> HeadRow:
        """Return a head as it is read from an entry with that revision."""
        if (head, revision) not in self._stamps:
            self._stamps[head, revision] = row_of(self.head_of(head).stamped(("", revision)))
        return self._stamps[head, revision]

    def head_of(self, row: HeadRow) -> Head:
        """Return the record that a row stands for."""
        if row not in self._heads:
            self._heads[row] = msgspec.structs.replace(
                self._scaled[row.spec],
                round=row.round,
                phase=Phase.FORMED if row.formed else Phase.GATHERING,
                attempt=str(row.attempt or ""),
                size=row.size,
                waiting=row.waiting,
                returned=row.returned,
                lost=row.lost,
                token=None if row.token is None else ("", row.token),
                closed=Closed("", "") if row.closed else None,
                held_back=row.held_back,
                let_in=bool(row.let_in),
                uncounted=bool(row.uncounted),
            )
        return self._heads[row]

    def scaled(self, row: HeadRow) -> HeadRow:
        """Return a stamped head as it is after the run was scaled to the next spec."""
        return row_of(rescaled(self.head_of(row), *self.config.specs[row.spec]))

    def let_in(self, row: HeadRow) -> HeadRow:
        """Return a stamped head as it is after a member has let newcomers in."""
        return row_of(let_in(self.head_of(row)))

    # What a store does

    def accepts_put(self, open: bool) -> bool:
        """Tell whether a put under a session is done: only if that is open."""
        return open

    def goes_with(self, row: RecordRow, session: int) -> bool:
        """Tell whether a record is deleted with a session: a key belongs to the session of its last put."""
        return row.session == session


def seat_of(row: SeatRow) -> Seat:
    """Return the record that a row stands for."""
    return Seat(round=row.round, attempt=str(row.attempt), arrival=str(row.arrival), rank=row.rank)


def row_of_seat(seat: Seat) -> SeatRow:
    """Return the row that stands for a record."""
    return SeatRow(seat.round, int(seat.attempt), int(seat.arrival), seat.rank)


def node_of(row: RecordRow, fingerprint: str) -> Node:
    """Return the record that a row stands for."""
    last = Last(row.last_round, row.last_rank) if row.last_round else None
    labels = {LABEL: str(row.domain)} if row.domain else {}
    return Node(arrival=str(row.arrival), fingerprint=fingerprint, last=last, labels=labels)


def row_of(head: Head) -> HeadRow:
    """Return the row that stands for a record."""
    return HeadRow(
        head.round,
        int(head.phase is Phase.FORMED),
        int(head.attempt or 0),
        head.size,
        head.waiting,
        head.returned,
        head.lost,
        None if head.token is None else head.token[1],
        int(head.closed is not None),
        head.held_back,
        head.generation,
        int(head.let_in),
        int(head.uncounted),
    )
