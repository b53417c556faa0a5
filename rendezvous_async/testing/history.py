"""The history of a simulated run: frozen records in the order in which they happened.

Some come from the backend (commits), some from a node (what it believes), some are the faults that the test injected.
``check`` in ``rendezvous_async.testing.checks`` reads nothing else. The same seed gives the same history, byte for
byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import msgspec

from rendezvous_async.core.shape import Shape
from rendezvous_async.testing.failures import Failures

__all__ = [
    "Arrived",
    "Believed",
    "CloseCalled",
    "Fault",
    "Formed",
    "HeadWritten",
    "History",
    "Left",
    "Record",
    "Released",
    "ScaleCalled",
    "Settled",
    "StoreWritten",
    "Vanished",
]


class Arrived(msgspec.Struct, frozen=True, tag=True):
    """The backend: a node's record was written."""

    at: float
    node: str
    arrival: str


class Vanished(msgspec.Struct, frozen=True, tag=True):
    """The backend: a node's record was deleted."""

    at: float
    node: str


class Formed(msgspec.Struct, frozen=True, tag=True):
    """The backend: a head was written that forms a round with these seats: (node, arrival, rank).

    ``shape`` is what the head before it allowed, ``ranks`` the rank policy, ``domains`` the domain of each member by
    rank (None: it has none).
    """

    at: float
    round: int
    size: int
    token: str
    seats: tuple[tuple[str, str, int], ...]
    shape: Shape | None = None
    ranks: str = ""
    domains: tuple[str | None, ...] = ()


class HeadWritten(msgspec.Struct, frozen=True, tag=True):
    """The backend: a head was written; ``closed`` is the node that closed the run, or empty.

    ``origin`` is the fingerprint of what nodes bring, ``spec`` what holds, ``generation`` how often it was changed.
    """

    at: float
    round: int
    phase: str
    waiting: int
    lost: int
    closed: str
    origin: str = ""
    spec: str = ""
    generation: int = 0


class StoreWritten(msgspec.Struct, frozen=True, tag=True):
    """The backend: a write to the store of ``round`` was accepted while round ``current`` was current."""

    at: float
    round: int
    current: int


class Believed(msgspec.Struct, frozen=True, tag=True):
    """A node: it holds this world."""

    at: float
    node: str
    round: int
    rank: int
    size: int
    token: str


class Released(msgspec.Struct, frozen=True, tag=True):
    """A node: it no longer holds this round; ``why`` is the cause."""

    at: float
    node: str
    round: int
    why: str


class Left(msgspec.Struct, frozen=True, tag=True):
    """A node has left."""

    at: float
    node: str


class CloseCalled(msgspec.Struct, frozen=True, tag=True):
    """A node called ``close()``."""

    at: float
    node: str


class ScaleCalled(msgspec.Struct, frozen=True, tag=True):
    """A node called ``scale()``."""

    at: float
    node: str


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The test injected this fault into these nodes."""

    at: float
    kind: str
    nodes: tuple[str, ...] = ()


class Settled(msgspec.Struct, frozen=True, tag=True):
    """The cluster has settled: the running nodes, and those with a record in the backend."""

    at: float
    live: tuple[str, ...]
    roster: tuple[str, ...]


Record: TypeAlias = (
    Arrived
    | Vanished
    | Formed
    | HeadWritten
    | StoreWritten
    | Believed
    | Released
    | Left
    | CloseCalled
    | ScaleCalled
    | Fault
    | Settled
)

R = TypeVar("R", bound=msgspec.Struct)


class History:
    """The records of one run, in order.

    Attributes:
        min_nodes: The minimum size of a round.
        max_nodes: The maximum size of a round.
        ttl: The TTL of every node's session.
        failures: The errors of programs, which ``check`` raises. The records show them too, as faults.
    """

    def __init__(self, min_nodes: int, max_nodes: int, ttl: float) -> None:
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.ttl = ttl
        self.failures: Failures = Failures()
        self._records: list[Record] = []

    def __repr__(self) -> str:
        return f"<History of {len(self._records)} records, {len(self.of(Formed))} rounds>"

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __str__(self) -> str:
        return "\n".join(map(str, self._records))

    def __bytes__(self) -> bytes:
        return b"\n".join(map(msgspec.json.encode, self._records))

    def add(self, record: Record) -> None:
        """Append a record."""
        self._records.append(record)

    def of(self, kind: type[R]) -> list[R]:
        """Return the records of one kind."""
        return [record for record in self._records if isinstance(record, kind)]
