"""A simulated disk: files whose bytes are lost with the power unless they were synced, and a thread that writes to it.

Each file has what its readers see and what is on the platter. A write changes the first, a sync brings the second up to
it. The same holds for the names in a directory: a file that was created or renamed there is found after a loss of power
only if the directory was synced. When the power goes, of what was not synced all is lost, or a part is kept: the first
writes, the last of these torn or with sectors that were never written.

A disk can be slow, it can fail a sync (and then, like Linux, forget the pages that it could not write), and it can lose
its power in the middle of what a process does to it.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rendezvous_async.backends.table.files import Files

if TYPE_CHECKING:
    from rendezvous_async.testing.machine import Process

__all__ = ["Disk", "DiskFiles", "DiskWorker", "PowerLostError"]

T = TypeVar("T")

SECTOR = 512
LATENCY = 0.002


class PowerLostError(BaseException):
    """The machine has lost its power: nothing of this process runs any more."""


class _File:
    """A file or a directory.

    Attributes:
        data: What readers see.
        kept: What is on the platter.
        names: What a directory holds, by name, and ``kept_names`` what of that is on the platter.
        unsynced: What changes the platter at the next sync, in order.
        locked_by: The descriptor that has the lock.
    """

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = mode
        self.data: bytearray = bytearray()
        self.kept: bytearray = bytearray()
        self.names: dict[str, _File] = {}
        self.kept_names: dict[str, _File] = {}
        self.unsynced: list[tuple[int, bytes | None] | tuple[str, _File | None]] = []
        self.locked_by: int | None = None

    def change(self, change: Any) -> None:
        """Change what readers see, and note it for the next sync."""
        _apply(self.data, self.names, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Bring the platter up to what readers see."""
        for change in self.unsynced:
            _apply(self.kept, self.kept_names, change)
        self.unsynced.clear()

    def forget(self, rng: random.Random) -> None:
        """Lose what was not synced, or a part of it."""
        survive = rng.randint(0, len(self.unsynced)) if rng.random() < 0.7 else 0
        for number, change in enumerate(self.unsynced[:survive]):
            whole = number < survive - 1 or rng.random() < 0.3
            _apply(self.kept, self.kept_names, change if whole else _torn(change, rng))
        self.data, self.names = bytearray(self.kept), dict(self.kept_names)
        self.unsynced.clear()
        self.locked_by = None


def _apply(data: bytearray, names: dict[str, _File], change: Any) -> None:
    where, what = change
    if isinstance(where, int):
        if what is None:
            del data[where:]
        else:
            data.extend(bytes(where - len(data)))
            data[where : where + len(what)] = what
    elif what is None:
        names.pop(where, None)
    else:
        names[where] = what


