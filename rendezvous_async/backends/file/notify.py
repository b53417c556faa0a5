"""The kernel's word that a directory has changed: a thin hold on Linux's inotify.

The standard library has none, and a dependency for three calls of libc would be more to keep than these lines. Where
there is no inotify, or the file system does not feed it (NFS), ``open_inotify`` returns None or stays silent: it is a
hint that makes things fast, and nothing relies on it.
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
    """Watches directories; ``fd`` becomes readable when something happened."""

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc = libc
        self.fd = fd

    def add(self, directory: int, mask: int) -> int | None:
        """Watch an open directory; return what marks its events, or None if it cannot be watched."""
        mark = self._libc.inotify_add_watch(self.fd, f"/proc/self/fd/{directory}".encode(), ctypes.c_uint32(mask))
        return None if mark < 0 else int(mark)

    def remove(self, mark: int) -> None:
        """Watch that directory no more."""
        self._libc.inotify_rm_watch(self.fd, mark)

    def read(self) -> list[tuple[int, str]]:
        """Return what happened, as (mark, file name); never waits."""
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
    """Return a new inotify, or None where the system has none to give."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        return None
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    return None if fd < 0 else Inotify(libc, fd)
