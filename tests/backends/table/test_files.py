"""Whole reads and writes, also where the kernel does half of them; locks; and what a file is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous_async.backends.table.files import identity, read_at, try_lock, unlock, write_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture(params=[False, True], ids=["whole", "by halves"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel read and write at most three bytes at a time."""
    if request.param:
        pread, pwrite = os.pread, os.pwrite
        monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 3), at))
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))


@pytest.mark.usefixtures("_kernel")
def test_all_is_read_that_is_asked_for_and_there(fd: int) -> None:
    places = [(0, 10), (3, 9), (4, 5), (5, 5), (7, 3), (8, 99), (10, 99), (50, 99)]
    expected = [b"0123456789", b"345678", b"4", b"", b"", b"89", b"", b""]
    assert [read_at(fd, *place) for place in places] == expected


@pytest.mark.usefixtures("_kernel")
def test_all_is_written_where_it_belongs(fd: int, path: Path) -> None:
    assert write_at(fd, b"abcdefg", 8) == 15
    assert write_at(fd, b"", 2) == 2
    assert write_at(fd, b"xy", 0) == 2
    assert path.read_bytes() == b"xy234567abcdefg"


def test_one_has_a_file_locked_at_a_time(fd: int, path: Path) -> None:
    other = os.open(path, os.O_RDWR)
    try:
        assert try_lock(fd)
        assert not try_lock(other)
        unlock(fd)
        assert try_lock(other)
        assert not try_lock(fd)
    finally:
        os.close(other)
    assert try_lock(fd), "who closes a file unlocks it"


def test_a_file_is_told_from_all_others(fd: int, path: Path, tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        here = identity(fd)
        assert here is not None
        assert identity(str(path)) == identity(path.name, directory) == here
        os.link(path, tmp_path / "same")
        assert identity("same", directory) == here
        (tmp_path / "link").symlink_to(path)
        assert identity("link", directory) not in (None, here), "a link is not what it leads to"
        assert identity("none", directory) is None
        path.unlink()
        assert identity(str(path)) is None
        assert identity(fd) == here
        (tmp_path / "other").write_bytes(b"")
        assert identity("other", directory) not in (None, here)
    finally:
        os.close(directory)
    assert identity(directory) is None, "closed"
