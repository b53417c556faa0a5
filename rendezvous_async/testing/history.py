"""What happened in a simulated run: a list of small frozen records, in the order in which they happened.

Some are seen by the backend (what was committed), some by a node (what it believes), some are the faults that the test
put in. ``check`` in ``rendezvous_async.testing.checks`` reads nothing else. The same seed gives the same history, byte
for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import msgspec

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
    """The backend: a node's record is gone; ``expired`` tells whether its session ran out."""

    at: float
    node: str


class Formed(msgspec.Struct, frozen=True, tag=True):
    """The backend: a head was written that forms a round, and these seats count: (node, arrival, rank)."""

    at: float
    round: int
    size: int
    token: str
    seats: tuple[tuple[str, str, int], ...]


class HeadWritten(msgspec.Struct, frozen=True, tag=True):
    """The backend: a head was written; ``closed`` is by whom, or empty."""

    at: float
    round: int
    phase: str
    waiting: int
    lost: int
    closed: str


class StoreWritten(msgspec.Struct, frozen=True, tag=True):
    """The backend: a write to a round's store was accepted, when this round was current."""

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
    """A node: it no longer holds this round, because of this."""

    at: float
    node: str
    round: int
    why: str


class Left(msgspec.Struct, frozen=True, tag=True):
    """A node left, and was told so."""

    at: float
    node: str


class CloseCalled(msgspec.Struct, frozen=True, tag=True):
    """A node called ``close()``."""

    at: float
    node: str


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The test did this to these nodes."""

    at: float
    kind: str
    nodes: tuple[str, ...] = ()


class Settled(msgspec.Struct, frozen=True, tag=True):
    """Everything is quiet: these nodes run, and these have a record in the backend."""

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
    | Fault
    | Settled
)

R = TypeVar("R", bound=msgspec.Struct)


class History:
    """Records of one run, in order.

    Attributes:
        min_nodes: What the run was started with.
        max_nodes: What the run was started with.
        ttl: Of every node's session.
        failures: What programs failed with; ``check`` raises it. The records tell of it too, as faults.
    """

    def __init__(self, min_nodes: int, max_nodes: int, ttl: float) -> None:
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.ttl = ttl
        self.failures = Failures()
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
        """Put a record behind the others."""
        self._records.append(record)

    def of(self, kind: type[R]) -> list[R]:
        """Return the records of one kind."""
        return [record for record in self._records if isinstance(record, kind)]
