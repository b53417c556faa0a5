"""A thin wrapper of Linux's inotify, which reports changes in a directory.

The standard library has none, and three libc calls do not justify a dependency. Without inotify ``open_inotify``
returns None, and on NFS it reports nothing: it only makes things faster, and nothing relies on it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

__all__ = ["CLOSE_WRITE", "MODIFY", "MOVED_TO", "Inotify", "open_inotify"]

MODIFY = 0x00000002
CLOSE_WRITE = 0x00000008
MOVED_TO = 0x00000080
_EVENT = struct.Struct("@iIII")


class Inotify:
    """Watches directories; ``fd`` is readable when there are events."""

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc = libc
        self.fd = fd

    def add(self, directory: int, mask: int) -> int | None:
        """Watch an open directory; return the mark of its events, or None if it cannot be watched."""
        mark = self._libc.inotify_add_watch(self.fd, f"/proc/self/fd/{directory}".encode(), ctypes.c_uint32(mask))
        return None if mark < 0 else int(mark)

    def remove(self, mark: int) -> None:
        """Stop watching a directory."""
        self._libc.inotify_rm_watch(self.fd, mark)

    def read(self) -> list[tuple[int, str]]:
        """Return the events, as (mark, file name), without waiting."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        events = []
        at = 0
        while at < len(data):
            mark, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            events.append((mark, os.fsdecode(data[at : at + length].rstrip(b"\0"))))
            at += length
        return events

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_inotify() -> Inotify | None:
    """Return a new inotify, or None if the system has none."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        return None
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    return None if fd < 0 else Inotify(libc, fd)
