"""Disks that fail: a small one that can be full, and syncs that the disk refuses.

A full disk is real where the machine lets us mount one (a tmpfs of some megabytes, filled with a file). A failed sync
needs a broken disk, so it is played where Python meets the system: in a process that called ``fail_syncs_on_signal``,
SIGUSR1 makes the next fsync or fdatasync raise EIO, as it does when the kernel could not write a page back.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

__all__ = ["Disk", "fail_syncs_on_signal", "run_command"]

SIZE = 48 * 1024 * 1024


def fail_syncs_on_signal() -> None:
    """Let SIGUSR1 make this process's next sync fail."""
    broken: list[int] = []

    def failing(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync_or_fail(fd: Any) -> None:
            if broken:
                broken.clear()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(fd)

        return sync_or_fail

    for name in ("fsync", "fdatasync"):
        setattr(os, name, failing(getattr(os, name)))
    signal.signal(signal.SIGUSR1, lambda number, _: broken.append(number))


class Disk:
    """A directory; on a small disk of its own, if this process may mount one.

    Attributes:
        path: Where to put things.
        why_not: Why it is an ordinary directory; empty if it is a disk of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.why_not = ""
        self._filler = path / "filler"

    def __repr__(self) -> str:
        return f"<Disk {self.path} {self.why_not or 'small'}>"

    def mount(self) -> None:
        """Make the directory, and mount the disk there."""
        self.path.mkdir(mode=0o700)
        options = f"size={SIZE},mode=0700"
        done = run_command("mount", "-t", "tmpfs", "-o", options, "campaign", str(self.path))
        self.why_not = "" if done is None else f"no small disk: {done}"

    def unmount(self) -> None:
        """Take the disk away, with all that is on it."""
        if not self.why_not:
            run_command("umount", "--lazy", str(self.path))

    def fill(self) -> None:
        """Leave no room for anything."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)

    async def be_full(self, seconds: float) -> None:
        """Be full for a while."""
        try:
            await to_thread.run_sync(self.fill)
            await anyio.sleep(seconds)
        finally:
            self.free()


def run_command(*command: str) -> str | None:
    """Run a system command; return None, or in a few words why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[0]
