"""One end of a simulated TCP connection: an asyncio transport, and what the kernel keeps for it.

Bytes leave in order. They wait here while too many are under way (``WINDOW``), on the wire for as long as the ``Wire``
says, and at the other end until the process there reads them. So a reader that is slow, paused or frozen fills its
window and then the writer's buffer, and the writer is told to pause, as with real sockets.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

if TYPE_CHECKING:
    from rendezvous_async.testing.machine import Process

__all__ = ["FIN", "RST", "Item", "WireTransport"]

FIN: Final = b""
"""The writer is done."""
RST: Final = None
"""The connection is broken."""
Item: TypeAlias = bytes | None

WINDOW: Final = 64 * 1024
READ: Final = 64 * 1024


class WireTransport(asyncio.Transport):
    """One end of a connection.

    Args:
        process: Whose end it is.
        local: The address of this end.
        remote: The address of the other end.
        dialled: Whether this end dialled: what it writes are requests.

    Attributes:
        peer: The other end.
        flying: What is on the wire, in order.
        stuck: What could not arrive and is sent again when the way is free.
        last_at: When the last of it arrives at the earliest.
        broken: Whether bytes were lost, so that nothing may follow but a reset.
        gone: Whether the kernel knows of this end no more.
        vanished: Whether its machine has lost its power, so that nobody repeats what does not arrive.
    """

    def __init__(self, process: Process, local: tuple[str, int], remote: tuple[str, int], *, dialled: bool) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.peer: WireTransport
        self.process = process
        self.dialled = dialled
        self.flying: deque[Item] = deque()
        self.stuck: deque[Item] = deque()
        self.last_at: float = 0.0
        self.broken: bool = False
        self.gone: bool = False
        self.vanished: bool = False
        self._wire = process.machine.wire
        self._loop = process.machine.wire.loop
        self._context = copy_context()
        self._protocol: Any = None
        self._out: deque[bytes] = deque()
        self._size = 0
        self._under_way = 0
        self._inbox: deque[Item] = deque()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._told_to_pause = False
        self._reading = False
        self._read_soon = False
        self._eof_written = self._fin_sent = False
        self._closing = False
        process.transports[self] = None

    def __repr__(self) -> str:
        return f"<WireTransport {self.get_extra_info('sockname')} to {self.get_extra_info('peername')}>"

    def attach(self, protocol: Any) -> None:
        """Give the connection to a protocol, whose callbacks run in the caller's context."""
        self._context = copy_context()
        self._protocol = protocol
        protocol.connection_made(self)
        self.resume_reading()

    # What a protocol calls

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = not self._closing
        self._look()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (64 * 1024 if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._size

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        if RST in self._inbox:  # not read yet, as reading is paused
            self._lose(_error(errno.ECONNRESET))
            return
        self._out.append(bytes(data))
        self._size += len(data)
        self._send()
        if self._size > self._high and not self._told_to_pause:
            self._told_to_pause = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_written and not self._closing:
            self._eof_written = True
            self._send()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            self._send()

    def abort(self) -> None:
        self._out.clear()
        self._size = 0
        if not self.gone:
            self._closing = True
            self._finish(None)

    # What the kernel does

    def _send(self) -> None:
        """Send as much as the window takes, and then the end, if that was asked for."""
        while self._out and self._under_way < WINDOW:
            data = self._out.popleft()
            self._size -= len(data)
            self._under_way += len(data)
            self._wire.carry(self, data)
        if self._told_to_pause and self._size <= self._low:
            self._told_to_pause = False
            self._loop.call_soon(self._resume_writing, context=self._context)
        if not self._out and not self.gone:
            if self._closing:
                self._finish(None)
            elif self._eof_written:
                self._end()

    def _resume_writing(self) -> None:
        if not self._closing:
            self._protocol.resume_writing()

    def acknowledge(self, size: int) -> None:
        """Note that the other end has read so many bytes."""
        self._under_way -= size
        if self._out:
            self._send()

    def receive(self, item: Item) -> None:
        """Take what arrives."""
        if self.gone:
            if item is not RST:
                self._wire.carry(self, RST)  # nobody is here
        elif item is RST and self._out:
            self._lose(_error(errno.ECONNRESET))
        else:
            self._inbox.append(item)
            self._look()

    def _look(self) -> None:
        if self._inbox and self._reading and not self._read_soon:
            self._read_soon = True
            self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._read_soon = False
        if not self._reading or self.gone:
            return
        data = b"".join(self._take_bytes())
        if data:
            self.peer.acknowledge(len(data))
            self._feed(data)
        elif self._inbox.popleft() is RST:
            self._lose(_error(errno.ECONNRESET))
        elif not self._protocol.eof_received():
            self.close()
        self._look()

    def _take_bytes(self) -> Iterator[bytes]:
        """Take what has come before the end of the connection; how it was written does not matter."""
        while self._inbox and (item := self._inbox[0]):
            yield item
            self._inbox.popleft()

    def _feed(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        for start in range(0, len(data), READ):
            part = data[start : start + READ]
            memoryview(protocol.get_buffer(-1))[: len(part)] = part
            protocol.buffer_updated(len(part))

    def _finish(self, error: Exception | None) -> None:
        """Close the socket: with bytes unread, that is a reset for the other end."""
        self._end()
        self._lose(error)

    def _end(self) -> None:
        """Tell the other end that nothing follows; once."""
        if any(self._inbox):
            self._wire.carry(self, RST)
        elif not self._fin_sent:
            self._fin_sent = True
            self._wire.carry(self, FIN)

    def _lose(self, error: Exception | None) -> None:
        if not self.gone:
            self._closing = True
            self.forget()
            if self._protocol is not None:
                self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def forget(self) -> None:
        """Let the kernel know of this end no more; the protocol is not told."""
        self.gone = True
        self._reading = False
        self._out.clear()
        self._inbox.clear()
        self.process.transports.pop(self, None)

    def die(self) -> None:
        """End with the process, which is not told."""
        if not self.gone:
            self._end()
            self.forget()

    def time_out(self) -> None:
        """Find that the other end does not answer any more."""
        self._lose(_error(errno.ETIMEDOUT))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
