"""Reads from sockets into one buffer that all connections of a thread share.

asyncio's plain protocols allocate 256 KiB for each read, however short; on some machines that costs more than the read
itself. Each read is copied out at once, so one buffer is enough.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod

__all__ = ["SharedBufferProtocol"]

SIZE = 64 * 1024


class _Spare(threading.local):
    """The buffer of a thread."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SIZE))


_spare = _Spare()


class SharedBufferProtocol(asyncio.BufferedProtocol, ABC):
    """Calls ``data_received`` as ``asyncio.Protocol`` does."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _spare.view

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_spare.view[:nbytes]))

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Take the bytes of one read."""
