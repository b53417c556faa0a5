"""Whole reads and writes of plain files, and locks. Everything here blocks."""

from __future__ import annotations

import fcntl
import os

__all__ = ["identity", "read_at", "try_lock", "unlock", "write_at"]


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