def _torn(change: Any, rng: random.Random) -> Any:
    """Return a write of which only the first bytes, or not all sectors, were written."""
    where, what = change
    if not isinstance(where, int) or not what:
        return change
    if rng.random() < 0.5:
        return where, what[: rng.randrange(len(what))]
    torn = bytearray(what)
    first = rng.randrange(where // SECTOR, (where + len(what) - 1) // SECTOR + 1)
    begin, end = max(first * SECTOR - where, 0), min((first + 1) * SECTOR - where, len(what))
    torn[begin:end] = bytes(end - begin)
    return where, bytes(torn)


class Disk:
    """The disk of a machine.

    Args:
        rng: Decides what survives a loss of power, and how long a write takes.

    Attributes:
        latency: The longest time that one write takes, in seconds.
        failing_syncs: How many of the next syncs fail.
        power_left: How many changes are made until the power goes, in the middle of the last one; None means all.
        on_power_lost: Called at that moment; by default only the disk loses its power.
        syncs: How many syncs there were.
        losses: How often the power went.
    """

    def __init__(self, rng: random.Random) -> None:
        self.latency: float = LATENCY
        self.failing_syncs: int = 0
        self.power_left: int | None = None
        self.on_power_lost: Callable[[], None] = self.lose_power
        self.syncs: int = 0
        self.losses: int = 0
        self.rng = rng
        self._made = 0
        self._fds = 1_000_000
        self._open: dict[int, tuple[_File, DiskFiles]] = {}
        self.erase()

    def __repr__(self) -> str:
        return f"<Disk files={self._made} open={len(self._open)}>"

    def files(self) -> DiskFiles:
        """Return the disk as one process sees it."""
        return DiskFiles(self)

    def lose_power(self) -> None:
        """Lose everything that was not synced, or most of it."""
        self._open.clear()
        self.power_left = None
        self.losses += 1
        seen: set[_File] = set()
        left = [self._root]
        while left:
            file = left.pop()
            if file not in seen:
                seen.add(file)
                file.forget(self.rng)
                left.extend(file.names.values())

    def mend(self) -> None:
        """End all faults."""
        self.latency, self.failing_syncs, self.power_left = LATENCY, 0, None

    def erase(self) -> None:
        """Forget everything."""
        self._root = self.make(stat.S_IFDIR | 0o755)

    # For the files of a process

    def make(self, mode: int) -> _File:
        self._made += 1
        return _File(self._made, mode)

    def find(self, path: str, start: int | None = None) -> _File:
        """Return the file at a path, relative to a descriptor of a directory or to the root."""
        file = self._root if start is None else self.file(start)
        for name in path.split("/"):
            if name and name != ".":
                if name not in file.names:
                    raise _error(errno.ENOENT, FileNotFoundError)
                file = file.names[name]
        return file

    def file(self, fd: int) -> _File:
        if fd not in self._open:
            raise _error(errno.EBADF)
        return self._open[fd][0]

    def open(self, file: _File, owner: DiskFiles) -> int:
        self._fds += 1
        self._open[self._fds] = (file, owner)
        return self._fds

    def close(self, fd: int) -> None:
        file = self.file(fd)
        del self._open[fd]
        if file.locked_by == fd:
            file.locked_by = None

    def fds_of(self, owner: DiskFiles) -> list[int]:
        return [fd for fd, (_, each) in self._open.items() if each is owner]

    def count(self) -> None:
        """Count a change that a process makes; raise if the power goes with it."""
        if self.power_left is not None:
            self.power_left -= 1
            if self.power_left == 0:
                self.on_power_lost()
                raise PowerLostError


class DiskFiles(Files):
    """A disk as one process sees it."""

    def __init__(self, disk: Disk) -> None:
        self._whole = disk
        self._born = disk.losses

    @property
    def _disk(self) -> Disk:
        if self._whole.losses > self._born:
            raise PowerLostError
        return self._whole

    def close_all(self) -> None:
        """Close what the process has open, as the kernel does at its end."""
        for fd in self._whole.fds_of(self):
            self._whole.close(fd)

    def makedirs(self, path: str, mode: int = 0o777) -> None:
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts)):
            try:
                self._disk.find("/".join(parts[: depth + 1]))
            except FileNotFoundError:
                self.mkdir("/".join(parts[: depth + 1]), mode)

    def mkdir(self, path: str, mode: int) -> None:
        directory, name = os.path.split(path.rstrip("/"))
        parent = self._disk.find(directory)
        if name in parent.names:
            raise _error(errno.EEXIST, FileExistsError)
        self._change(parent, (name, self._disk.make(stat.S_IFDIR | mode)))
        parent.sync()  # made long before anything that is tried out here

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        try:
            file = self._disk.find(path, dir_fd)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            file = self._disk.make(stat.S_IFREG | mode)
            directory, name = os.path.split(path)
            self._change(self._disk.find(directory, dir_fd), (name, file))
        else:
            if flags & os.O_EXCL:
                raise _error(errno.EEXIST, FileExistsError)
        return self._disk.open(file, self)

    def dup(self, fd: int) -> int:
        return self._disk.open(self._disk.file(fd), self)

    def close(self, fd: int) -> None:
        self._disk.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        file = self._disk.file(fd)
        return os.stat_result((file.mode, file.number, 1, 1, os.geteuid(), os.getegid(), len(file.data), 0, 0, 0))

    def read_at(self, fd: int, start: int, end: int) -> bytes:
        return bytes(self._disk.file(fd).data[start:end])

    def write_at(self, fd: int, data: bytes, start: int) -> int:
        self._change(self._disk.file(fd), (start, bytes(data)))
        return start + len(data)

    def ftruncate(self, fd: int, size: int) -> None:
        self._change(self._disk.file(fd), (size, None))

    def fdatasync(self, fd: int) -> None:
        file = self._disk.file(fd)
        self._disk.count()
        self._disk.syncs += 1
        if self._disk.failing_syncs:
            self._disk.failing_syncs -= 1
            file.unsynced.clear()  # nobody will write these pages
            raise _error(errno.EIO)
        file.sync()

    def fsync(self, fd: int) -> None:
        self.fdatasync(fd)

    def fchmod(self, fd: int, mode: int) -> None:
        file = self._disk.file(fd)
        file.mode = stat.S_IFMT(file.mode) | mode

    def rename(self, before: str, after: str, directory: int) -> None:
        parent = self._disk.file(directory)
        file = self._disk.find(before, directory)
        self._disk.count()
        parent.change((after, file))
        parent.change((before, None))

    def unlink(self, name: str, directory: int) -> None:
        self._disk.find(name, directory)
        self._change(self._disk.file(directory), (name, None))

    def try_lock(self, fd: int) -> bool:
        file = self._disk.file(fd)
        if file.locked_by is None:
            file.locked_by = fd
        return file.locked_by == fd

    def unlock(self, fd: int) -> None:
        file = self._disk.file(fd)
        if file.locked_by == fd:
            file.locked_by = None

    def identity(self, file: int | str, directory: int | None = None) -> tuple[int, int] | None:
        try:
            found = self._disk.file(file) if isinstance(file, int) else self._disk.find(file, directory)
        except OSError:
            return None
        return 1, found.number

    def _change(self, file: _File, change: Any) -> None:
        file.change(change)
        self._disk.count()


class DiskWorker(Executor):
    """In place of a thread that blocks on the disk: each call takes effect at one moment, and ends later.

    Calls of a process that is frozen, or killed, do not go on.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._disk = process.machine.disk
        self._loop = process.machine.wire.loop
        self._calls: deque[Callable[[], None]] = deque()
        self._failed = False

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        future: Future[T] = Future()
        on_write = self._process.on_write
        written = None if on_write is None else on_write()
        self._calls.append(partial(self._run, future, partial(function, *args, **options), written))
        if len(self._calls) == 1:
            self._soon(self._calls[0])
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_later(self._disk.rng.random() * self._disk.latency, call)

    def _run(self, future: Future[T], call: Callable[[], T], written: Callable[[], None] | None) -> None:
        try:
            result = call()
        except PowerLostError:
            return
        except BaseException as error:
            self._failed = True
            self._process.on_write = None  # what was to be written is lost, whatever a later call writes
            self._soon(partial(self._finish, partial(future.set_exception, error)))
        else:
            if written is not None and not self._failed:
                written()
            self._soon(partial(self._finish, partial(future.set_result, result)))

    def _finish(self, tell: Callable[[], None]) -> None:
        self._calls.popleft()
        if self._calls:
            self._soon(self._calls[0])
        tell()


def _error(number: int, kind: type[OSError] = OSError) -> OSError:
    return kind(number, os.strerror(number))
