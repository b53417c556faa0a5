"""The head of a log: its header, and the snapshot behind it, in pieces."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest

from rendezvous_async.backends.base import Put
from rendezvous_async.backends.table import head as module
from rendezvous_async.backends.table.frames import MAX_FRAME, frame
from rendezvous_async.backends.table.head import HEADER_SIZE, head_of_log, read_header, read_snapshot
from rendezvous_async.backends.table.table import Table

TABLE = Table("epoch")
TABLE.commit([Put(f"key/{number}", b"x" * 20) for number in range(10)])
SNAPSHOT = TABLE.snapshot()
ENCODED = msgspec.msgpack.encode(SNAPSHOT)


def header(version: int = 2, generation: int = 7, magic: bytes = b"rdzvlog\n") -> bytes:
    text = struct.pack(">8sHxxQ", magic, version, generation)
    return text + struct.pack(">I", zlib.crc32(text))


def test_a_log_begins_with_a_header_and_its_snapshot() -> None:
    assert [*head_of_log(7, SNAPSHOT)] == [header(), frame(b"\0" + ENCODED)]
    assert len(header()) == HEADER_SIZE == 24
    data = b"".join(head_of_log(7, SNAPSHOT)) + b"records"
    assert read_header("log", data) == read_header("log", header()) == (2, 7)
    assert read_snapshot(memoryview(data), 2) == (SNAPSHOT, len(data) - len(b"records"))


@pytest.mark.parametrize("pieces", [1, 2, 3, 4])
def test_a_large_snapshot_is_cut_into_full_pieces(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    for size in ((len(ENCODED) + pieces - 1) // pieces, len(ENCODED) // pieces + 1):
        monkeypatch.setattr(module, "MAX_PIECE", size)
        cut = [ENCODED[start : start + size] for start in range(0, len(ENCODED), size)]
        parts = [*head_of_log(7, SNAPSHOT)]
        assert parts[1:] == [*(frame(b"\1" + piece) for piece in cut[:-1]), frame(b"\0" + cut[-1])]
        data = memoryview(b"".join(parts) + b"records")
        assert read_snapshot(data, 2) == (SNAPSHOT, len(data) - len(b"records"))


def test_a_piece_is_smaller_than_a_frame_may_be() -> None:
    assert module.MAX_PIECE == MAX_FRAME // 2
    assert module.MAX_VERSION_1 == 1024**3


def test_the_snapshot_of_version_1_was_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    data = memoryview(header(1) + frame(ENCODED) + b"records")
    assert read_snapshot(data, 1) == (SNAPSHOT, len(data) - len(b"records"))
    monkeypatch.setattr(module, "MAX_VERSION_1", len(ENCODED) - 1)
    with pytest.raises(ValueError, match="the snapshot is damaged"):
        read_snapshot(data, 1)


@pytest.mark.parametrize("length", [0, 8, HEADER_SIZE - 1])
def test_what_is_too_short_is_no_log(length: int) -> None:
    assert read_header("log", header()[:length]) is None


def test_what_begins_otherwise_is_no_log() -> None:
    assert read_header("log", header(magic=b"otherlog")) is None


@pytest.mark.parametrize("at", range(8, HEADER_SIZE))
def test_a_header_with_a_wrong_bit_is_damaged(at: int) -> None:
    data = bytearray(header())
    data[at] ^= 1
    with pytest.raises(ValueError, match="the header is damaged"):
        read_header("log", bytes(data))


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((), "damaged"),
        ((b"\2" + ENCODED,), "damaged"),
        ((b"",), "damaged"),
        ((b"\1" + ENCODED[:9],), "damaged"),
        ((b"\0" + ENCODED[:9],), "not one of this version"),
        ((b"\0" + ENCODED + b"x",), "not one of this version"),
        ((b"\0" + msgspec.msgpack.encode(["a"]),), "not one of this version"),
    ],
)
@pytest.mark.parametrize("rest", [b"", b"rest"])
def test_a_snapshot_that_is_not_whole_is_damaged(pieces: tuple[bytes, ...], rest: bytes, why: str) -> None:
    data = memoryview(header() + b"".join(map(frame, pieces)) + rest)
    with pytest.raises(ValueError, match=f"the snapshot is {why}"):
        read_snapshot(data, 2)
