"""Live news of all runs as server-sent events, the same bytes for every reader.

A new reader gets everything that is shown, then what changes: each changed run once, in brief, however often it has
changed in between. Work is bounded: news go out at most every ``EVERY`` seconds, and at most 5 % of the server's time
is spent on them, or once in ``LONGEST_PAUSE`` seconds; a run is encoded once for all readers. Memory is bounded, too:
there are at most ``MAX_READERS``, and one that does not read gets nothing until it reads again, and then everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec

from rendezvous_async.aio import clock
from rendezvous_async.page.overview import SHOWN_RUNS, Overview

__all__ = ["Live", "LiveReader"]

MAX_READERS = 32
EVERY = 0.5
LONGEST_PAUSE = 5.0
BEAT = 10.0
"""Seconds between two signs of life, so that both sides notice a dead connection."""


class LiveReader(Protocol):
    """One connection that reads."""

    @property
    def is_slow(self) -> bool:
        """Whether it has much unread."""

    def push(self, data: bytes) -> None:
        """Send bytes."""


class Server(msgspec.Struct, frozen=True):
    """What is told of the server."""

    endpoint: str
    connections: int
    sessions: int
    revision: int


class LiveNews(msgspec.Struct, frozen=True):
    """One event.

    Attributes:
        now: The server's monotonic clock, by which all times are.
        whole: Whether this is everything; otherwise it is what has changed.
        server: The server.
        runs: Runs in brief.
        gone: Ids of runs that are no longer shown.
        hidden: How many runs are not shown, by state.
    """

    now: float
    whole: bool
    server: Server
    runs: Sequence[msgspec.Raw]
    gone: Sequence[str]
    hidden: dict[str, int]


class Live:
    """Tells readers what happens to the runs of a server."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._readers: dict[LiveReader, None] = {}
        self._behind: set[LiveReader] = set()
        self._encoded: dict[str, msgspec.Raw] = {}
        self._dirty: set[str] = set()
        self._shown: list[str] = []
        self._took = 0.0
        self._told_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        overview.listeners.append(self._on_news)

    def __repr__(self) -> str:
        return f"<Live readers={self.readers} behind={len(self._behind)}>"

    @property
    def readers(self) -> int:
        """How many readers there are."""
        return len(self._readers)

    def enter(self, reader: LiveReader) -> bool:
        """Tell a reader everything, and from now on what changes; False if there are too many."""
        if len(self._readers) >= MAX_READERS:
            return False
        if self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(BEAT, self._send_beat)
        self._readers[reader] = None
        self._behind.add(reader)
        self._set_timer()
        return True

    def leave(self, reader: LiveReader) -> None:
        """Forget a reader."""
        self._readers.pop(reader, None)
        self._behind.discard(reader)
        if not self._readers:
            self._stop()

    def wake(self, reader: LiveReader) -> None:
        """Note that a reader reads again."""
        if reader in self._behind:
            self._set_timer()

    def close(self) -> None:
        """Stop telling."""
        self._overview.listeners.remove(self._on_news)
        self._stop()

    def _stop(self) -> None:
        for timer in (self._timer, self._beat):
            if timer is not None:
                timer.cancel()
        self._timer = self._beat = None
        self._encoded.clear()
        self._dirty.clear()
        self._shown = []

    def _on_news(self, run_ids: Sequence[str]) -> None:
        if self._readers:
            self._dirty.update(run_ids)
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None:
            due = self._told_at + min(max(EVERY, 20 * self._took), LONGEST_PAUSE) - clock.now()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due), self._tell)

    def _send_beat(self) -> None:
        for reader in self._readers:
            if not reader.is_slow:
                reader.push(b": still here\n\n")
        self._beat = asyncio.get_running_loop().call_later(BEAT, self._send_beat)

    def _tell(self) -> None:
        began = self._told_at = clock.now()
        if self._behind:
            self._overview.look()  # Whoever begins to read sees what there is now.
        self._timer = None
        ranked = self._overview.ranked()
        before, self._shown = self._shown, ranked[:SHOWN_RUNS]
        dirty, self._dirty = self._dirty, set()
        for run_id in dirty:
            self._encoded.pop(run_id, None)
        changed = [run_id for run_id in self._shown if run_id not in self._encoded]
        for run_id in changed:
            self._encoded[run_id] = msgspec.Raw(msgspec.json.encode(self._overview.summary(run_id)))
        shown = set(self._shown)
        gone = [run_id for run_id in before if run_id not in shown]
        for run_id in gone:
            self._encoded.pop(run_id, None)
        up_to_date = [reader for reader in self._readers if reader not in self._behind]
        if changed or gone:
            self._push(up_to_date, self._event(False, changed, gone, ranked))
        behind = [reader for reader in self._behind if not reader.is_slow]
        if behind:
            self._push(behind, self._event(True, self._shown, (), ranked))
            self._behind.difference_update(behind)
        self._took = clock.now() - began

    def _push(self, readers: Sequence[LiveReader], event: bytes) -> None:
        for reader in readers:
            if reader.is_slow:
                self._behind.add(reader)
            else:
                reader.push(event)

    def _event(self, whole: bool, run_ids: Sequence[str], gone: Sequence[str], ranked: Sequence[str]) -> bytes:
        server = self._overview.server
        news = LiveNews(
            now=round(clock.now(), 2),
            whole=whole,
            server=Server(server.endpoint, server.connections, server.table.sessions, server.table.revision),
            runs=[self._encoded[run_id] for run_id in run_ids],
            gone=gone,
            hidden=dict(Counter(self._overview.state(run_id).value for run_id in ranked[SHOWN_RUNS:])),
        )
        return b"data: " + msgspec.json.encode(news) + b"\n\n"
