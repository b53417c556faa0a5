"""A disk that is as slow as a test wants it to be, or fails."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from rendezvous_async.backends.table.log import Log
from tests.backends.tcp.support import eventually


class Disk:
    """A log whose syncs wait until they are let through, or fail; it counts them."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.log = Log.open(str(path), exclusive=True)
        self.path = path
        self.syncs = 0
        self.fails = False
        self.free = threading.Event()
        self.free.set()
        self.reached = threading.Event()
        true = os.fdatasync

        def sync(fd: int) -> None:
            self.syncs += 1
            self.reached.set()
            assert self.free.wait(60)
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
            true(fd)

        patch.setattr(os, "fdatasync", sync)

    def hold_up(self) -> None:
        """Let the next sync wait."""
        self.free.clear()
        self.reached.clear()

    async def is_syncing(self) -> None:
        await eventually(self.reached.is_set)

    async def let_one_through(self) -> None:
        """Let the sync that waits end, and the next one wait."""
        syncs = self.syncs
        self.free.set()
        self.free.clear()
        await eventually(lambda: self.syncs > syncs)
