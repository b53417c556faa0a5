"""The log: what is cut, what is refused, and that a replay is the table it was made of."""

from __future__ import annotations

import errno
import fcntl
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

from rendezvous_async.backends.base import Condition, Delete, Put, Token
from rendezvous_async.backends.table import head as head_module
from rendezvous_async.backends.table import log as log_module
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
    unframe,
)
from rendezvous_async.backends.table.log import Log, LogInUseError
from rendezvous_async.backends.table.table import CommitId, Snapshot, Table
from rendezvous_async.errors import (
    RendezvousConnectionError,
    RendezvousSessionError,
    RendezvousStateError,
    RendezvousVersionError,
)

KEYS = ["a", "b/1", "b/2", "b/c/3"]


class Story:
    """Changes to a table, each with the record of it and the state that it led to."""

    def __init__(self) -> None:
        self.table = Table("epoch")
        self.start = self.table.snapshot()
        self.records: list[LogRecord] = []
        self.states: list[Snapshot] = [self.start]
        self._sessions: list[str] = []
        self._commits = 0

    def step(self, kind: int, key: int, value: bytes) -> None:
        name = KEYS[key % len(KEYS)]
        record: LogRecord
        match kind % 7:
            case 0:
                session = self.table.open_session(5.0, 0.0)
                self._sessions.append(session)
                record = Started(session, 5.0)
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


def write(path: Path, records: list[LogRecord], start: Snapshot | None = None) -> list[int]:
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


def test_a_damaged_head_is_told_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, [Raised(7)])
    for at, offset in ((9, 0), (head_module.HEADER_SIZE + 20, head_module.HEADER_SIZE)):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        (tmp_path / "damaged").write_bytes(data)
        with pytest.raises(RendezvousStateError, match=f"is damaged: the .* is damaged .offset {offset}, generation 0"):
            read(tmp_path / "damaged")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a letter to somebody, not a log")
    with pytest.raises(RendezvousStateError, match="not a log"):
        Log.open(str(path))


def of_version(version: int, data: bytes, tail: bytes = b"") -> bytes:
    """Return a log that says that it is of that version, with something behind it."""
    header = head_module._HEADER.pack(b"rdzvlog\n", version, 1)
    return header + head_module._CHECK.pack(zlib.crc32(header)) + data[head_module.HEADER_SIZE :] + tail


def test_a_log_of_version_0_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, [])
    path.write_bytes(of_version(0, path.read_bytes()))
    with pytest.raises(RendezvousStateError, match="is damaged: the header names version 0"):
        Log.open(str(path))


TAILS = [b"", b"\0" * 600, b"\xd7R\0", frame(b"later")[:-3], b"frames of another make"]


