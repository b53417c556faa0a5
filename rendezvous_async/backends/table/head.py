"""The head of a log, without any file: a header, then the snapshot that the log begins with.

    magic (8)  version (2)  zeros (2)  generation (8)  CRC-32 of these twenty bytes (4)

The version covers everything in the file. The header never changes, so that every reader can read the version. Readers
ignore unknown fields at the end of a record; a record or field that must not be ignored needs a new version. A writer
appends records of the file's own version.

A snapshot may exceed the size of a frame, so it is split into pieces, one per frame. The first byte of each piece says
whether another follows. Version 1, with the whole snapshot in one frame, can still be read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from rendezvous_async.backends.table.frames import frame, unframe
from rendezvous_async.backends.table.table import Snapshot
from rendezvous_async.errors import RendezvousVersionError

__all__ = ["HEADER_SIZE", "VERSIONS", "head_of_log", "read_header", "read_snapshot"]

VERSIONS = (1, 2)
"""The versions that can be read; the last one is written."""
MAX_PIECE = 16 * 1024 * 1024
MAX_VERSION_1 = 1024 * 1024 * 1024
_MAGIC = b"rdzvlog\n"
_HEADER = struct.Struct(">8sHxxQ")
_CHECK = struct.Struct(">I")
HEADER_SIZE = _HEADER.size + _CHECK.size
_MORE, _LAST = b"\1", b"\0"


def head_of_log(generation: int, snapshot: Snapshot) -> Iterator[bytes]:
    """Return the head of a log in pieces, to be written in order."""
    header = _HEADER.pack(_MAGIC, VERSIONS[-1], generation)
    yield header + _CHECK.pack(zlib.crc32(header))
    data = memoryview(msgspec.msgpack.encode(snapshot))
    while len(data) > MAX_PIECE:
        yield frame(_MORE + data[:MAX_PIECE])
        data = data[MAX_PIECE:]
    yield frame(_LAST + data)


def read_header(path: str, data: bytes) -> tuple[int, int] | None:
    """Return the version and the generation in the header of the log at ``path``; None if it is not a log.

    Raises:
        ValueError: The header is damaged.
        RendezvousVersionError: A newer version wrote the log.
    """
    if len(data) < HEADER_SIZE or not data.startswith(_MAGIC):
        return None
    _, version, generation = _HEADER.unpack_from(data)
    if _CHECK.pack(zlib.crc32(data[: _HEADER.size])) != data[_HEADER.size : HEADER_SIZE]:
        raise ValueError("the header is damaged")
    if version < VERSIONS[0]:
        raise ValueError(f"the header names version {version}")
    if version > VERSIONS[-1]:
        raise RendezvousVersionError(
            f"{path} was written by a newer rendezvous_async (log version {version}, this one reads up to "
            f"{VERSIONS[-1]}). Nothing was changed. Upgrade rendezvous_async here, or choose another directory"
        )
    return version, generation


def read_snapshot(data: memoryview, version: int) -> tuple[Snapshot, int]:
    """Return the snapshot of a log and the offset after it.

    Raises:
        ValueError: The snapshot is damaged.
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
