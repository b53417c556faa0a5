"""The lock: one holder, a turn for everybody, and the same without the better kind of lock; and notices of changes."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous_async.backends.file import lock as lock_module
from rendezvous_async.backends.file.lock import FileLock, PatientLock
from rendezvous_async.backends.file.notify import CLOSE_WRITE, MODIFY, open_inotify

PATIENCE = 60.0


@pytest.fixture(params=[True, False], ids=["ofd", "posix"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lock file, under either kind of lock."""
    if request.param and not lock_module.HAS_OFD_LOCKS:
        pytest.skip("this system has no open file description locks")
    monkeypatch.setattr(lock_module, "HAS_OFD_LOCKS", request.param)
    yield tmp_path / "lock"
    for fd, _ in lock_module._shared.values():
        os.close(fd)
    lock_module._shared.clear()


def open_lock(path: Path) -> FileLock:
    return FileLock(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def test_two_locks_of_one_process_exclude_each_other(path: Path) -> None:
    first, second = open_lock(path), open_lock(path)
    for _ in range(2):
        assert first.acquire(wait=False)
        assert not second.acquire(wait=False)
        first.release()
        assert second.acquire(wait=True)
        assert not first.acquire(wait=False)
        second.release()
    first.close()
    second.close()


def test_a_lock_file_that_was_removed_is_left_for_the_one_that_is_there(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    lock = FileLock.open(path.name, directory, 0o600)
    for wait in (False, True):
        path.unlink()
        assert lock.acquire(wait=wait)
        assert path.exists()
        lock.release()
    if lock_module.HAS_OFD_LOCKS:  # otherwise a process has one descriptor, and its threads wait for each other
        path.unlink()
        other = FileLock.open(path.name, directory, 0o600)
        assert other.acquire(wait=False)
        assert not lock.acquire(wait=False), "it took a lock on a file that is gone"
        other.release()
        other.close()
    lock.close()
    os.close(directory)


def test_threads_with_locks_of_their_own_take_turns(path: Path) -> None:
    inside = counted = 0

    def count() -> None:
        nonlocal inside, counted
        lock = open_lock(path)
        for _ in range(100):
            lock.acquire(wait=True)
            inside += 1
            assert inside == 1
            counted += 1
            inside -= 1
            lock.release()
        lock.close()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert counted == 400


def test_who_waits_gets_it_however_busy_another_is(path: Path) -> None:
    busy, patient = open_lock(path), open_lock(path)
    got = threading.Event()

    def wait() -> None:
        patient.acquire(wait=True)
        got.set()
        patient.release()

    assert busy.acquire(wait=False)
    thread = threading.Thread(target=wait)
    thread.start()
    held = True
    for _ in range(1_000_000):
        if held:
            busy.release()
        held = busy.acquire(wait=False)
        if got.is_set():
            break
    if held:
        busy.release()
    assert got.wait(PATIENCE)
    thread.join(PATIENCE)
    busy.close()
    patient.close()


def test_a_patient_lock_is_asked_for_and_then_there(path: Path) -> None:
    other = open_lock(path)
    woken = threading.Event()
    patient = PatientLock(open_lock(path), woken.set)
    assert patient.get()
    patient.release()
    for _ in range(3):
        assert other.acquire(wait=False)
        assert not patient.get()
        assert not patient.get()
        assert not woken.is_set()
        other.release()
        assert woken.wait(PATIENCE)
        woken.clear()
        assert patient.get()
        assert not other.acquire(wait=False)
        patient.release()
    patient.close()
    patient.close()
    assert other.acquire(wait=True)
    other.release()
    other.close()


@pytest.mark.parametrize("granted", [False, True])
def test_closing_a_lock_that_was_asked_for_leaves_nothing_locked(path: Path, granted: bool) -> None:
    other, mine = open_lock(path), open_lock(path)
    before = threading.enumerate()
    woken = threading.Event()
    patient = PatientLock(mine, woken.set)
    other.acquire(wait=True)
    assert not patient.get()
    (waiting,) = set(threading.enumerate()) - set(before)
    if granted:
        other.release()
        assert woken.wait(PATIENCE)
        patient.close()
    else:
        patient.close()
        other.release()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert woken.is_set() == granted
    assert other.acquire(wait=False)
    other.release()
    other.close()


def test_notices_name_what_has_changed(tmp_path: Path) -> None:
    inotify = open_inotify()
    if inotify is None:
        pytest.skip("this system has no inotify")
    (tmp_path / "inner").mkdir()
    directories = [os.open(place, os.O_RDONLY) for place in (tmp_path, tmp_path / "inner")]
    outer, inner = (inotify.add(fd, mask) for fd, mask in zip(directories, (MODIFY, CLOSE_WRITE), strict=True))
    assert inotify.read() == []
    assert outer is not None
    with open(tmp_path / "log", "wb", buffering=0) as log, open(tmp_path / "inner" / "a", "wb", buffering=0) as file:
        file.write(b"1")
        assert inotify.read() == []
        log.write(b"1")
        assert select.select([inotify.fd], [], [], PATIENCE)[0]
        assert inotify.read() == [(outer, "log")]
    assert inotify.read() == [(inner, "a")]
    inotify.remove(outer)
    inotify.read()
    (tmp_path / "log").write_bytes(b"2")
    assert inotify.read() == []
    for fd in directories:
        os.close(fd)
    inotify.close()
