"""Whose a data directory is: one server at a time, whatever is done to its files, and nobody else can write in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import serve
from rendezvous_async.backends.tcp.server.serving import LOG_NAME
from rendezvous_async.errors import RendezvousConnectionError, RendezvousStateError, RendezvousVersionError
from tests.backends.table.test_log import of_version
from tests.backends.tcp.support import Process, ServerProcess, connected

WAIT = 60.0


async def another_server_fails(data_dir: Path) -> str:
    """Start a second server in a process of its own; return why it does not serve, or "" if it does."""
    second = ServerProcess(data_dir)
    try:
        await Process.start(second)
        return "" if await second.read() == "ready" else "refused"
    finally:
        await second.kill()


def remove_lock_files(data_dir: Path) -> None:
    for file in data_dir.glob("*.lock"):
        file.unlink()


def move_log(data_dir: Path) -> None:
    remove_lock_files(data_dir)
    (data_dir / LOG_NAME).rename(data_dir / "away")


def remove_log(data_dir: Path) -> None:
    remove_lock_files(data_dir)
    (data_dir / LOG_NAME).unlink()


def copy_log(data_dir: Path) -> None:
    move_log(data_dir)
    shutil.copy(data_dir / "away", data_dir / LOG_NAME)


def replace_directory(data_dir: Path) -> None:
    data_dir.rename(data_dir.with_name("away"))
    data_dir.mkdir(0o700)


def copy_directory(data_dir: Path) -> None:
    data_dir.rename(data_dir.with_name("away"))
    shutil.copytree(data_dir.with_name("away"), data_dir)


HARMS = [remove_lock_files, move_log, remove_log, copy_log, replace_directory, copy_directory]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("compacted", [False, True], ids=["as it began", "compacted"])
async def test_what_is_acknowledged_is_in_the_directory_whatever_is_done_to_its_files(
    compacted: bool, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """Two real servers. Either the second one is refused, or the first one acknowledges nothing any more."""
    data_dir = tmp_path / "data"
    async with ServerProcess(data_dir) as server, connected(server.endpoint) as backend:
        await backend.commit(Put("before", b""))
        for number in range(8 if compacted else 0):
            await backend.commit(Put("large", b"%d" % number * 200_000))
        harm(data_dir)
        refused = await another_server_fails(data_dir)
        try:
            with anyio.fail_after(WAIT):
                await backend.commit(Put("after", b""))
        except RendezvousConnectionError as error:
            assert harm is not remove_lock_files
            assert "was moved, removed or replaced" in str(error)
        else:
            assert refused
            await server.kill()
            async with serve(port=0, data_dir=data_dir) as again:
                assert again.table.get(f"{backend.prefix}after") is not None


async def test_a_second_server_is_refused_for_as_long_as_the_first_one_lives(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path) as server, connected(server.endpoint) as backend:
        remove_lock_files(tmp_path)
        assert await another_server_fails(tmp_path) == "refused"
        for number in range(8):  # the log that it holds is another file now
            await backend.commit(Put("large", b"%d" % number * 200_000))
        assert await another_server_fails(tmp_path) == "refused"
        await server.kill()
        await server.start()
        with anyio.fail_after(WAIT):
            await backend.commit(Put("served", b""))


async def test_a_server_may_change_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with serve(port=0, data_dir="data") as server, connected(server.endpoint) as backend:
        monkeypatch.chdir("/")
        await backend.commit(Put("key", b""))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
async def test_a_directory_that_others_can_write_is_refused_as_by_the_file_backend(mode: int, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(mode)
    told = []
    with pytest.raises(RendezvousConnectionError) as caught:
        async with serve(port=0, data_dir=data_dir):
            pass
    told.append(str(caught.value).partition(". ")[0])
    with pytest.raises(RendezvousConnectionError) as caught:
        async with rdzv.open_backend(f"file://{data_dir}", run_id="job"):
            pass
    told.append(str(caught.value).partition(". ")[0])
    assert told[0] == told[1]
    assert f"can be written by others: its mode is {mode:04o}" in told[0]
    assert list(data_dir.iterdir()) == []
    data_dir.chmod(0o755)
    async with serve(port=0, data_dir=data_dir):
        pass


async def test_the_name_of_a_directory_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "name").symlink_to("real")
    async with serve(port=0, data_dir=tmp_path / "name") as server, connected(server.endpoint) as backend:
        await backend.commit(Put("key", b""))
        with pytest.raises(RendezvousStateError, match="in use by another"):
            async with serve(port=0, data_dir=tmp_path / "real"):
                pass


async def test_a_data_dir_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with serve(port=0, data_dir=tmp_path) as server, connected(server.endpoint) as backend:
        await backend.commit(Put("key", b"value"))
    newer = of_version(99, (tmp_path / LOG_NAME).read_bytes(), b"what this version might take for a torn frame")
    (tmp_path / LOG_NAME).write_bytes(newer)
    with pytest.raises(RendezvousVersionError, match=r"written by a newer .*\(log version 99, .*Upgrade"):
        async with serve(port=0, data_dir=tmp_path):
            raise AssertionError("served")
    assert (tmp_path / LOG_NAME).read_bytes() == newer
