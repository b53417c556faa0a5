"""Values to bytes and back: versioned, bounded, strict.

A stored value is one byte of format version, one byte that says which record it is, and msgpack. Whatever is not
exactly that raises ``RendezvousStateError``: nothing in the backend can make this process run code or eat its memory.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from rendezvous_async.core.state import Head, Node, Post, Seat
from rendezvous_async.errors import RendezvousStateError

__all__ = ["FORMAT", "MAX_RECORD", "decode", "encode"]

FORMAT = 1
MAX_RECORD = 64 * 1024
_KINDS: dict[type, int] = {Head: ord("H"), Node: ord("N"), Seat: ord("S"), Post: ord("C")}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind, strict=True) for kind in _KINDS
}

R = TypeVar("R", Head, Node, Seat, Post)


def encode(record: Head | Node | Seat | Post) -> bytes:
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
        RendezvousStateError: ``data`` is anything else.
    """
    if data is None or not 2 <= len(data) <= MAX_RECORD or data[0] != FORMAT or data[1] != _KINDS[kind]:
        raise RendezvousStateError(f"{_place(kind, key)} {_complaint(kind, data)}")
    try:
        record: R = _DECODERS[kind].decode(memoryview(data)[2:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise RendezvousStateError(f"{_place(kind, key)} is damaged: {error}") from error
    return record


def _place(kind: type, key: str) -> str:
    return f"the record at {key!r}" if key else f"a {kind.__name__} record"


def _complaint(kind: type, data: bytes | None) -> str:
    """Say what is wrong with data that is no record of this kind at first sight."""
    if data is None or len(data) < 2:
        return f"is cut short: {data!r}"
    if len(data) > MAX_RECORD:
        return f"has {len(data)} bytes, more than the {MAX_RECORD} that any of ours has"
    if data[0] > FORMAT and data[1] == _KINDS[kind]:
        return f"was written by a newer rendezvous_async (format {data[0]}, this one reads {FORMAT}); upgrade this node"
    return f"is not a {kind.__name__} record of rendezvous_async: {data[:16]!r}"