@pytest.mark.parametrize("version", [head_module.VERSIONS[-1] + 1, 99, 2**16 - 1])
@pytest.mark.parametrize("tail", TAILS, ids=["whole", "zeros", "a torn head", "a torn frame", "unknown"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_a_log_of_a_newer_version_is_refused_and_left_as_it_is(
    tmp_path: Path, version: int, tail: bytes, exclusive: bool
) -> None:
    """What this version would take for a torn frame, and cut, may be sound in a version that it does not know."""
    path = tmp_path / "log"
    write(path, [Raised(3)])
    newer = of_version(version, path.read_bytes(), tail)
    path.write_bytes(newer)
    for _ in range(2):
        with pytest.raises(RendezvousVersionError) as refused:
            Log.open(str(path), exclusive=exclusive)
        assert str(refused.value) == (
            f"{path} was written by a newer rendezvous_async (log version {version}, this one reads up to 2). "
            "Nothing was changed. Upgrade rendezvous_async here, or choose another directory"
        )
    assert path.read_bytes() == newer
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


def test_a_follower_of_a_log_refuses_the_newer_version_that_takes_its_place(tmp_path: Path) -> None:
    """As when a newer process compacts a directory that an older one still uses: that one reads and writes no more."""
    path = tmp_path / "log"
    write(path, [Raised(3)])
    log = Log.open(str(path))
    newer = of_version(3, path.read_bytes(), b"later")
    (tmp_path / "next").write_bytes(newer)
    os.rename(tmp_path / "next", path)
    for attempt in (log.read_new, log.reload, log.read_new):
        with pytest.raises(RendezvousVersionError, match="log version 3"):
            attempt()
        assert not log.hold(), "it must not write either"
    assert log.table.revision == 3
    log.close()
    assert path.read_bytes() == newer


def test_a_record_that_is_not_known_is_refused_and_never_cut(tmp_path: Path) -> None:
    """Only a new version of the log may have new records; in a sound frame of this one they are not torn, but wrong."""
    path = tmp_path / "log"
    write(path, [Raised(3)])
    wrong = path.read_bytes() + frame(msgspec.msgpack.encode([["later", 1]]))
    path.write_bytes(wrong)
    with pytest.raises(RendezvousStateError, match=r"a sound frame does not hold records.*'later'"):
        Log.open(str(path))
    assert path.read_bytes() == wrong


def test_later_fields_of_a_record_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, [])
    records = [["commit", [["put", "a", b"1", None, "later"]], [["a", None, "later"]], ["client", 1, 0, "later"], 7]]
    path.write_bytes(path.read_bytes() + frame(msgspec.msgpack.encode([*records, ["raise", 5, "later"]])))
    kept = read(path)
    assert kept.revision == 5
    assert [(entry.key, entry.value) for entry in kept.entries] == [("a", b"1")]


def test_a_symlink_in_the_place_of_the_log_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "real", [Raised(3)])
    (tmp_path / "log").symlink_to(tmp_path / "real")
    with pytest.raises(RendezvousConnectionError, match="cannot open the log"):
        Log.open(str(tmp_path / "log"))


def test_records_that_contradict_the_table_are_refused(tmp_path: Path) -> None:
    wrong: list[LogRecord] = [
        Committed((Put("a", b"1"),), (Condition("a", Token("epoch", 3)),)),
        Committed((Put("a", b"1", "no session"),)),
        Started("another id", 1.0),
        Ended("no session"),
    ]
    for number, record in enumerate(wrong):
        path = tmp_path / str(number)
        write(path, [record])
        with pytest.raises(RendezvousStateError, match="cannot have followed"):
            read(path)
        offsets = write(tmp_path / f"{number} later", [Raised(7), record])
        with pytest.raises(RendezvousStateError, match=f"cannot have followed revision 7 .offset {offsets[1]}, "):
            read(tmp_path / f"{number} later")


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
    records: list[LogRecord] = [Committed((Put(f"key{number}", value),)) for number in range(7)]
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
    log = Log.open(str(path))
    log.close()
    assert log.table.next_due() == 5.0
    with pytest.raises(RendezvousSessionError):
        log.table.commit([Put("a", b"1", "epoch.2")])


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow, as a full disk does; the record goes, the log stays."""
    path = tmp_path / "log"
    code = f"""
import resource, signal
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.table.frames import Committed
from rendezvous_async.backends.table.log import Log, LogInUseError
from rendezvous_async.backends.table.table import Table
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


# When it is worth a compaction, and what is left when something goes wrong.


def fill(log: Log, count: int, size: int = 1000) -> None:
    """Commit ``count`` values, each to a key of its own, and append that."""
    puts = [Put(f"fill/{log.table.revision}/{number}", b"x" * size) for number in range(count)]
    record = Committed(tuple(puts))
    log.table.commit(record.writes)
    log.append([record])


def test_a_log_is_long_when_its_records_outweigh_half_a_megabyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log_module._SMALL == 512 * 1024
    log = Log.open(str(tmp_path / "log"), sync=False)
    fill(log, 3)
    records = log._end - log._head_end
    for small, is_long in ((records, False), (records - 1, True)):
        monkeypatch.setattr(log_module, "_SMALL", small)
        assert log.is_long is is_long
    log.compact(log.table.snapshot())
    assert not log.is_long
    log.close()


