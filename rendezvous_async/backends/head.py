"""The head of a log, without any file: a header, then the snapshot that the log begins with.

A snapshot may be larger than a frame may be, so it is cut into pieces, one to a frame. The first byte of each says
whether another one follows. Version 1 had the whole snapshot in one frame; it is still read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from rendezvous_async.backends.frames import frame, unframe
from rendezvous_async.backends.table import Snapshot

__all__ = ["HEADER_SIZE", "VERSIONS", "head_of_log", "read_header", "read_snapshot"]

VERSIONS = (1, 2)
"""What can be read; the last one is written."""
MAX_PIECE = 16 * 1024 * 1024
MAX_VERSION_1 = 1024 * 1024 * 1024
_MAGIC = b"rdzvlog\n"
_HEADER = struct.Struct(">8sHxxQ")
_CHECK = struct.Struct(">I")
HEADER_SIZE = _HEADER.size + _CHECK.size
_MORE, _LAST = b"\1", b"\0"


def head_of_log(generation: int, snapshot: Snapshot) -> Iterator[bytes]:
    """Return what a log begins with, in pieces that are to be written one behind the other."""
    header = _HEADER.pack(_MAGIC, VERSIONS[-1], generation)
    yield header + _CHECK.pack(zlib.crc32(header))
    data = memoryview(msgspec.msgpack.encode(snapshot))
    while len(data) > MAX_PIECE:
        yield frame(_MORE + data[:MAX_PIECE])
        data = data[MAX_PIECE:]
    yield frame(_LAST + data)


def read_header(data: bytes) -> tuple[int, int] | None:
    """Return the version and the generation that a header names; None if this is not a log.

    Raises:
        ValueError: The header is damaged.
    """
    if len(data) < HEADER_SIZE or not data.startswith(_MAGIC):
        return None
    _, version, generation = _HEADER.unpack_from(data)
    if _CHECK.pack(zlib.crc32(data[: _HEADER.size])) != data[_HEADER.size : HEADER_SIZE]:
        raise ValueError("the header is damaged")
    return version, generation


def read_snapshot(data: memoryview, version: int) -> tuple[Snapshot, int]:
    """Return the snapshot of a log and where it ends.

    Raises:
        ValueError: It is damaged.
    """
    pieces, end = _pieces(data) if version > 1 else _whole(data)
    try:
        return msgspec.msgpack.decode(pieces, type=Snapshot), end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise ValueError(f"the snapshot is not one of this version ({error})") from None


def _pieces(data: memoryview) -> tuple[bytes, int]:
    pieces, end, more = [], HEADER_SIZE, True
    while more:
        found = unframe(data, end)
        if found is None or found[0][:1] not in (_MORE, _LAST):
            raise ValueError("the snapshot is damaged")
        piece, end = found
        more = piece[:1] == _MORE
        pieces.append(piece[1:])
    return b"".join(pieces), end


def _whole(data: memoryview) -> tuple[memoryview, int]:
    found = unframe(data, HEADER_SIZE, MAX_VERSION_1)
    if found is None:
        raise ValueError("the snapshot is damaged")
    return found
