"""The format of a log, without any file: the records of a table's changes, and the frames that hold them.

A frame is a batch of records that is written and synced in one go. The next frame is written only after the previous
one has reached the disk, so a crash can spoil only the last frame:

    mark (2)  length (4)  CRC-32 of the payload (4)  CRC-32 of these ten bytes (4)  payload  newline (1)

A crash leaves a frame short, or leaves whole sectors of it zero. So a short or zeroed last frame is *torn* and may be
cut: it was never acknowledged. Every other defect is *damage*, and is refused. The length has its own checksum, since a
wrong length could make a whole log look torn. The mark and the newline are not zero, so the first and last sector of
an intact frame never are either.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from rendezvous_async.backends.table.table import CommitId, Table
from rendezvous_async.backends.values import Condition, Write
from rendezvous_async.errors import RendezvousSessionError, RendezvousStateError

__all__ = ["Committed", "Ended", "Forgotten", "LogRecord", "Raised", "Started"]

MAX_FRAME = 32 * 1024 * 1024
"""Upper bound on the payload of a frame in bytes; a single record must fit."""
_MARK = b"\xd7R"
_HEAD = struct.Struct(">2sII")
_CHECK = struct.Struct(">I")
_HEAD_SIZE = _HEAD.size + _CHECK.size
_END = b"\n"
_SECTOR = 512


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A commit that won."""

    writes: tuple[Write, ...]
    when: tuple[Condition, ...] = ()
    id: CommitId | None = None


class Started(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A session was opened with this id."""

    session: str
    ttl: float


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A session was ended by its owner or by somebody else, or it expired."""

    session: str
    cause: str = ""


class Raised(msgspec.Struct, frozen=True, array_like=True, tag="raise"):
    """The revision was raised to what a client remembered."""

    revision: int


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """The remembered answers of a client were dropped."""

    client: str


LogRecord: TypeAlias = Committed | Started | Ended | Raised | Forgotten

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[LogRecord]).decode


def replay(table: Table, records: Iterable[LogRecord], now: float) -> None:
    """Apply recorded changes to ``table``.

    Raises:
        RendezvousStateError: The outcome differs from the recorded one: the records are from another table.
    """
    for record in records:
        match record:
            case Committed(writes, when, id):
                try:
                    same = table.commit(writes, when, id).won
                except RendezvousSessionError:
                    same = False
            case Started(session, ttl):
                same = table.open_session(ttl, now, session.partition("@")[2]) == session
            case Ended(session, cause):
                same = table.end_session(session, cause)
            case Raised(revision):
                table.raise_revision(revision)
                same = True
            case Forgotten(client):
                table.forget(client)
                same = True
        if not same:
            raise RendezvousStateError(f"{str(record)[:200]} cannot have followed revision {table.revision}")


def frame(payload: bytes) -> bytes:
    """Return ``payload`` as one frame."""
    if len(payload) > MAX_FRAME:
        raise ValueError(f"a frame of the log holds at most {MAX_FRAME} bytes, not {len(payload)}")
    head = _HEAD.pack(_MARK, len(payload), zlib.crc32(payload))
    return b"".join((head, _CHECK.pack(zlib.crc32(head)), payload, _END))


def frames(records: Sequence[LogRecord]) -> Iterator[bytes]:
    """Return the records as one frame, or as several if they do not fit."""
    payload = _encode(records)
    if len(payload) <= MAX_FRAME or len(records) == 1:
        yield frame(payload)
        return
    middle = len(records) // 2
    yield from frames(records[:middle])
    yield from frames(records[middle:])


def unframe(data: memoryview, start: int = 0, limit: int = MAX_FRAME) -> tuple[memoryview, int] | None:
    """Return the payload and the end of the sound frame at ``start``; None if there is none."""
    length = _length(data, start)
    if length is None or length > limit:
        return None
    begin = start + _HEAD_SIZE
    end = begin + length
    payload = data[begin:end]
    if data[end : end + 1] != _END or zlib.crc32(payload) != _HEAD.unpack_from(data, start)[2]:
        return None
    return payload, end + 1


def read_records(payload: memoryview) -> list[LogRecord]:
    """Return the records of a frame's payload."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise RendezvousStateError(f"a sound frame does not hold records of this version: {error}") from None


def is_torn(tail: memoryview, offset: int) -> bool:
    """Tell whether the rest of a log, from ``offset`` on, is a last frame that a crash cut short.

    ``tail`` starts at the end of the last sound frame, and is neither empty nor a sound frame itself.
    """
    if len(tail) < _HEAD_SIZE:
        return True
    length = _length(tail, 0)
    if length is not None:
        end = _HEAD_SIZE + length + len(_END)
        if len(tail) < end:
            return True
        return not any(tail[end:]) and _has_zero_sector(tail[:end], offset, end)
    return _has_zero_sector(tail, offset, _HEAD_SIZE) and not _holds_a_frame(tail)


def _length(data: memoryview, start: int) -> int | None:
    """Return the payload length in the head at ``start``; None if the head is not sound."""
    if len(data) - start < _HEAD_SIZE:
        return None
    mark, length, _ = _HEAD.unpack_from(data, start)
    (check,) = _CHECK.unpack_from(data, start + _HEAD.size)
    sound = mark == _MARK and check == zlib.crc32(data[start : start + _HEAD.size])
    return int(length) if sound else None


def _has_zero_sector(data: memoryview, offset: int, until: int) -> bool:
    """Tell whether a sector of the file that overlaps ``data[:until]`` is zero within ``data``."""
    begin = 0
    while begin < until:
        end = begin + _SECTOR - (offset + begin) % _SECTOR
        if not any(data[begin:end]):
            return True
        begin = end
    return False


def _holds_a_frame(data: memoryview) -> bool:
    raw = bytes(data)
    at = raw.find(_MARK)
    while at >= 0:
        if unframe(data, at) is not None:
            return True
        at = raw.find(_MARK, at + 1)
    return False
