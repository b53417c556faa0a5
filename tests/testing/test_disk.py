"""The simulated disk keeps what was synced, and of the rest what a real one may keep."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rendezvous_async.backends.table.files import FILES, Files
from rendezvous_async.testing.disk import SECTOR, Disk, DiskFiles, PowerLostError

NEW = os.O_RDWR | os.O_CREAT


def make(seed: int = 7) -> tuple[Disk, Files, int]:
    """Return a disk, its files, and a descriptor of a directory."""
    disk = Disk(random.Random(seed))
    files = disk.files()
    files.makedirs("/data/log", 0o700)
    return disk, files, files.open("/data/log", os.O_DIRECTORY)


def after(seeds: range, prepare: Callable[[Files, int], None]) -> set[bytes | None]:
    """Return what ``name`` may hold after a loss of power; None if there is no such file."""
    found: set[bytes | None] = set()
    for seed in seeds:
        disk, files, directory = make(seed)
        prepare(files, directory)
        disk.lose_power()
        files = disk.files()
        try:
            fd = files.open("/data/log/name", os.O_RDWR)
        except FileNotFoundError:
            found.add(None)
        else:
            found.add(files.read_at(fd, 0, 1 << 20))
    return found


def write(files: Files, directory: int, name: str, data: bytes) -> int:
    fd = files.open(name, NEW, dir_fd=directory)
    files.write_at(fd, data, 0)
    return fd


def test_synced_bytes_under_a_synced_name_stay() -> None:
    def prepare(files: Files, directory: int) -> None:
        files.fdatasync(write(files, directory, "name", b"all of it"))
        files.fsync(directory)

    assert after(range(50), prepare) == {b"all of it"}


def test_a_name_that_was_not_synced_may_be_lost() -> None:
    def prepare(files: Files, directory: int) -> None:
        files.fdatasync(write(files, directory, "name", b"all of it"))

    assert after(range(50), prepare) == {b"all of it", None}


def test_a_rename_that_was_not_synced_may_be_lost() -> None:
    def prepare(files: Files, directory: int) -> None:
        files.fsync(write(files, directory, "name", b"old"))
        files.fsync(write(files, directory, "beside", b"new"))
        files.fsync(directory)
        files.rename("beside", "name", directory)

    assert after(range(50), prepare) == {b"old", b"new"}


def test_bytes_that_were_not_synced_are_lost_torn_or_kept() -> None:
    def prepare(files: Files, directory: int) -> None:
        fd = write(files, directory, "name", b"kept ")
        files.fsync(fd)
        files.fsync(directory)
        files.write_at(fd, b"x" * 2 * SECTOR, 5)

    found = after(range(200), prepare)
    contents = [data for data in found if data is not None]
    assert len(contents) == len(found)
    assert {b"kept ", b"kept " + b"x" * 2 * SECTOR} < found
    assert all(data.startswith(b"kept ") for data in contents)
    assert any(len(data) < 5 + 2 * SECTOR and data.endswith(b"x") for data in contents)
    assert any(bytes(100) in data for data in contents)


def test_a_failed_sync_forgets_the_pages_and_the_next_one_does_not_know() -> None:
    disk, files, directory = make()
    fd = write(files, directory, "name", b"first")
    files.fsync(fd)
    files.fsync(directory)
    disk.failing_syncs = 1
    files.write_at(fd, b"second", 5)
    with pytest.raises(OSError, match="Input/output"):
        files.fdatasync(fd)
    files.fdatasync(fd)
    assert files.read_at(fd, 0, 99) == b"firstsecond"
    disk.lose_power()
    assert disk.files().read_at(disk.files().open("/data/log/name", os.O_RDWR), 0, 99) == b"first"


def test_the_power_may_go_in_the_middle_of_what_a_process_does() -> None:
    disk, files, directory = make()
    disk.power_left = 2
    fd = files.open("name", NEW, dir_fd=directory)
    with pytest.raises(PowerLostError):
        files.write_at(fd, b"some", 0)
    with pytest.raises(PowerLostError):
        files.fdatasync(fd)
    assert disk.losses == 1


def test_a_lock_ends_with_its_process() -> None:
    disk, files, directory = make()
    other = disk.files()
    fd, theirs = files.open("name", NEW, dir_fd=directory), other.open("/data/log/name", os.O_RDWR)
    assert files.try_lock(fd)
    assert not other.try_lock(theirs)
    assert isinstance(files, DiskFiles)
    files.close_all()
    assert other.try_lock(theirs)


@pytest.mark.parametrize("kind", ["real", "simulated"])
def test_both_kinds_of_files_do_the_same(kind: str, tmp_path: Path) -> None:
    files, root = (FILES, str(tmp_path)) if kind == "real" else (make()[1], "/data")
    files.makedirs(f"{root}/some/where")
    files.makedirs(f"{root}/some/where")
    with pytest.raises(FileExistsError):
        files.mkdir(f"{root}/some", 0o700)
    directory = files.open(f"{root}/some", os.O_DIRECTORY)
    with pytest.raises(FileNotFoundError):
        files.open("name", os.O_RDWR, dir_fd=directory)
    fd = files.open("name", NEW | os.O_EXCL, 0o600, dir_fd=directory)
    with pytest.raises(FileExistsError):
        files.open("name", NEW | os.O_EXCL, 0o600, dir_fd=directory)
    assert files.write_at(fd, b"0123456789", 3) == 13
    files.ftruncate(fd, 8)
    assert files.read_at(fd, 0, 99) == b"\0\0\x0001234"
    assert (files.fstat(fd).st_size, files.fstat(fd).st_uid) == (8, os.geteuid())
    files.fchmod(fd, 0o640)
    assert files.fstat(fd).st_mode == 0o100640
    copy = files.dup(fd)
    assert files.try_lock(fd)
    second = files.open("name", os.O_RDWR, dir_fd=directory)
    assert not files.try_lock(second)
    files.unlock(fd)
    assert files.try_lock(second)
    files.rename("name", "other", directory)
    assert files.identity("name", directory) is None
    assert files.identity("other", directory) == files.identity(copy)
    files.unlink("other", directory)
    assert files.identity("other", directory) is None
    assert files.read_at(copy, 3, 5) == b"01"
    for each in (fd, copy, second, directory):
        files.close(each)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.fstat(fd)
