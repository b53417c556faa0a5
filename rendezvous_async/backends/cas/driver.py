"""The driver of one fenced value: every call is work for the replica, awaited with a timeout."""

from __future__ import annotations

import math
from random import Random

from anyio.lowlevel import checkpoint

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.cas.image import Draft
from rendezvous_async.backends.cas.replica import Replica
from rendezvous_async.backends.cas.value import FencedValue
from rendezvous_async.backends.driver import Driver, Granted, Opening, Sink, Subscription, closed_error
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write
from rendezvous_async.errors import RendezvousSessionError

__all__ = ["CasDriver"]

LIMIT = 1024 * 1024
GATHER = 0.05
"""The fraction of its TTL for which a keep-alive may wait to share a write with other calls of this process."""


class CasDriver(Driver):
    """A client of one value.

    Args:
        value: The store; closed with the driver.
        limit: Upper bound on the bytes of the value; some stores take less than others.
        timeout: Seconds after which a call that got no answer fails.
        call_timeout: Seconds after which a call to the store is repeated.
        rng: The source of epochs and delays, for tests that must repeat.
        outage: Where it is reported that the store does not answer.
    """

    max_writes = 256
    max_bytes = LIMIT // 2

    def __init__(
        self,
        value: FencedValue,
        *,
        limit: int = LIMIT,
        timeout: float = 10.0,
        call_timeout: float = 2.0,
        rng: Random | None = None,
        outage: Outage | None = None,
    ) -> None:
        self.name = value.name
        self.max_bytes = limit // 2
        self._outage = outage or Outage("a backend over one value", value.name)
        self._replica = Replica(
            value, rng or Random(), self._outage, limit=limit, timeout=timeout, call_timeout=call_timeout
        )
        self._subscriptions: dict[CasSubscription, None] = {}
        self._ttls: dict[str, float] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<CasDriver {self._replica!r}>"

    @property
    def trouble(self) -> str | None:
        return str(self._outage) if self._outage.cause else None

    @property
    def sessions(self) -> int:
        """The number of sessions of all clients when the value was last read."""
        return len(self._replica.image.beats)

    async def get(self, key: str) -> Entry | None:
        await self._enter()
        return await self._replica.call(lambda draft: draft.table.get(key), writes=False)

    async def list(self, name: str) -> Listing:
        await self._enter()
        return await self._replica.call(lambda draft: draft.table.list(name), writes=False)

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        await self._enter()
        return await self._replica.call(lambda draft: draft.commit(writes, when), writes=bool(writes))

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        await self._enter()
        sent_at = clock.lease_now()
        id, commit = await self._replica.call(
            lambda draft: draft.open_session(opening.ttl, opening.writes, opening.when), undo=_end_opened
        )
        session = Session(self, id, opening.ttl, sent_at)
        self._ttls[id] = opening.ttl
        self._replica.own(id, session.lost)
        return Granted(session, commit)

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        await self._enter()
        within = GATHER * self._ttls.get(session, 0.0)
        try:
            await self._replica.call(lambda draft: draft.keep_alive(session), within=within)
        except RendezvousSessionError:
            self._ttls.pop(session, None)
            raise

    async def end_session(self, session: str, cause: str = "") -> None:
        await self._enter()
        self._replica.disown(session)
        await self._replica.call(lambda draft: draft.end_session(session, cause))
        self._ttls.pop(session, None)

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        if self._is_closed:
            raise closed_error(self.name)
        return CasSubscription(self._replica, names, after, sink, self._subscriptions)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._replica.aclose()
        for subscription in tuple(self._subscriptions):
            subscription.fail(closed_error(self.name))

    async def _enter(self) -> None:
        """Check that the driver is open; a cancelled caller stops here, before anything is done."""
        if self._is_closed:
            raise closed_error(self.name)
        await checkpoint()


class CasSubscription:
    """Compares the value with what was pushed before, whenever the replica has read it.

    Args:
        replica: The copy of the value.
        names: The watched names.
        after: Where to start.
        sink: Receives the listings.
        others: The open subscriptions of this driver; it adds and removes itself.
    """

    def __init__(
        self,
        replica: Replica,
        names: tuple[str, ...],
        after: Token | None,
        sink: Sink,
        others: dict[CasSubscription, None],
    ) -> None:
        self._replica = replica
        self._names = names
        self._position = after
        self._sink = sink
        self._others = others
        self._current_at = -math.inf
        others[self] = None
        self._first = replica.add_watcher(self.look)

    @property
    def current_at(self) -> float:
        return self._current_at

    def look(self) -> None:
        """Push what has changed; only a read that began after this was created counts."""
        replica = self._replica
        if replica.failure is not None:
            self.fail(replica.failure)
        elif self in self._others and replica.seen >= self._first:
            self._current_at = replica.checked_at
            listing = replica.image.table.changes(self._names, self._position)
            if listing is not None:
                self._position = listing.token
                self._sink.take(listing)

    def fail(self, error: Exception) -> None:
        """End the watch with an error."""
        if self in self._others:
            self.close()
            self._sink.fail(error)

    def close(self) -> None:
        self._others.pop(self, None)
        self._replica.remove_watcher(self.look)


def _end_opened(draft: Draft, result: tuple[str, Commit]) -> None:
    """End a session that was opened after its owner had given up."""
    draft.end_session(result[0])
