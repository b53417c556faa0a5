"""What happens to a node, as a stream of small values: for logs, dashboards and tests."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from typing import TypeAlias
from weakref import WeakSet

import msgspec

from rendezvous_async.aio import clock
from rendezvous_async.aio.signal import Notice
from rendezvous_async.logs import ROUND
from rendezvous_async.texts import printable

__all__ = ["Event", "EventKind", "Events", "Listener"]

_log = logging.getLogger("rendezvous_async.node")

MAX_QUEUED = 1024


class EventKind(StrEnum):
    """What happened."""

    JOINING = "joining"
    ARRIVED = "arrived"
    JOINED = "joined"
    JOIN_FAILED = "join_failed"
    NODES_WAITING = "nodes_waiting"
    MEMBER_LOST = "member_lost"
    RESIZED = "resized"
    EVICTED = "evicted"
    CLOSING = "closing"
    CLOSED = "closed"
    LEFT = "left"
    COORDINATING = "coordinating"
    RESIGNED = "resigned"
    SESSION_LOST = "session_lost"
    STALLED = "stalled"
    ENDED = "ended"


_LOGGED = {
    EventKind.ARRIVED: (logging.DEBUG, "arrived at the barrier"),
    EventKind.JOINED: (logging.INFO, "joined round {round}: {detail}"),
    EventKind.NODES_WAITING: (logging.INFO, "other nodes are waiting to join; round {round} can end"),
    EventKind.MEMBER_LOST: (logging.INFO, "round {round} has lost a member"),
    EventKind.RESIZED: (logging.INFO, "the size of round {round} is not allowed any more; the run was scaled"),
    EventKind.EVICTED: (logging.WARNING, "this node is out of round {round}"),
    EventKind.CLOSING: (logging.INFO, "closing the run: {detail}"),
    EventKind.CLOSED: (logging.INFO, "the run is closed"),
    EventKind.LEFT: (logging.INFO, "left the run"),
    EventKind.COORDINATING: (logging.INFO, "coordinating the run"),
    EventKind.SESSION_LOST: (logging.DEBUG, "session lost: {detail}"),
}
"""Level and message of each event in the log. The code that knows more logs the others, such as a stall."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to this node.

    Attributes:
        kind: What.
        at: When, by this process's monotonic clock (``anyio.current_time()``).
        round: In which round, or 0.
        detail: In words.
    """

    kind: EventKind
    at: float
    round: int = 0
    detail: str = ""


Listener: TypeAlias = Callable[[Event], None]


class Events:
    """Logs every event and hands it to every reader. A slow reader loses the oldest events, never the newest.

    Args:
        who: The run and the node, for the log.
        fields: What log records carry in ``extra=``.
    """

    def __init__(self, who: str = "", fields: Mapping[str, object] | None = None) -> None:
        self._who = who
        self._fields: Mapping[str, object] = fields or {}
        self._readers: WeakSet[_Reader] = WeakSet()
        self._listeners: list[Listener] = []
        self._ended = False
        self._was_asked = False

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every event as it happens; an error of the listener is logged."""
        self._was_asked = True
        self._listeners.append(listener)

    def emit(self, kind: EventKind, round: int = 0, detail: str = "") -> None:
        """Log an event, then hand it to listeners and readers."""
        level, text = _LOGGED.get(kind, (logging.NOTSET, ""))
        if text and _log.isEnabledFor(level):
            said = text.format(round=round, detail=printable(detail) or "no reason given")
            _log.log(level, "%s: %s", self._who, said, extra={**self._fields, ROUND: round} if round else self._fields)
        if not self._was_asked:
            return
        event = Event(kind, clock.now(), round, detail)
        self._tell_listeners(event)
        for reader in self._readers:
            reader.take(event)

    def _tell_listeners(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # It may run in the middle of the backend's work, which must not fail.
                _log.exception("a listener failed on %s", event, extra=self._fields)

    def end(self) -> None:
        """Tell the listeners that the rendezvous is over, and end every reader once its queue is empty."""
        self._tell_listeners(Event(EventKind.ENDED, clock.now()))
        self._ended = True
        for reader in self._readers:
            reader.end()

    def read(self) -> AsyncIterator[Event]:
        """Return an iterator over the events from this call on, until the rendezvous ends."""
        self._was_asked = True
        reader = _Reader()
        if self._ended:
            reader.end()
        else:
            self._readers.add(reader)
        return reader


class _Reader(AsyncIterator[Event]):
    """One reader's queue. It is dropped when the reader is."""

    def __init__(self) -> None:
        self._queue: deque[Event] = deque(maxlen=MAX_QUEUED)
        self._woken = Notice()
        self._ended = False

    def take(self, event: Event) -> None:
        self._queue.append(event)
        self._woken.fire()

    def end(self) -> None:
        self._ended = True
        self._woken.fire()

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._ended:
                raise StopAsyncIteration
            await self._woken.wait()
        return self._queue.popleft()
