"""The log: what is cut, what is refused, and that a replay is the table it was made of."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous_async.backends import head as head_module
from rendezvous_async.backends.base import Condition, Delete, Put, Token
from rendezvous_async.backends.frames import (
    MAX_FRAME,
    Committed,
    Ended,
    Forgotten,
    Opened,
    Raised,
    Record,
    frame,
    frames,
    is_torn,
    unframe,
)
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.table import CommitId, Snapshot, Table
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError, RendezvousStateError

KEYS = ["a", "b/1", "b/2", "b/c/3"]


class Story:
    """Changes to a table, each with the record of it and the state that it led to."""

    def __init__(self) -> None:
        self.table = Table("epoch")
        self.start = self.table.snapshot()
        self.records: list[Record] = []
        self.states: list[Snapshot] = [self.start]
        self._sessions: list[str] = []
        self._commits = 0

    def step(self, kind: int, key: int, value: bytes) -> None:
        name = KEYS[key % len(KEYS)]
        record: Record
        match kind % 7:
            case 0:
                session = self.table.open_session(5.0, 0.0)
                self._sessions.append(session)
                record = Opened(session, 5.0)
            case 1 if self._sessions:
                session = self._sessions.pop(key % len(self._sessions))
                self.table.end_session(session)
                record = Ended(session)
            case 2:
                self.table.raise_revision(self.table.revision + key)
                record = Raised(self.table.revision)
            case 3:
                self.table.forget("client")
                record = Forgotten("client")
            case 4:
                self._commits += 1
                record = Committed((Delete("b/"),), (), CommitId("client", self._commits, self._commits - 1))
                self.table.commit(record.writes, record.when, record.id)
            case _:
                entry = self.table.get(name)
                session_id = self._sessions[key % len(self._sessions)] if self._sessions and kind % 2 else None
                record = Committed(
                    (Put(name, value, session_id),), (Condition(name, None if entry is None else entry.token),)
                )
                assert self.table.commit(record.writes, record.when).won
        self.records.append(record)
        self.states.append(self.table.snapshot())


values = st.binary(min_size=1, max_size=40)
steps = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30), values), min_size=1, max_size=12)


def tell(moves: list[tuple[int, int, bytes]]) -> Story:
    story = Story()
    for move in moves:
        story.step(*move)
    return story


def write(path: Path, records: list[Record], start: Snapshot | None = None) -> list[int]:
    """Write each record as a frame of its own; return where each frame begins, and the end."""
    log = Log.open(str(path), epoch="epoch", sync=False)
    if start is not None:
        log.compact(start)
    offsets = [path.stat().st_size]
    for record in records:
        log.append([record])
        offsets.append(path.stat().st_size)
    log.close()
    return offsets


def read(path: Path) -> Snapshot:
    log = Log.open(str(path))
    log.close()
    return log.table.snapshot()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return paths of logs that do not exist yet."""
    root = tmp_path_factory.mktemp("logs")
    count = 0

    def fresh() -> Path:
        nonlocal count
        count += 1
        (root / str(count)).mkdir()
        return root / str(count) / "log"

    return fresh


