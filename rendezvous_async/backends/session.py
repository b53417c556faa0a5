"""A session as its owner sees it: a lease on the backend's clock, with a deadline on the owner's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.aio.signal import Latch
from rendezvous_async.causes import Cause
from rendezvous_async.errors import RendezvousSessionError

if TYPE_CHECKING:
    from rendezvous_async.backends.driver import Driver

__all__ = ["OUT_AFTER", "Session"]

OUT_AFTER = 0.75
"""The fraction of the TTL after which the owner counts itself out, by its own clock."""


class Session:
    """A lease on the backend's clock, as its owner sees it.

    Attributes:
        id: The session's name in entries.
        ttl: The granted seconds; the backend ends the session that long after the last keep-alive.
        deadline: When the owner must count itself out, by ``clock.lease_now()``: the send time of the last answered
            keep-alive plus three quarters of the TTL.
        lost: Set when the backend has said that the session is over. Silence never sets it; see ``deadline``.
        why_out: Why the owner is out once the deadline has passed; it may know better than that it was silent.

    Args:
        driver: Keeps the session alive and ends it. A driver that notices the end by itself sets ``lost``.
        sent_at: When the opening request was sent, by ``clock.lease_now()``.
    """

    def __init__(self, driver: Driver, id: str, ttl: float, sent_at: float) -> None:
        self.id = id
        self.ttl = ttl
        self.deadline: float = sent_at + OUT_AFTER * ttl
        self.lost: Latch = Latch()
        self.why_out: str = Cause.SILENT
        self._driver = driver

    def __repr__(self) -> str:
        return f"<Session {self.id} ttl={self.ttl:g}{' lost' if self.lost.is_set() else ''}>"

    async def keep_alive(self, deadline: Deadline | None = None) -> None:
        """Send one keep-alive and wait for its answer, until ``deadline`` at the latest.

        Raises:
            RendezvousSessionError: The backend has ended the session; ``lost`` is set.
            RendezvousConnectionError: No answer; the session may or may not be alive.
        """
        sent_at = clock.lease_now()
        try:
            with self._driver.bounded(deadline):
                await self._driver.keep_alive(self.id, deadline)
        except RendezvousSessionError:
            self.lost.set()
            raise
        self.deadline = max(self.deadline, sent_at + OUT_AFTER * self.ttl)

    async def aclose(self, cause: str = Cause.LEFT) -> None:
        """End the session; its keys are deleted at once. May be called twice."""
        await self._driver.end_session(self.id, cause)
