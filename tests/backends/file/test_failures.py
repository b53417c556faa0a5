"""What can be wrong with a directory, and what the user is told: never a hang, never a silent loss."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.file.directory import Directory
from rendezvous_async.backends.file.driver import FileDriver
from rendezvous_async.backends.file.hub import Hub
from rendezvous_async.backends.file.options import FileOptions
from rendezvous_async.errors import (
    RendezvousConnectionError,
    RendezvousSessionError,
    RendezvousStateError,
    RendezvousVersionError,
)
from tests.backends.table.test_log import of_version

IS_ROOT = os.geteuid() == 0


@asynccontextmanager
async def stranger(path: Path) -> AsyncIterator[Backend]:
    """A client with a thread of its own, as another process has it."""
    hub = Hub(Directory.open(str(path)), FileOptions())
    hub.users = 1
    hub.start()
    driver = FileDriver(hub)
    async with Backend(driver, "run") as backend:
        await driver.ready()
        yield backend


async def refused(path: Path, match: str, **options: object) -> None:
    with pytest.raises((RendezvousConnectionError, RendezvousStateError), match=match):
        async with open_backend(f"file://{path}", run_id="run", **options):
            raise AssertionError("opened")


# Permissions


async def test_everything_is_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "shared"
    before = os.umask(0)
    try:
        async with open_backend(f"file://{path}", run_id="run") as backend:
            session = await backend.open_session(10)
            await backend.commit(Put("key", b""))
            modes = {place: stat.S_IMODE(place.stat().st_mode) for place in [path, *path.rglob("*")]}
            assert len(modes) == 5
            assert all(mode == (0o700 if place.is_dir() else 0o600) for place, mode in modes.items()), modes
            await session.aclose()
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
async def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(mode)
    await refused(path, r"can be written by others.*chmod go-w.*shared=true")
    async with open_backend(f"file://{path}?shared=true", run_id="run") as backend:
        await backend.commit(Put("key", b""))
        others = mode & 0o022
        assert stat.S_IMODE((path / "log").stat().st_mode) == 0o600 | others | others << 1


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a directory away")
async def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir(mode=0o700)
    os.chown(path, 65534, -1)
    await refused(path, "belongs to user 65534, and this process runs as user 0")


async def test_links_are_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    async with open_backend(f"file://{real}", run_id="run") as backend:
        await backend.commit(Put("key", b"secret"))
    (tmp_path / "link").symlink_to(real)
    await refused(tmp_path / "link", "is a symbolic link; give the path of the directory itself")
    (tmp_path / "file").write_text("")
    await refused(tmp_path / "file", "Not a directory")
    for name in ("log", "lock", "sessions"):
        trap = tmp_path / f"trap for {name}"
        trap.mkdir(mode=0o700)
        (trap / name).symlink_to(real / name)
        before = (real / "log").read_bytes()
        await refused(trap, "cannot")
        assert (real / "log").read_bytes() == before
    (trap / "sessions").unlink()
    os.mkfifo(trap / "fifo")
    (trap / "lock").unlink(missing_ok=True)
    os.mkfifo(trap / "lock")
    await refused(trap, "not a regular file")


async def test_options_are_checked(tmp_path: Path) -> None:
    for query, match in (
        ("fsync=perhaps", "fsync must be true or false"),
        ("check=often", "check must be a number of seconds"),
        ("timeout=-1", "timeout must be a positive"),
        ("colour=red", "takes no option 'colour'; it knows namespace, fsync"),
    ):
        with pytest.raises(ValueError, match=match):
            async with open_backend(f"file://{tmp_path}/shared?{query}", run_id="run"):
                raise AssertionError("opened")
    async with open_backend(f"file://{tmp_path}/shared?fsync=false&inotify=0&check=0.1", run_id="run"):
        with pytest.raises(ValueError, match="is open in this process with"):
            async with open_backend(f"file://{tmp_path}/shared", run_id="run"):
                raise AssertionError("opened")


# Disks


@asynccontextmanager
async def small_disk(path: Path) -> AsyncIterator[None]:
    """A file system of its own at ``path``, with 256 KiB."""
    if not IS_ROOT:
        pytest.skip("only root can mount a disk")
    os.mkdir(path, 0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(path)]
    mounted = await anyio.run_process(command, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        await anyio.run_process(["umount", "-l", str(path)])


async def test_a_read_only_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    async with small_disk(path):
        await anyio.run_process(["mount", "-o", "remount,ro", str(path)])
        await refused(path, "Read-only file system; every node must be able to read and write there")


@pytest.mark.skipif(IS_ROOT, reason="modes do not stop root")
async def test_a_read_only_directory_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir(mode=0o500)
    await refused(path, "Permission denied; every node must be able to read and write there")


async def test_a_full_disk_loses_nothing_and_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    async with small_disk(path), open_backend(f"file://{path}", run_id="run") as backend:
        kept = 0
        with pytest.raises(RendezvousConnectionError, match="No space left on device"):
            while True:
                await backend.commit(Put(f"key{kept:04}", b"x" * 1000))
                kept += 1
        assert kept > 100
        with pytest.raises(RendezvousConnectionError, match="No space left on device"):
            for _ in range(100):
                await backend.open_session(10)
        assert len((await backend.list("")).entries) == kept
        async with stranger(path) as other:
            assert len((await other.list("")).entries) == kept
        await anyio.run_process(["mount", "-o", "remount,size=1m", str(path)])
        await backend.commit(Put("after", b""))
        session = await backend.open_session(10)
        await session.aclose()
        assert len((await backend.list("")).entries) == kept + 1


async def test_a_removed_directory_is_told_to_calls_and_watches(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}?check=0.05", run_id="run") as backend:
        await backend.commit(Put("key", b"1"))
        session = await backend.open_session(0.5)
        async with backend.watch("") as watch:
            await watch.__anext__()
            shutil.rmtree(path)
            with anyio.fail_after(20), pytest.raises(RendezvousConnectionError, match="has been removed"):
                await watch.__anext__()
        for call in (lambda: backend.commit(Put("key", b"2")), lambda: backend.get("key"), session.keep_alive):
            with pytest.raises(RendezvousConnectionError, match="has been removed"):
                await call()
    async with open_backend(f"file://{path}", run_id="run") as backend:
        assert await backend.get("key") is None


async def test_a_log_that_was_removed_comes_back_as_a_new_history(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}", run_id="run") as backend, backend.watch("") as watch:
        first = await backend.commit(Put("key", b"1"))
        session = await backend.open_session(10)
        assert [entry.key for entry in (await watch.__anext__()).entries] in ([], ["key"])
        (path / "log").unlink()
        with pytest.raises(RendezvousConnectionError, match="has been removed"):
            await backend.commit(Put("key", b"2"))
        async with stranger(path) as other:
            second = await other.commit(Put("other", b"1"))
            assert second.token.epoch != first.token.epoch
            assert await backend.get("key") is None
            with pytest.raises(RendezvousSessionError):
                await session.keep_alive()
            with anyio.fail_after(20):
                seen: dict[str, bytes | None] = {}
                while "other" not in seen:
                    seen.update({entry.key: entry.value for entry in (await watch.__anext__()).entries})


async def test_damage_is_refused_by_everybody_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}?check=0.05", run_id="run") as backend, backend.watch("") as watch:
        await backend.commit(Put("key", b"value"))
        while not (await watch.__anext__()).entries:
            pass
        whole = (path / "log").read_bytes()
        with (path / "log").open("ab", buffering=0) as log:
            log.write(b"this is no frame, and no torn one either" * 5)
        damaged = (path / "log").read_bytes()
        with anyio.fail_after(20), pytest.raises(RendezvousStateError, match=r"damaged.*move it away"):
            await watch.__anext__()
        with pytest.raises(RendezvousStateError, match=r"damaged.*offset"):
            await backend.commit(Put("key", b"other"))
        assert (path / "log").read_bytes() == damaged
        os.truncate(path / "log", len(whole))
        await backend.commit(Put("key", b"other"))
        entry = await backend.get("key")
        assert entry is not None
        assert entry.value == b"other"


async def test_what_a_dead_writer_left_is_cut_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}", run_id="run") as backend:
        await backend.commit(Put("key", b"1"))
        whole = (path / "log").read_bytes()
        await backend.commit(Put("key", b"2"))
        torn = (path / "log").read_bytes()
    for cut in range(len(whole) + 1, len(torn), 9):
        (path / "log").write_bytes(torn[:cut])
        async with open_backend(f"file://{path}", run_id="run") as backend, stranger(path) as other:
            entry = await backend.get("key")
            assert entry is not None
            assert entry.value == b"1"
            await backend.commit(Put("key", b"3"))
            assert await other.get("key") == await backend.get("key")


# Processes and loops


def test_a_forked_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    code = f"""
import asyncio, os
from rendezvous_async.backends import open_backend, start_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.errors import RendezvousConnectionError

