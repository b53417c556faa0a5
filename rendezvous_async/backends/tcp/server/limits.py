"""What a server grants to one peer and to all peers: everything is bounded."""

from __future__ import annotations

import math
import resource

import msgspec

from rendezvous_async.backends.table.frames import MAX_FRAME
from rendezvous_async.texts import quoted

__all__ = ["DISCONNECT_GRACE", "Limits"]

DISCONNECT_GRACE = 1.0
"""Seconds that a session outlives its connection."""

MAX_REQUEST = MAX_FRAME - 1024 * 1024

OTHER_FILES = 256
"""File descriptors reserved for the rest of the process and for connections in a handshake or being refused."""

_NUMBERS = frozenset({"handshake", "run_share", "reserve", "shortest_ttl", "longest_ttl"})
"""The limits that may be fractions: seconds and shares."""


def _is_number(value: object) -> bool:
    """Tell whether a value is a finite number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a server.

    A peer that exceeds one of the first four is told why and cut off. A request over one of the next eight fails with
    an error, and the peer may continue. ``in_flight`` and ``unsent`` throttle a peer until earlier requests are
    answered.

    ``writes`` and ``listed`` also bound how long one request can delay all others. Many small requests cannot: they
    share the event loop fairly (see ``turns``).

    Attributes:
        connections: Connections at a time, with those in a handshake.
        handshake: Seconds from the accept to the end of the handshake, TLS included.
        frame: Bytes of one request.
        client_id: Characters of a client's name for itself.
        keys: Entries in the whole table.
        bytes: Size of the whole table: keys, values, sessions, remembered answers, and a fixed cost for each of them
            (``backends/table/usage.py``). A server needs up to two and a half times as much memory.
        run_share: The share of ``keys`` and ``bytes`` that one run may use. All runs together that a restricted secret
            opens have the same share, and that of ``sessions``.
        reserve: The share of ``keys`` and ``bytes`` reserved for the records of runs, so that nodes can join and rounds
            can form although users' data has filled the rest.
        watches: Watches on one connection.
        watched: Characters of the names in all watches of one connection; each name counts for 64 more.
        names: Names in one watch.
        sessions: Sessions in the whole table.
        writes: Writes in one commit; also the keys of one session.
        listed: Keys in one answer or watch, keys deleted by one commit, and keys in the store of one round, so that it
            can always be listed and deleted.
        in_flight: Requests of one connection whose answers are not on disk and sent.
        unsent: Bytes of answers to a peer that does not read.
        shortest_ttl: Lower bound on a session's TTL in seconds; shorter ones are raised to it.
        longest_ttl: Upper bound on a session's TTL in seconds.
    """

    connections: int = 16_384
    handshake: float = 5.0
    frame: int = 16 * 1024 * 1024
    client_id: int = 128
    keys: int = 1_000_000
    bytes: int = 256 * 1024 * 1024
    run_share: float = 0.5
    reserve: float = 0.125
    watches: int = 4096
    watched: int = 1024 * 1024
    names: int = 4096
    sessions: int = 100_000
    writes: int = 16_384
    listed: int = 65_536
    in_flight: int = 1024
    unsent: int = 256 * 1024
    shortest_ttl: float = 0.05
    longest_ttl: float = 86_400.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in _NUMBERS:
                if not _is_number(value) or value <= 0:
                    raise ValueError(f"the limit {name} must be a positive, finite number, not {quoted(value)}")
            elif isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"the limit {name} must be a whole number above 0, not {quoted(value)}")
        if self.shortest_ttl > self.longest_ttl:
            raise ValueError(
                f"the limit shortest_ttl ({self.shortest_ttl:g} s) must not be above longest_ttl "
                f"({self.longest_ttl:g} s)"
            )
        if self.run_share > 1 or self.reserve >= 1:
            raise ValueError(
                f"the limits run_share ({self.run_share:g}) and reserve ({self.reserve:g}) are parts of the whole: "
                "at most 1, and less than 1"
            )
        if self.frame > MAX_REQUEST:
            raise ValueError(
                f"the limit frame is at most {MAX_REQUEST} bytes, not {self.frame}: what is accepted must fit into a "
                "frame of the log"
            )

    @property
    def connections_now(self) -> int:
        """The connections that the process's limit of open files allows; more are refused, not left waiting."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self.connections
        return min(self.connections, max(files - OTHER_FILES, files // 2))
