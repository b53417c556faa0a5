"""Group commit over a ``Log``: nothing leaves the server before the changes it reflects are on disk.

The table changes at once, in memory. The record of the change, and every answer and push after it, wait here. While a
worker thread syncs one batch of records, the next one gathers, so one fdatasync serves many commits, and the event loop
never waits for the disk. Answers to reads are held back too while a change is being written: no reader and no watcher
ever sees what a crash could still undo.

When the disk fails, its state is unknown and the table in memory is ahead of it: the held answers are dropped and the
server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from rendezvous_async.aio import clock
from rendezvous_async.backends.system import system
from rendezvous_async.backends.table.frames import LogRecord
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import Snapshot
from rendezvous_async.backends.tcp.server.counts import SYNC_BOUNDS, Durations
from rendezvous_async.backends.tcp.server.turns import Turns
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Journal", "Outlet"]

logger = logging.getLogger("rendezvous_async.server")

RETRY_SNAPSHOT = 60.0


class Outlet(Protocol):
    """The destination of answers: a connection."""

    def take_unsent(self) -> bytearray:
        """Hand over the queued bytes."""

    def release(self, data: bytearray) -> None:
        """Send bytes that were taken before."""


class Journal:
    """Records on their way to the disk, and the answers that wait for them.

    Args:
        log: An open log, which the journal owns.
        on_failure: Called once with the error when the disk has failed.
    """

    def __init__(self, log: Log, on_failure: Callable[[Exception], None]) -> None:
        self._log = log
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._thread = system().worker("rendezvous-log")
        self._records: list[LogRecord] = []
        self._waiting: dict[Outlet, None] = {}
        self._held: deque[tuple[Outlet, bytearray]] = deque()
        self._turns = Turns()
        self._scheduled = False
        self._writing = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._failed = False
        self._no_snapshot_before = 0.0
        self._closed: asyncio.Future[None] | None = None
        self.sync_times = Durations(SYNC_BOUNDS)
        self._began = 0.0

    def __repr__(self) -> str:
        return f"<Journal {self._log!r} records={len(self._records)}{' failed' if self._failed else ''}>"

    @property
    def idle(self) -> bool:
        """Whether all changes are on disk, so that answers may be sent at once."""
        return not self._writing and not self._records and not self._failed

    def record(self, record: LogRecord) -> None:
        """Queue the record of a change, to be written at the end of this turn of the loop with all others."""
        if self._failed:
            return
        self._records.append(record)
        self._quiet.clear()
        if not self._writing and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def hold(self, outlet: Outlet) -> None:
        """Release the answers of ``outlet`` when all changes so far are on disk."""
        self._waiting[outlet] = None

    async def aclose(self) -> None:
        """Wait until everything is on disk, and close the log; may be called more than once."""
        await self._quiet.wait()
        if self._closed is None:
            self._closed = self._loop.run_in_executor(self._thread, self._log.close)
            self._thread.shutdown(wait=False)
        # Shielded: a cancelled caller must not cancel the close for other callers.
        await asyncio.shield(self._closed)

    def _write(self) -> None:
        self._scheduled = False
        if self._failed:
            return
        records, self._records = self._records, []
        self._held.extend([(outlet, outlet.take_unsent()) for outlet in self._waiting])
        self._waiting.clear()
        snapshot = None
        if self._log.is_long and clock.now() >= self._no_snapshot_before:
            snapshot = self._log.table.snapshot()
        self._writing = True
        self._began = self._turns.now()
        future = self._thread.submit(self._to_disk, records, snapshot)
        future.add_done_callback(self._call_back)

    def _to_disk(self, records: list[LogRecord], snapshot: Snapshot | None) -> bool:
        """Write a batch, on the thread; tell whether a snapshot was due and failed."""
        if snapshot is not None:
            try:
                self._log.compact(snapshot)  # it includes the records
                return False
            except RendezvousConnectionError as error:
                if self._log.broken:
                    raise
                logger.warning("the log continues without a snapshot: %s", error)
        self._log.append(records)
        return snapshot is not None

    def _call_back(self, future: Future[bool]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._written, future)

    def _written(self, future: Future[bool]) -> None:
        error = future.exception()
        if error is not None:
            self._failed = True
            self._held.clear()
            self._waiting.clear()
            self._quiet.set()
            self._on_failure(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        self.sync_times.add(self._turns.now() - self._began)
        if future.result():
            self._no_snapshot_before = clock.now() + RETRY_SNAPSHOT
        self._turns.do(self._release)

    def _release(self, end: float) -> bool:
        """Send the answers that wait for this batch, in slices; then start the next batch."""
        while self._held:
            outlet, data = self._held.popleft()
            outlet.release(data)
            if self._turns.now() >= end and self._held:
                return True
        self._writing = False
        if self._records:
            self._write()
            return False
        self._quiet.set()
        waiting, self._waiting = self._waiting, {}
        self._turns.for_each(waiting, self._let_go)
        return False

    def _let_go(self, outlet: Outlet) -> None:
        """Send a peer's answers if all changes are on disk; it may have made more while others were served."""
        if self.idle:
            outlet.release(outlet.take_unsent())
        else:
            self.hold(outlet)
