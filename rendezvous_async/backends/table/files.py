"""Whole reads and writes of plain files, and locks. Everything here blocks.

``Files`` has everything that a log does to a file system, so that a simulated disk can stand in for it.
"""

from __future__ import annotations

import fcntl
import os

__all__ = ["FILES", "Files", "identity", "read_at", "try_lock", "unlock", "write_at"]


def read_at(fd: int, start: int, end: int) -> bytes:
    """Read a file from ``start`` to ``end``, or to the end of the file."""
    parts = []
    while start < end and (part := os.pread(fd, end - start, start)):
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_at(fd: int, data: bytes, start: int) -> int:
    """Write all of ``data`` at ``start`` and return the offset after it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, start)
        view, start = view[written:], start + written
    return start


def try_lock(fd: int) -> bool:
    """Lock a file or directory until it is closed; False if it is locked elsewhere."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Undo ``try_lock``."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def identity(file: int | str, directory: int | None = None) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if there is none.

    Args:
        file: A descriptor, or a path.
        directory: A descriptor of the directory that the path is relative to.
    """
    try:
        status = os.fstat(file) if isinstance(file, int) else os.stat(file, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Files:
    """The files of this machine. The methods do what the functions of the same name in ``os`` do."""

    def makedirs(self, path: str, mode: int = 0o777) -> None:
        os.makedirs(path, mode, exist_ok=True)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return os.open(path, flags, mode, dir_fd=dir_fd)

    def dup(self, fd: int) -> int:
        return os.dup(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def read_at(self, fd: int, start: int, end: int) -> bytes:
        return read_at(fd, start, end)

    def write_at(self, fd: int, data: bytes, start: int) -> int:
        return write_at(fd, data, start)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def rename(self, before: str, after: str, directory: int) -> None:
        os.rename(before, after, src_dir_fd=directory, dst_dir_fd=directory)

    def unlink(self, name: str, directory: int) -> None:
        os.unlink(name, dir_fd=directory)

    def try_lock(self, fd: int) -> bool:
        return try_lock(fd)

    def unlock(self, fd: int) -> None:
        unlock(fd)

    def identity(self, file: int | str, directory: int | None = None) -> tuple[int, int] | None:
        return identity(file, directory)


FILES = Files()
"""The files of this machine; there is no state in it."""
