"""What older versions wrote is read as it was meant, and what this one writes is recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import anyio
import msgspec
import pytest

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Token
from rendezvous_async.backends.cas.image import Image
from rendezvous_async.backends.table import frames
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.tcp import wire
from rendezvous_async.core.codec import decode
from rendezvous_async.core.history import HistoryRecord
from rendezvous_async.core.state import Head, Node, Post, Seat
from tests.data import record
from tests.data.record import Recorded, directories, main, present, recorded, same, write
from tests.data.samples import (
    ANSWERS,
    CORE_RECORDS,
    FILE_TTL,
    GREETINGS,
    IMAGES,
    LOG_RECORDS,
    LOG_REST,
    LOG_START,
    REQUESTS,
    TEXTS,
    logged,
)

VERSIONS = directories()
WHAT_TO_DO = (
    "what this version writes is not what is recorded. If a release has written the recorded bytes, run "
    "python -m tests.data.record and commit the new directory: the older ones stay. If none has, add --replace. Can "
    "older versions read the new bytes? If not, raise the format (core/codec.py), add a version of the protocol "
    "(backends/tcp/versions.py) or of the log (backends/table/head.py), or require a feature (core/features.py)"
)


def test_the_versions_are_counted_without_a_gap() -> None:
    assert [path.name for path in VERSIONS] == [f"v{number}" for number in range(1, len(VERSIONS) + 1)]


# Reading what any version wrote


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_records_are_read_as_they_were_meant(version: Path) -> None:
    for name, data in recorded(version).core_records.items():
        value: Any = CORE_RECORDS[name]
        assert decode(type(value), bytes.fromhex(data), name) == value, name


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_messages_are_read_as_they_were_meant(version: Path) -> None:
    old = recorded(version)
    for name, data in old.greetings.items():
        assert wire.decode_greeting(body_of(data)) == GREETINGS[name], name
    for name, data in old.requests.items():
        assert wire.decode_request(body_of(data)) == REQUESTS[name], name
    for name, data in old.answers.items():
        assert wire.decode_answer(body_of(data)) == ANSWERS[name], name


def body_of(data: str) -> bytes:
    """Return the body of a frame, as a peer cuts it from its stream."""
    decoder = wire.FrameDecoder(wire.MAX_ANSWER)
    decoder.feed(bytes.fromhex(data))
    body = decoder.next()
    assert body is not None
    assert decoder.next() is None
    return body


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_what_nodes_compare_is_the_same_in_all_versions(version: Path) -> None:
    for name, text in recorded(version).texts.items():
        assert TEXTS[name]() == text, name


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_images_are_read_as_they_were_meant(version: Path) -> None:
    for name, data in recorded(version).images.items():
        read, meant = Image.decode(bytes.fromhex(data)), IMAGES[name]()
        assert (read.number, read.mark, read.beats) == (meant.number, meant.mark, meant.beats), name
        assert read.table.snapshot() == meant.table.snapshot(), name


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_later_records_of_a_log_are_read_as_they_were_meant(version: Path) -> None:
    for name, data in recorded(version).log_records.items():
        assert frames.read_records(memoryview(bytes.fromhex(data))) == [LOG_RECORDS[name]], name


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_log_is_read_and_written_on(version: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copyfile(version / "log", path)
    log = Log.open(str(path))
    assert log.table.snapshot() == logged(*LOG_START, *LOG_REST).snapshot()
    more = frames.Raised(200)
    log.append([more])
    log.close()
    assert path.read_bytes().startswith((version / "log").read_bytes()), "nothing of it was rewritten"
    log = Log.open(str(path))
    assert log.table.snapshot() == logged(*LOG_START, *LOG_REST, more).snapshot()
    log.close()


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
async def test_the_directory_of_a_file_backend_is_read_and_its_dead_are_seen(version: Path, tmp_path: Path) -> None:
    place = tmp_path / "directory"
    shutil.copytree(version / "directory", place)
    for path in (place, *place.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)  # git does not keep that
    async with open_backend(f"file://{place}", run_id="job") as backend:
        kept = await backend.get("kept")
        assert kept is not None
        assert (kept.value, kept.token, kept.session) == (b"value", Token("epoch", 1), None)
        with anyio.fail_after(20 * FILE_TTL):
            async with backend.watch("nodes/a") as watch:
                while (await backend.get("nodes/a")) is not None:
                    await anext(watch)
        assert not (place / "sessions" / "epoch.1").exists()


# Writing: the newest directory has what this version writes


def test_what_is_written_is_what_is_recorded() -> None:
    now, newest = present(), recorded(VERSIONS[-1])
    for kind in Recorded.__struct_fields__:
        written, kept = getattr(now, kind), getattr(newest, kind)
        changed = sorted(name for name in {*written, *kept} if written.get(name) != kept.get(name))
        assert changed == [], f"{kind}: {WHAT_TO_DO}"


def test_the_files_that_are_written_are_those_that_are_recorded(tmp_path: Path) -> None:
    write(tmp_path / "now")
    assert same(tmp_path / "now", VERSIONS[-1]), WHAT_TO_DO


def structs_in(values: Iterable[object]) -> Iterable[msgspec.Struct]:
    """Yield all structs, at every level."""
    for value in values:
        if isinstance(value, msgspec.Struct):
            yield value
            yield from structs_in(getattr(value, name) for name in value.__struct_fields__)
        elif isinstance(value, tuple):
            yield from structs_in(value)


def test_every_kind_and_every_field_is_recorded() -> None:
    """A field counts as recorded where it is not its default: with it, the recorded bytes may not have it at all."""
    log = structs_in((*LOG_START, *LOG_REST, *LOG_RECORDS.values()))
    samples = [*structs_in([*CORE_RECORDS.values(), *GREETINGS.values(), *REQUESTS.values(), *ANSWERS.values()]), *log]
    kinds = {type(sample) for sample in samples}
    assert kinds >= {Head, Node, Seat, Post, HistoryRecord, *get_args(wire.AnyMessage), *get_args(frames.LogRecord)} - {
        wire.EncodedChanged
    }
    for kind in kinds:
        of_kind = [sample for sample in samples if type(sample) is kind]
        for field in msgspec.structs.fields(kind):
            default = field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            recorded_values = [getattr(sample, field.name) for sample in of_kind]
            assert any(value != default for value in recorded_values), f"no sample has {kind.__name__}.{field.name}"


# The command


def test_the_command_says_that_there_is_nothing_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "PLACE", tmp_path)
    shutil.copytree(VERSIONS[-1], tmp_path / "v1")
    before = (tmp_path / "v1").stat().st_mtime_ns
    main([])
    assert capsys.readouterr().out == "v1 has just what this version writes\n"
    assert [path.stat().st_mtime_ns for path in directories()] == [before]


def test_a_change_is_recorded_beside_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "PLACE", tmp_path)
    main([])
    old = recorded(tmp_path / "v1")
    assert old == present()
    new = msgspec.structs.replace(old, texts={"keys": "others"})
    monkeypatch.setattr(record, "present", lambda: new)
    main([])
    main([])
    assert (recorded(tmp_path / "v1"), recorded(tmp_path / "v2")) == (old, new)
    newer = msgspec.structs.replace(old, texts={})
    monkeypatch.setattr(record, "present", lambda: newer)
    main(["--replace"])
    assert (recorded(tmp_path / "v1"), recorded(tmp_path / "v2")) == (old, newer)
    assert [path.name for path in directories()] == ["v1", "v2"]
    assert len(capsys.readouterr().out.splitlines()) == 4
