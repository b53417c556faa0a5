"""Values to bytes and back: versioned, bounded, strict.

A stored value is one byte of format version, one byte that says which record it is, and a msgpack map. Anything else
raises ``RendezvousStateError``: nothing in the backend can make this process run code or eat its memory.

Fields that are not known are passed over, at every level of a record: a newer version may have written them, and they
are lost when an older one writes the record again. The known ones must have the right type and keep within their
bounds. The format version is raised only if an older reader could not find the known fields at all; such a record
raises ``RendezvousVersionError``. ``features.py`` says how a new field is made to count.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from rendezvous_async.core.history import HistoryRecord
from rendezvous_async.core.state import Head, Node, Post, Seat
from rendezvous_async.errors import RendezvousStateError, RendezvousVersionError

__all__ = ["FORMAT", "MAX_RECORD", "decode", "encode"]

FORMAT = 1
MAX_RECORD = 64 * 1024
_KINDS: dict[type, int] = {Head: ord("H"), Node: ord("N"), Seat: ord("S"), Post: ord("C"), HistoryRecord: ord("R")}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind, strict=True) for kind in _KINDS
}

R = TypeVar("R", Head, Node, Seat, Post, HistoryRecord)


def encode(record: Head | Node | Seat | Post | HistoryRecord) -> bytes:
    """Return ``record`` as bytes.

    Raises:
        ValueError: It is larger than a record may be: too many or too long labels.
    """
    data = bytes((FORMAT, _KINDS[type(record)])) + _ENCODER.encode(record)
    if len(data) > MAX_RECORD:
        raise ValueError(f"a {type(record).__name__} record has at most {MAX_RECORD} bytes, not {len(data)}")
    return data


def decode(kind: type[R], data: bytes | None, key: str = "") -> R:
    """Return the record of that kind that ``data`` holds; ``key`` is for the error's text.

    Raises:
        RendezvousVersionError: A newer version wrote it.
        RendezvousStateError: ``data`` is anything else.
    """
    if data is None or not 2 <= len(data) <= MAX_RECORD or data[0] != FORMAT or data[1] != _KINDS[kind]:
        raise _refusal(kind, data, _place(kind, key))
    try:
        record: R = _DECODERS[kind].decode(memoryview(data)[2:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise RendezvousStateError(f"{_place(kind, key)} is damaged: {error}") from error
    return record


def _place(kind: type, key: str) -> str:
    return f"the record at {key!r}" if key else f"a {kind.__name__} record"


def _refusal(kind: type, data: bytes | None, place: str) -> RendezvousStateError:
    """Say what is wrong with data that does not begin as a record of this kind does."""
    if data is None or len(data) < 2:
        return RendezvousStateError(f"{place} is cut short: {data!r}")
    if len(data) > MAX_RECORD:
        return RendezvousStateError(f"{place} has {len(data)} bytes, more than the {MAX_RECORD} that a record may have")
    if data[0] > FORMAT and data[1] == _KINDS[kind]:
        return RendezvousVersionError(
            f"{place} was written by a newer rendezvous_async (format {data[0]}, this one reads {FORMAT}); "
            "upgrade rendezvous_async here"
        )
    return RendezvousStateError(f"{place} is not a {kind.__name__} record of rendezvous_async: {data[:16]!r}")