async def in_the_child(backend):
    try:
        await backend.get("key")
    except RendezvousConnectionError as error:
        assert "before this process was forked" in str(error), error
    async with open_backend("file://{tmp_path}/shared", run_id="run") as backend:
        await backend.commit(Put("child", b""))

loop = asyncio.new_event_loop()
backend = loop.run_until_complete(start_backend("file://{tmp_path}/shared", "run"))
session = loop.run_until_complete(backend.open_session(60))
child = os.fork()
if not child:
    try:
        left = os.popen(f"ls -l /proc/{{os.getpid()}}/fd").read()
        assert "/shared" not in left, left
        asyncio.run(in_the_child(backend))
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
loop.run_until_complete(session.keep_alive())
assert loop.run_until_complete(backend.get("child")) is not None
loop.run_until_complete(backend.aclose())
loop.close()
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_two_event_loops_of_one_process_share_a_directory(tmp_path: Path) -> None:
    code = f"""
import asyncio, threading
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Condition, Put

async def add():
    async with open_backend("file://{tmp_path}/shared", run_id="run") as backend:
        for _ in range(50):
            while True:
                entry = await backend.get("count")
                value = 0 if entry is None else int(entry.value)
                when = [Condition("count", None if entry is None else entry.token)]
                if (await backend.commit(Put("count", b"%d" % (value + 1)), when=when)).won:
                    break
        return value + 1

threads = [threading.Thread(target=asyncio.run, args=(add(),)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()

async def main():
    async with open_backend("file://{tmp_path}/shared", run_id="run") as backend:
        assert (await backend.get("count")).value == b"200"
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


async def test_nothing_is_left_open(tmp_path: Path) -> None:
    def descriptors() -> set[str]:
        names = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.add(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:
                continue
        return {name for name in names if str(tmp_path) in name}

    async with open_backend(f"file://{tmp_path}/shared", run_id="run") as backend:
        await backend.open_session(10)
        await backend.commit(Put("key", b""))
        assert descriptors()
    assert descriptors() == set()


# Versions


async def test_a_directory_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}", run_id="run") as backend:
        await backend.commit(Put("key", b"value"))
    newer = of_version(99, (path / "log").read_bytes(), b"what this version might take for a torn frame")
    (path / "log").write_bytes(newer)
    with pytest.raises(RendezvousVersionError, match=r"log was written by a newer .*\(log version 99, .*Upgrade"):
        async with open_backend(f"file://{path}", run_id="run"):
            raise AssertionError("opened")
    assert (path / "log").read_bytes() == newer


async def test_a_newer_version_that_takes_a_directory_over_ends_its_use_by_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}", run_id="run") as backend:
        await backend.commit(Put("key", b"value"))
        newer = of_version(99, (path / "log").read_bytes(), b"later")
        (path / "next").write_bytes(newer)
        (path / "next").rename(path / "log")
        for attempt in (lambda: backend.get("key"), lambda: backend.commit(Put("key", b"old")), backend.get_state):
            with pytest.raises(RendezvousVersionError, match="log version 99"):
                await attempt()
        assert (path / "log").read_bytes() == newer
