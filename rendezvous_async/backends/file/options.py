"""The options of ``file://``."""

from __future__ import annotations

from rendezvous_async.backends.options import BackendOptions, Flag, Seconds

__all__ = ["FileOptions"]


class FileOptions(BackendOptions, frozen=True, kw_only=True):
    """The options of ``file://``.

    Attributes:
        fsync: Whether a commit is on disk before it is acknowledged; needed on network file systems, and to survive a
            power failure.
        inotify: Whether to use inotify.
        check: The longest interval, in seconds, between checks for changes without inotify.
        shared: Whether to accept a directory that other users can write.
        timeout: Seconds for one call.
    """

    fsync: Flag = True
    inotify: Flag = True
    check: Seconds = 0.25
    shared: Flag = False
    timeout: Seconds = 10.0

    @property
    def of_thread(self) -> str:
        """The options that all drivers of one directory in a process must share, as text."""
        return f"fsync={self.fsync} inotify={self.inotify} check={self.check:g}"