@given(steps)
@settings(max_examples=10, deadline=None)
def test_every_cut_gives_the_state_of_a_prefix(place: Callable[[], Path], moves: list[tuple[int, int, bytes]]) -> None:
    story = tell(moves)
    path = place()
    offsets = write(path, story.records)
    whole = path.read_bytes()
    assert read(path) == story.states[-1]
    for cut in range(offsets[0], len(whole)):
        path.write_bytes(whole[:cut])
        complete = sum(offset <= cut for offset in offsets) - 1
        assert read(path) == story.states[complete]
        assert path.stat().st_size == offsets[complete]
    for cut in range(0, offsets[0], 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(RendezvousStateError):
            read(path)


@given(steps, st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_is_refused(
    place: Callable[[], Path], moves: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    story = tell(moves)
    path = place()
    write(path, story.records)
    whole = bytearray(path.read_bytes())
    for bit in data.draw(st.lists(st.integers(0, len(whole) * 8 - 1), min_size=1, max_size=30, unique=True)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(RendezvousStateError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == damaged, "a refused log must be left as it is"


@given(steps, st.data())
@settings(max_examples=30, deadline=None)
def test_snapshot_and_log_equal_log(
    place: Callable[[], Path], moves: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    story = tell(moves)
    middle = data.draw(st.integers(0, len(story.records)))
    path = place()
    write(path, story.records[middle:], story.states[middle])
    assert read(path) == story.states[-1]


@given(st.binary(min_size=1, max_size=4000), st.integers(0, 600), st.data())
@settings(max_examples=200, deadline=None)
def test_zeroed_sectors_of_the_last_frame_are_torn(payload: bytes, offset: int, data: st.DataObject) -> None:
    whole = frame(payload)
    sectors = range(offset // 512, (offset + len(whole) - 1) // 512 + 1)
    lost = data.draw(st.sets(st.sampled_from(sectors), min_size=1))
    torn = bytearray(whole)
    for sector in lost:
        begin, end = max(sector * 512 - offset, 0), min(sector * 512 + 512 - offset, len(whole))
        torn[begin:end] = bytes(end - begin)
    if torn != whole:
        assert unframe(memoryview(torn)) is None
        assert is_torn(memoryview(torn), offset)
        following = torn + frame(b"more")
        assert not is_torn(memoryview(following), offset), "a sound frame behind it: this is no torn write"


def test_zeros_behind_the_last_frame_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    offsets = write(path, [Raised(7)])
    with path.open("ab") as file:
        file.write(bytes(5000))
    assert read(path).revision == 7
    assert path.stat().st_size == offsets[-1]


def test_damage_names_the_file_the_offset_and_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    offsets = write(path, [Raised(7), Raised(8)])
    data = bytearray(path.read_bytes())
    data[offsets[0] + 16] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(RendezvousStateError, match=rf"{path} is damaged.*offset {offsets[0]}.*move it away"):
        read(path)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a letter to somebody, not a log")
    with pytest.raises(RendezvousStateError, match="not a log"):
        Log.open(str(path))
    path.unlink()
    write(path, [])
    data = bytearray(path.read_bytes())
    header = head_module._HEADER.pack(b"rdzvlog\n", 99, 1)
    data[: head_module.HEADER_SIZE] = header + head_module._CHECK.pack(zlib.crc32(header))
    path.write_bytes(data)
    with pytest.raises(RendezvousStateError, match="version 99"):
        Log.open(str(path))


def test_a_symlink_in_the_place_of_the_log_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "real", [Raised(3)])
    (tmp_path / "log").symlink_to(tmp_path / "real")
    with pytest.raises(RendezvousConnectionError, match="cannot open the log"):
        Log.open(str(tmp_path / "log"))


def test_records_that_contradict_the_table_are_refused(tmp_path: Path) -> None:
    wrong: list[Record] = [
        Committed((Put("a", b"1"),), (Condition("a", Token("epoch", 3)),)),
        Committed((Put("a", b"1", "no session"),)),
        Opened("another id", 1.0),
        Ended("no session"),
    ]
    for number, record in enumerate(wrong):
        path = tmp_path / str(number)
        write(path, [record])
        with pytest.raises(RendezvousStateError, match="cannot have followed"):
            read(path)


def test_another_log_follows_appends_and_compaction(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    writer, reader = Log.open(path), Log.open(path)
    assert reader.table.epoch == writer.table.epoch
    assert not reader.read_new()

    def change(value: bytes) -> None:
        record = Committed((Put("key", value),))
        writer.table.commit(record.writes)
        writer.append([record])

    change(b"1")
    assert not reader.read_new()
    assert reader.table.take_changed() == ["key"]
    assert reader.table.snapshot() == writer.table.snapshot()
    for number in range(3):
        change(b"before %d" % number)
        writer.compact(writer.table.snapshot())
        change(b"after %d" % number)
    assert reader.read_new(), "a compacted file is a new table"
    assert reader.table.snapshot() == writer.table.snapshot()
    assert not reader.read_new()
    reader.append([Committed((Put("key", b"theirs"),))])
    assert not writer.read_new()
    entry = writer.table.get("key")
    assert entry is not None
    assert entry.value == b"theirs"
    for log in (writer, reader):
        log.close()


def test_a_reader_leaves_an_unfinished_frame_to_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer, reader = Log.open(str(path)), Log.open(str(path))
    (whole,) = frames([Raised(9)])
    with path.open("ab") as file:
        file.write(whole[:10])
        file.flush()
        assert not reader.read_new()
        assert reader.table.revision == 0
        file.write(whole[10:])
    assert not reader.read_new()
    assert reader.table.revision == 9
    with path.open("ab") as file:
        file.write(whole[:-1])
    writer.read_new()
    writer.append([Raised(12)])
    assert not reader.read_new()
    assert reader.table.revision == 12
    for log in (writer, reader):
        log.close()


def test_records_too_many_for_one_frame_make_several(tmp_path: Path) -> None:
    value = b"v" * (MAX_FRAME // 5)
    records: list[Record] = [Committed((Put(f"key{number}", value),)) for number in range(7)]
    path = tmp_path / "log"
    log = Log.open(str(path))
    log.append(records)
    assert log.is_long
    with pytest.raises(ValueError, match="holds at most"):
        log.append([Committed((Put("key", b"v" * MAX_FRAME),))])
    log.close()
    assert len(read(path).entries) == 7


@given(st.integers(1, 400), steps)
@settings(max_examples=30, deadline=None)
def test_a_snapshot_spans_frames(place: Callable[[], Path], piece: int, moves: list[tuple[int, int, bytes]]) -> None:
    """Large ones are cut into pieces; here pieces are small instead."""
    story = tell(moves)
    path = place()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_module, "MAX_PIECE", piece)
        write(path, [Raised(1000)], story.states[-1])
    assert read(path) == msgspec.structs.replace(story.states[-1], revision=1000)


def test_a_snapshot_that_lacks_a_piece_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "MAX_PIECE", 40)
    path = tmp_path / "log"
    story = tell([(5, number, b"x" * 30) for number in range(4)])
    write(path, [], story.states[-1])
    pieces = [*head_module.head_of_log(2, story.states[-1])]
    assert len(pieces) > 3
    assert b"".join(pieces) == path.read_bytes()
    for number in range(1, len(pieces)):
        path.write_bytes(b"".join(pieces[:number] + pieces[number + 1 :]))
        with pytest.raises(RendezvousStateError, match="snapshot"):
            read(path)


VERSION_1 = bytes.fromhex(
    "72647a766c6f670a000100000000000000000002e44a2c49d7520000005b69309e58a517482798a565706f63680300019194a3612f31c403"
    "6f6e6592a565706f636801af65706f63682e31406e732f7465616d9192a4676f6e65039192af65706f63682e31406e732f7465616dcb4014"
    "00000000000081a6636c69656e748101010ad752000000268e58ce89e25630569194a6636f6d6d69749194a3707574a56c61746572c40374"
    "776fc09093a6636c69656e7402010a"
)


def test_a_log_of_version_1_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(VERSION_1)
    log = Log.open(str(path))
    assert [(entry.key, entry.value, entry.session) for entry in log.table.snapshot().entries] == [
        ("a/1", b"one", "epoch.1@ns/team"),
        ("later", b"two", None),
    ]
    log.append([Raised(7)])
    kept = read(path)
    assert kept.revision == 7
    log.compact(kept)
    log.close()
    assert path.read_bytes().startswith(b"rdzvlog\n\0\2")
    assert read(path) == kept


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "data" / "log")
    first = Log.open(path, exclusive=True)
    assert os.stat(tmp_path / "data").st_mode & 0o777 == 0o700
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(RendezvousStateError, match="in use"):
        Log.open(path, exclusive=True)
    first.close()
    first.close()
    Log.open(path, exclusive=True).close()


def test_a_session_has_its_full_ttl_after_a_replay(tmp_path: Path) -> None:
    path = tmp_path / "log"
    story = Story()
    story.step(0, 0, b"x")
    write(path, story.records)
    log = Log.open(str(path), now=100.0)
    log.close()
    assert log.table.next_due() == 105.0
    with pytest.raises(RendezvousSessionError):
        log.table.commit([Put("a", b"1", "epoch.2")])


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow, as a full disk does; the record goes, the log stays."""
    path = tmp_path / "log"
    code = f"""
import resource, signal
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.frames import Committed
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.table import Table
from rendezvous_async.errors import RendezvousConnectionError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = Log.open({str(path)!r})
table = Table("other")
table.commit([Put("large", b"x" * 1000)])
log.append([Committed((Put("kept", b"1"),))])
size = log._end
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        log.append([Committed((Put("lost", b"x" * 1000),))])
    except RendezvousConnectionError as error:
        assert "cannot write to the log" in str(error), error
    else:
        raise AssertionError("written")
    assert not log.broken
    try:
        log.compact(table.snapshot())
    except RendezvousConnectionError as error:
        assert "cannot compact the log" in str(error), error
    else:
        raise AssertionError("compacted")
    assert not log.broken
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append([Committed((Put("later", b"2"),))])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    assert [entry.key for entry in read(path).entries] == ["kept", "later"]
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_after_a_failed_sync_only_a_new_file_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "log"
    log = Log.open(str(path))

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(RendezvousConnectionError, match="Input/output error"):
            if call == "fdatasync":
                log.append([Raised(3)])
            else:
                log.compact(log.table.snapshot())
    assert log.broken is (call == "fdatasync")
    if log.broken:
        with pytest.raises(RendezvousConnectionError, match="earlier sync failed"):
            log.append([Raised(4)])
        log.reload()
        log.compact(log.table.snapshot())
    assert not log.broken
    log.append([Raised(5)])
    log.close()
    assert read(path).revision == 5
    assert sorted(os.listdir(tmp_path)) == ["log"]
