"""A session as its owner holds it: a lease on the backend's clock, and how long it lasts by the owner's own."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rendezvous_async import clock
from rendezvous_async.clock import Patience, answer_within
from rendezvous_async.notice import Latch

__all__ = ["OUT_AFTER", "Session"]

OUT_AFTER = 0.75
"""The part of its TTL after which a session's owner counts itself out, by its own clock."""


class Session(ABC):
    """A lease on the backend's clock, and this process's own view of it.

    Attributes:
        id: Names it in entries.
        ttl: Seconds, as granted; the backend ends the session so long after the last keep-alive.
        deadline: By ``clock.lease_now()``, when its owner must count itself out: the send time of the last keep-alive
            that was answered, plus three quarters of the TTL.
        lost: Set when the backend has said that the session is over. Silence never sets it: look at the deadline.

    Args:
        sent_at: When the request that opened it was sent, by ``clock.lease_now()``.
    """

    def __init__(self, id: str, ttl: float, sent_at: float) -> None:
        self.id = id
        self.ttl = ttl
        self.deadline = sent_at + OUT_AFTER * ttl
        self.lost = Latch()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} ttl={self.ttl:g}{' lost' if self.lost.is_set() else ''}>"

    async def keep_alive(self, patience: Patience | None = None) -> None:
        """Send one keep-alive and wait for its answer, at most as long as ``patience`` says.

        Raises:
            RendezvousSessionError: The backend has ended the session; ``lost`` is set.
            RendezvousConnectionError: No answer; the session may or may not be alive.
        """
        sent_at = clock.lease_now()
        await (self._refresh() if patience is None else self._refresh_within(patience))
        self.deadline = max(self.deadline, sent_at + OUT_AFTER * self.ttl)

    @abstractmethod
    async def _refresh(self) -> None: ...

    async def _refresh_within(self, patience: Patience) -> None:
        with answer_within(*patience):
            await self._refresh()

    @abstractmethod
    async def aclose(self) -> None:
        """End the session now: its keys are deleted at once. Ending it twice is no error."""
