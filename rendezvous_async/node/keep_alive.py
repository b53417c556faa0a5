"""Keep-alives: a node refreshes its session, and notices when it is out.

All times here are by the clock that also counts while the machine is suspended (``clock.lease_now``).
"""

from __future__ import annotations

import asyncio
import logging

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Session
from rendezvous_async.causes import Cause
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.node.events import EventKind
from rendezvous_async.node.participant import Participant

__all__ = ["KeepAlive"]

_log = logging.getLogger("rendezvous_async.node")


class KeepAlive:
    """Refreshes a node's session, beginning one interval after it was opened.

    Attributes:
        unanswered: Why the last keep-alive got no answer; None if it got one.
        stalled: Seconds for which the event loop has stood still since the last answer.
    """

    def __init__(self, session: Session, who: Participant) -> None:
        self.unanswered: str | None = None
        self.stalled = 0.0
        self._session = session
        self._who = who
        self._due = clock.lease_now() + who.interval

    @property
    def first_in(self) -> float:
        """Seconds until ``run`` must begin."""
        return min(self._due, self._session.deadline) - clock.lease_now()

    @property
    def is_out(self) -> bool:
        """Whether this node is out by its own clock."""
        return clock.lease_now() >= self._session.deadline

    @property
    def why_out(self) -> str:
        """Why this node is out by its own clock; empty if it is not."""
        return self._session.why_out if self.is_out else ""

    def out_error(self) -> RendezvousSessionError:
        """Return what to raise when this node is out by its own clock."""
        return RendezvousSessionError(
            f"node {self._who.node}: no keep-alive was answered for {self._session.ttl * 0.75:g} s, so by its own "
            "clock this node is out"
        )

    async def run(self) -> None:
        """Send keep-alives until this node is out.

        Raises:
            RendezvousSessionError: It is out: the backend says so, or its own clock does.
        """
        session, interval, node = self._session, self._who.interval, self._who.node
        while True:
            self.report_stall()
            now = clock.lease_now()
            if now >= session.deadline:
                raise self.out_error()
            # Counted from the sending: if there is no answer within the interval, the next one follows at once.
            self._due = now + interval
            try:
                seconds = min(self._who.timeouts.heartbeat, interval, session.deadline - now)
                await session.keep_alive(Deadline.after(seconds, "keep-alive"))
                self.unanswered, self.stalled, session.why_out = None, 0.0, Cause.SILENT
            except RendezvousConnectionError as error:
                self.unanswered = str(error)
                left = max(0.0, session.deadline - clock.lease_now())
                text = "node %s: %s; out in %.1f s unless it comes back"
                _log.warning(text, node, error, left, extra=self._who.fields)
            await asyncio.sleep(min(self._due, session.deadline) - clock.lease_now())

    def report_stall(self) -> None:
        """Report a stall of the event loop, once: the keep-alive is late by more than an interval."""
        late = clock.lease_now() - self._due
        if late > self._who.interval:
            self._due += late
            self.stalled = late
            self._session.why_out = Cause.STALLED
            _log.warning(
                "node %s: the event loop stalled for %.1f s: something blocks it, or this machine was suspended",
                self._who.node,
                late,
                extra=self._who.fields,
            )
            self._who.events.emit(EventKind.STALLED, detail=f"{late:.3f} s")
