"""Frames to the byte: how long they may be, what is torn and what is damage, and what a replay accepts."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import msgspec
import pytest

from rendezvous_async.backends.base import Condition, Delete, Put, Token
from rendezvous_async.backends.table import frames as module
from rendezvous_async.backends.table.frames import (
    MAX_FRAME,
    Committed,
    Ended,
    Forgotten,
    LogRecord,
    Raised,
    Started,
    frame,
    frames,
    is_torn,
    read_records,
    replay,
    unframe,
)
from rendezvous_async.backends.table.table import CommitId, Table
from rendezvous_async.errors import RendezvousStateError

HEAD = 14
"""Bytes before the payload: mark, length, two checksums."""
PAYLOAD = bytes(range(1, 51))


def found(data: bytes | memoryview, start: int = 0) -> tuple[bytes, int] | None:
    """Return the payload of a frame and where it ends."""
    whole = unframe(memoryview(data), start)
    return None if whole is None else (bytes(whole[0]), whole[1])


def test_what_a_frame_is_made_of() -> None:
    head = b"\xd7R" + struct.pack(">II", len(PAYLOAD), zlib.crc32(PAYLOAD))
    assert frame(PAYLOAD) == head + struct.pack(">I", zlib.crc32(head)) + PAYLOAD + b"\n"
    assert found(frame(PAYLOAD)) == (PAYLOAD, HEAD + len(PAYLOAD) + 1)
    assert found(frame(b"")) == (b"", HEAD + 1)


def test_a_frame_is_found_where_it_begins() -> None:
    data = memoryview(b"before" + frame(PAYLOAD) + frame(b"next"))
    middle = 6 + HEAD + len(PAYLOAD) + 1
    assert found(data, 6) == (PAYLOAD, middle)
    assert found(data, middle) == (b"next", len(data))
    for wrong in (0, 5, 7, middle - 1, len(data), len(data) + 5):
        assert unframe(data, wrong) is None


def test_a_frame_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FRAME == 32 * 1024 * 1024
    data = memoryview(frame(PAYLOAD))
    assert unframe(data, 0, 50) is not None
    assert unframe(data, 0, 49) is None
    monkeypatch.setattr(module, "MAX_FRAME", 50)
    assert frame(PAYLOAD) == data
    with pytest.raises(ValueError, match="at most 50 bytes, not 51"):
        frame(PAYLOAD + b"x")


@pytest.mark.parametrize("cut", range(HEAD + len(PAYLOAD) + 1))
def test_a_frame_that_is_cut_short_is_torn(cut: int) -> None:
    tail = memoryview(frame(PAYLOAD)[:cut])
    assert unframe(tail) is None
    if cut:
        assert is_torn(tail, 0)


def spoiled(at: int, data: bytes = b"") -> memoryview:
    """Return a sound frame with one bit changed."""
    whole = bytearray(data or frame(PAYLOAD))
    whole[at] ^= 1
    return memoryview(whole)


@pytest.mark.parametrize("at", range(HEAD + len(PAYLOAD) + 1))
def test_a_whole_frame_with_a_wrong_bit_is_damage(at: int) -> None:
    tail = spoiled(at)
    assert unframe(tail) is None
    assert not is_torn(tail, 0)


def zeroed(data: bytes, start: int, end: int) -> memoryview:
    return memoryview(data[:start] + bytes(max(0, min(end, len(data)) - start)) + data[end:])


def test_a_damaged_head_is_no_torn_one_though_nothing_follows() -> None:
    for length in (HEAD, HEAD + 1):
        assert not is_torn(spoiled(3, frame(PAYLOAD)[:length]), 0)
    assert is_torn(spoiled(3, frame(PAYLOAD)[: HEAD - 1]), 0), "too short to tell"


def test_what_begins_otherwise_is_no_frame_though_its_checksums_are_right() -> None:
    head = b"no" + struct.pack(">II", len(PAYLOAD), zlib.crc32(PAYLOAD))
    assert found(head + struct.pack(">I", zlib.crc32(head)) + PAYLOAD + b"\n") is None


def test_a_damaged_frame_that_ends_with_a_sector_is_not_torn() -> None:
    tail = spoiled(HEAD + 5)
    assert not is_torn(tail, 512 - len(tail))
    assert not is_torn(memoryview(bytes(tail) + bytes(512)), 512 - len(tail))


LARGE = frame(bytes(1 + number % 255 for number in range(2000)))


@pytest.mark.parametrize("offset", [0, 100, 512, 1000])
def test_a_last_frame_that_lacks_a_sector_is_torn(offset: int) -> None:
    """Sectors are those of the file: the frame begins somewhere in one of them."""
    first = 512 - offset % 512
    sectors = [(0, first), *((start, start + 512) for start in range(first, len(LARGE), 512))]
    for start, end in sectors:
        tail = zeroed(LARGE, start, end)
        assert is_torn(tail, offset), (start, end)
        assert is_torn(memoryview(bytes(tail) + bytes(700)), offset), "space that was given to the file, and no more"
        assert not is_torn(memoryview(bytes(tail) + frame(b"more")), offset), "a later frame: this one was acknowledged"
        whole_head = start > 0
        assert is_torn(memoryview(bytes(tail) + bytes(700) + b"x"), offset) is not whole_head, "where it ends is known"


@pytest.mark.parametrize("offset", [0, 100])
def test_zeros_that_are_no_whole_sector_are_damage(offset: int) -> None:
    first = 512 - offset % 512
    for start, end in ((first, first + 511), (first + 1, first + 512), (first + 256, first + 700), (1, first)):
        assert not is_torn(zeroed(LARGE, start, end), offset)


def test_nothing_but_zeros_is_torn() -> None:
    for length in (1, HEAD - 1, HEAD, 512, 5000):
        assert is_torn(memoryview(bytes(length)), 77)


def test_a_frame_behind_what_cannot_be_read_makes_it_damage() -> None:
    half = bytes(zeroed(LARGE, 12, 524))  # Its first sector ends in its head.
    assert is_torn(memoryview(half), 500)
    assert not is_torn(memoryview(half + frame(b"more")), 500)
    for between in (b"", b"\xd7R", b"\xd7R and more"):
        tail = bytes(600) + between + frame(PAYLOAD)
        assert not is_torn(memoryview(tail), 0)
        assert is_torn(memoryview(tail[:-1]), 0)


# Records


def put(key: str, size: int = 0) -> LogRecord:
    return Committed((Put(key, b"v" * size),))


def read(parts: Sequence[bytes]) -> list[list[LogRecord]]:
    found = []
    for part in parts:
        payload, end = unframe(memoryview(part)) or (memoryview(b""), 0)
        assert end == len(part)
        found.append(read_records(payload))
    return found


def test_records_are_one_frame_or_as_few_as_halving_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [put(f"key{number}", 100) for number in range(5)]
    whole = len(msgspec.msgpack.encode(records))
    monkeypatch.setattr(module, "MAX_FRAME", whole)
    assert read([*frames(records)]) == [records]
    monkeypatch.setattr(module, "MAX_FRAME", whole - 1)
    assert read([*frames(records)]) == [records[:2], records[2:]]
    monkeypatch.setattr(module, "MAX_FRAME", len(msgspec.msgpack.encode(records[:1])))
    assert read([*frames(records)]) == [[record] for record in records]
    monkeypatch.setattr(module, "MAX_FRAME", len(msgspec.msgpack.encode(records[:1])) - 1)
    with pytest.raises(ValueError, match="a frame of the log holds at most"):
        list(frames(records))


@pytest.mark.parametrize("record", [Committed(()), Started("s", 1.0), Ended("s"), Raised(1), Forgotten("c")], ids=repr)
def test_a_record_is_what_was_written(record: LogRecord) -> None:
    assert read_records(memoryview(msgspec.msgpack.encode([record]))) == [record]
    with pytest.raises(AttributeError):
        setattr(record, record.__struct_fields__[0], None)


def test_what_are_no_records_is_refused() -> None:
    for wrong in (b"", b"\xc1", msgspec.msgpack.encode([["unknown", 1]]), msgspec.msgpack.encode(5)):
        with pytest.raises(RendezvousStateError, match="does not hold records of this version"):
            read_records(memoryview(wrong))


def test_a_replay_does_everything_again() -> None:
    table, again = Table("epoch"), Table("epoch")
    session = table.open_session(5.0, 10.0, "ns/team")
    id = CommitId("client", 1)
    table.commit([Put("a", b"1", session), Put("b", b"2")], (), id)
    table.forget("client")
    other = table.open_session(7.0, 10.0)
    table.end_session(other)
    table.raise_revision(100)
    table.commit([Delete("b")], [Condition("b", Token("epoch", 1))], CommitId("client", 2))
    replay(
        again,
        [
            Started(session, 5.0),
            Committed((Put("a", b"1", session), Put("b", b"2")), (), id),
            Forgotten("client"),
            Started(other, 7.0),
            Ended(other),
            Raised(100),
            Committed((Delete("b"),), (Condition("b", Token("epoch", 1)),), CommitId("client", 2)),
        ],
        10.0,
    )
    assert again.snapshot() == table.snapshot()
    assert again.next_due() == table.next_due() == 15.0


def test_a_record_that_cannot_have_followed_is_named() -> None:
    table = Table("epoch")
    long = Committed((Put("k" * 500, b"", "no session"),))
    with pytest.raises(RendezvousStateError) as caught:
        replay(table, [Raised(7), long, Raised(9)], 0.0)
    assert str(caught.value) == f"{str(long)[:200]} cannot have followed revision 7"