def test_a_log_whose_snapshot_is_large_may_grow_as_much_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_SMALL", 2000)
    log = Log.open(str(tmp_path / "log"), sync=False)
    fill(log, 10)
    log.compact(log.table.snapshot())
    head = log._head_end
    assert 10_000 < head < log.table.size
    while log._end + 1100 <= 2 * head:
        log.append([Committed((Put("same", b"x" * 1000),))])
        assert not log.is_long
    log.append([Committed((Put("same", b"x" * 1200),))])
    assert log.is_long
    log.compact(log.table.snapshot())
    log.table.commit([Delete("fill/")])
    for _ in range(3):
        assert not log.is_long
        log.append([Committed((Put("same", b"x" * 900),))])
    assert log.is_long, "a snapshot of what there is now would be small"
    log.close()


def test_what_a_read_left_behind_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer, reader = Log.open(str(path)), Log.open(str(path))
    assert reader.unread == 0
    (whole,) = frames([Raised(9)])
    with path.open("ab") as file:
        file.write(whole + whole[:10])
    reader.read_new()
    assert (reader.unread, reader.table.revision) == (10, 9)
    for log in (writer, reader):
        log.close()


def test_one_holds_the_log_at_a_time_and_a_new_file_is_held_as_well(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    first, second = Log.open(path), Log.open(path)
    assert first.hold()
    assert not second.hold()
    first.compact(first.table.snapshot())
    assert not second.hold(), "what it has open is not the log any more"
    second.read_new()
    assert not second.hold(), "the new file is locked before it takes its place"
    first.let_go()
    first.let_go()
    assert second.hold()
    second.let_go()
    assert first.hold()
    first.reload()
    assert not second.hold(), "who reloads keeps what it holds"
    first.close()
    assert second.hold()
    second.close()


def test_who_finds_that_the_log_was_replaced_lets_go_of_the_old_file(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    first, second = Log.open(path), Log.open(path)
    first.compact(first.table.snapshot())
    descriptor = os.dup(second._fd)
    assert not second.hold()
    for log in (first, second):
        log.close()
    with os.fdopen(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)) as old:
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_a_log_that_became_shorter_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log.open(str(path))
    log.append([Raised(5)])
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(RendezvousStateError, match=f"shorter than what was read from it \\(offset {size - 1}, gen"):
        log.append([Raised(6)])
    log.close()


def test_damage_behind_what_was_read_stops_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log.open(str(path))
    (whole,) = frames([Raised(9)])
    with path.open("ab") as file:
        file.write(whole[:20] + b"\xff" + whole[21:])
    data = path.read_bytes()
    with pytest.raises(RendezvousStateError, match="a frame here is damaged"):
        log.append([Raised(6)])
    assert path.read_bytes() == data
    log.close()


def test_nothing_to_append_costs_no_write(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log.open(str(path))
    size = path.stat().st_size
    log.append([])
    assert path.stat().st_size == size
    log.close()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when half of it was written."""
    path = tmp_path / "log"
    log = Log.open(str(path))
    size = path.stat().st_size
    true = os.pwrite
    with monkeypatch.context() as patch:
        writes: list[int] = []

        def fail(fd: int, data: bytes, at: int) -> int:
            writes.append(len(data))
            if len(writes) > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return true(fd, data[:5], at)

        patch.setattr(os, "pwrite", fail)
        with pytest.raises(
            RendezvousConnectionError, match=rf"cannot write to the log {path}: No space left on device"
        ):
            log.append([Raised(7)])
    assert path.stat().st_size == size
    assert not log.broken
    log.append([Raised(8)])
    log.close()
    assert read(path).revision == 8


def test_a_compaction_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    log = Log.open(str(path))
    log.append([Raised(7)])
    data, descriptors = path.read_bytes(), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(RendezvousConnectionError, match="cannot compact the log"):
            log.compact(Table("other").snapshot())
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["log"]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    log.append([Raised(8)])
    log.close()
    assert read(path).revision == 8


def test_a_file_that_a_crash_left_beside_the_log_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "log.new").write_bytes(b"half a snapshot")
    log = Log.open(str(tmp_path / "log"))
    (tmp_path / "log.new").write_bytes(b"half a snapshot")
    log.compact(log.table.snapshot())
    log.close()
    assert os.listdir(tmp_path) == ["log"]


def test_a_directory_that_cannot_be_synced_breaks_the_log_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = Log.open(str(path))
    true = os.fsync
    with monkeypatch.context() as patch:

        def fail(fd: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{fd}"):
                raise OSError(errno.EIO, "Input/output error")
            true(fd)

        patch.setattr(os, "fsync", fail)
        with pytest.raises(RendezvousConnectionError, match="cannot sync the directory of the log"):
            log.compact(log.table.snapshot())
    assert log.broken
    with pytest.raises(RendezvousConnectionError, match="an earlier sync failed"):
        log.append([Raised(3)])
    log.compact(log.table.snapshot())
    assert not log.broken
    log.append([Raised(4)])
    log.close()
    assert read(path).revision == 4


def test_who_may_read_the_log_is_who_was_meant_to(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        log = Log.open(str(tmp_path / "log"), mode=0o660)
        assert os.stat(tmp_path / "log").st_mode & 0o777 == 0o660, "whatever the umask says"
        log.compact(log.table.snapshot())
        assert os.stat(tmp_path / "log").st_mode & 0o777 == 0o660
        log.close()
    finally:
        os.umask(before)


def test_each_compaction_is_a_generation(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path / "log"), epoch="mine")
    assert log.table.epoch == "mine"
    for generation in (1, 2, 3):
        assert f"generation={generation} bytes={os.stat(log.path).st_size}" in repr(log)
        assert head_module.read_header(log.path, (tmp_path / "log").read_bytes()) == (2, generation)
        log.compact(log.table.snapshot())
    log.close()
    log = Log.open(str(tmp_path / "log"))
    assert "generation=4" in repr(log)
    log.close()


def test_a_reader_begins_no_log(tmp_path: Path) -> None:
    with pytest.raises(RendezvousConnectionError, match="No such file"):
        Log.open(str(tmp_path / "log"), writer=False)
    assert os.listdir(tmp_path) == []
    write(tmp_path / "log", [Raised(3)])
    with (tmp_path / "log").open("ab") as file:
        file.write(b"\xd7R")
    size = (tmp_path / "log").stat().st_size
    log = Log.open(str(tmp_path / "log"), writer=False)
    assert (log.table.revision, (tmp_path / "log").stat().st_size) == (3, size), "nor does it cut one"
    log.close()


def test_a_log_in_its_own_directory_keeps_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    directory = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "damaged").write_bytes(b"x" * 100)
    for _ in range(3):
        log = Log.open(str(tmp_path / "log"), directory=directory)
        log.reload()
        log.read_new()
        log.compact(log.table.snapshot())
        log.close()
        with pytest.raises(RendezvousStateError):
            Log.open(str(tmp_path / "damaged"), directory=directory)
        exclusive = Log.open(str(tmp_path / "log"), directory=directory, exclusive=True)
        with pytest.raises(RendezvousStateError, match="in use"):
            Log.open(str(tmp_path / "log"), directory=directory, exclusive=True)
        exclusive.close()
    os.close(directory)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("whole", [True, False], ids=["directory", "file"])
@pytest.mark.parametrize("compacts", [True, False])
def test_an_exclusive_log_notices_that_it_was_moved_away(tmp_path: Path, whole: bool, compacts: bool) -> None:
    place = tmp_path / "data"
    log = Log.open(str(place / "log"), exclusive=True)
    log.append([Raised(3)])
    (place if whole else place / "log").rename(tmp_path / "moved")
    with pytest.raises(RendezvousStateError, match="was moved, removed or replaced"):
        if compacts:
            log.compact(log.table.snapshot())
        else:
            log.append([Raised(4)])
    assert log.broken
    log.close()


def test_a_log_that_is_not_exclusive_is_found_where_its_directory_went(tmp_path: Path) -> None:
    place = tmp_path / "data"
    log = Log.open(str(place / "log"))
    place.rename(tmp_path / "moved")
    log.append([Raised(3)])
    assert log.hold()
    log.compact(log.table.snapshot())
    log.close()
    assert os.listdir(tmp_path / "moved") == ["log"]


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(RendezvousStateError, match="is not a regular file"):
        Log.open(str(tmp_path / "log"))


def test_a_snapshot_whose_sessions_are_missing_is_damage(tmp_path: Path) -> None:
    table = Table("epoch")
    table.commit([Put("a", b"", table.open_session(5, 0))])
    path = tmp_path / "log"
    path.write_bytes(b"".join(head_module.head_of_log(1, msgspec.structs.replace(table.snapshot(), sessions=()))))
    with pytest.raises(RendezvousStateError, match=r"has a key of session 'epoch\.1', which is not in it"):
        Log.open(str(path))


def test_what_was_read_is_no_change(tmp_path: Path) -> None:
    """Watchers of the old table are told of the new one as a whole."""
    path = tmp_path / "log"
    write(path, [Committed((Put("a", b""),))])
    log = Log.open(str(path))
    log.close()
    assert len(log.table) == 1
    assert not log.table.has_changed


def test_a_directory_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "log"
    with pytest.raises(RendezvousConnectionError, match=f"cannot open the directory of the log {path}: "):
        Log.open(str(path))


def test_a_reload_reads_everything_again_and_cuts_what_a_dead_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log, other = Log.open(str(path)), Log.open(str(path))
    other.append([Raised(9)])
    (half,) = frames([Raised(10)])
    with path.open("ab") as file:
        file.write(half[:-1])
    table = log.table
    log.reload()
    assert log.table is not table
    assert (log.table.revision, log.unread) == (9, 0)
    assert path.stat().st_size == other._end
    assert other.hold(), "who did not hold it does not now"
    for each in (log, other):
        each.close()


def test_an_exclusive_log_can_be_reloaded_and_stays_its_owners(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    log = Log.open(path, exclusive=True)
    log.append([Raised(9)])
    log.reload()
    assert log.table.revision == 9
    with pytest.raises(LogInUseError):
        Log.open(path, exclusive=True)
    follower = Log.open(path, writer=False)
    assert not follower.hold()
    for each in (log, follower):
        each.close()


@pytest.mark.parametrize("place", ["another file", "the same file"])
@pytest.mark.parametrize("change", ["longer", "shorter", "another generation"])
def test_a_reader_notices_that_the_log_is_another_one(tmp_path: Path, place: str, change: str) -> None:
    """Somebody has put back a copy: what was read of the old one must not be continued with the new one."""
    path, copy = tmp_path / "log", tmp_path / "copy"
    write(path, [Raised(3), Raised(5)])
    write(copy, [Raised(4)] if change == "shorter" else [Raised(4), Raised(6), Raised(7)])
    if change == "another generation":
        write(copy, [Raised(8), Raised(9), Raised(10)], read(copy))
    expected = read(copy).revision
    reader = Log.open(str(path), writer=False)
    if place == "another file":
        copy.rename(path)
    else:
        path.write_bytes(copy.read_bytes())
    if (place, change) == ("the same file", "longer"):
        assert not reader.read_new(), "that cannot be told"
    else:
        assert reader.read_new()
        assert reader.table.revision == expected
    reader.close()


def test_a_server_whose_directory_is_moved_while_it_compacts_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "data"
    log = Log.open(str(place / "log"), exclusive=True)
    true = os.fsync

    def move(fd: int) -> None:
        true(fd)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            place.rename(tmp_path / "moved")

    monkeypatch.setattr(os, "fsync", move)
    with pytest.raises(RendezvousStateError, match="was moved, removed or replaced"):
        log.compact(log.table.snapshot())
    assert log.broken
    log.close()
