"""The backend on an etcd v3 cluster: keys, leases and transactions, one etcd revision for each commit.

It is built on aetcd's stubs and messages. Its client is not used: that one has no member list, no TLS, no renewal of
auth tokens, and a watcher that does not resume. What belongs to whom here: ``Cluster`` is the way to the members,
``History`` the epoch, ``Commits`` writes exactly once, ``KeepAlives`` and ``Feeds`` are the two streams. All background
work is done by one task of each backend, and one more waits for each answer of gRPC (see calls.py); all of them end in
``aclose()``.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from random import Random

import anyio
from aetcd import rpc

from rendezvous_async import clock
from rendezvous_async.backends.base import (
    Backend,
    Commit,
    Condition,
    Entry,
    Listing,
    Session,
    Token,
    Watch,
    Write,
    closed_error,
)
from rendezvous_async.backends.etcd.channel import Cluster, logger
from rendezvous_async.backends.etcd.commits import Commits, grant
from rendezvous_async.backends.etcd.faults import EtcdRefusedError, Fault
from rendezvous_async.backends.etcd.feeds import Feeds
from rendezvous_async.backends.etcd.forks import in_child
from rendezvous_async.backends.etcd.history import History
from rendezvous_async.backends.etcd.lease import EtcdSession, KeepAlives, lease_id
from rendezvous_async.backends.etcd.options import Options
from rendezvous_async.backends.etcd.watch import EtcdWatch
from rendezvous_async.backends.outage import Outage
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import Endpoint, check_seconds

__all__ = ["EtcdBackend"]

MAX_OPERATIONS = 128
"""How many operations, and how many comparisons, etcd takes in a transaction (its default)."""
OWN_OPERATIONS = 2
"""Of those, ours: the epoch and the marker of the commit."""
LEASE_PART = 0.8
"""The part of a session's TTL that its lease lasts, rounded up to whole seconds.

The owner counts itself out after 0.75 of the TTL, so a longer lease only keeps the others waiting for a dead node. They
wait long enough if the leader dies with it: the new one gives every lease its full time again and an election timeout.
"""
CLOSING_TIMEOUT = 1.0


class EtcdBackend(Backend):
    """One run's view of an etcd cluster."""

    name = "etcd"
    max_writes = MAX_OPERATIONS - OWN_OPERATIONS
    max_bytes = 1024 * 1024
    """etcd takes 1.5 MiB in a request; the rest is for conditions and what the messages add."""

    def __init__(
        self,
        endpoint: Endpoint,
        run_id: str,
        options: Options,
        rng: Random | None = None,
        outage: Outage | None = None,
    ) -> None:
        super().__init__(run_id, options.namespace)
        self.prefix = "/" + self.prefix
        self.endpoint = endpoint
        self._rng = Random() if rng is None else rng
        namespace = f"/{options.namespace.strip('/')}/"
        self._cluster = Cluster(endpoint, options, self._rng, outage)
        self._history = History(self._cluster, namespace, self._rng)
        self._keep_alives = KeepAlives(self._cluster)
        self._feeds = Feeds(self._cluster, self._history)
        self._commits = Commits(self._cluster, self._history, self._keep_alives, namespace, self._rng)
        self._owner: asyncio.Task[None] | None = None
        self._closing = anyio.Event()

    def __repr__(self) -> str:
        return f"<EtcdBackend {self.endpoint} run={self.run_id!r}>"

    @property
    def operations(self) -> int:
        """How many calls this backend has made, keep-alives and watches not counted."""
        return self._cluster.calls

    @property
    def trouble(self) -> str | None:
        trouble = self._cluster.trouble
        return None if trouble is None else f"no answer from {self.endpoint} ({trouble})"

    async def start(self) -> None:
        """Connect, and make sure that the server will do and that we may use the prefix."""
        deadline = clock.now() + self._cluster.connect_timeout
        try:
            await self._cluster.start(deadline)
            await self._history.load(deadline)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._cluster.aclose()
            raise
        # The one task of this backend: it enters and leaves its own task group, so that open and close may happen in
        # different tasks; aclose() awaits it.
        self._owner = asyncio.create_task(self._own(), name=f"etcd backend of run {self.run_id}")  # noqa: TID251

    async def _own(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_alives.run)
                group.start_soon(self._feeds.run)
                group.start_soon(self._commits.run)
                await self._closing.wait()
                group.cancel_scope.cancel()
        except Exception:
            # A defect of ours: whoever waits for the streams must not wait for ever.
            logger.exception("the background task of %r failed", self)
            self._cluster.closed = True
        finally:
            self._commits.close()
            self._keep_alives.close()
            self._feeds.close()

    async def aclose(self) -> None:
        if self._closing.is_set() or in_child():
            return
        self._closing.set()
        if self._owner is not None:
            await self._owner
        if not self._cluster.closed and self._cluster.trouble is None:
            with anyio.move_on_after(CLOSING_TIMEOUT), suppress(RendezvousConnectionError):
                await self._commits.aclose(clock.now() + CLOSING_TIMEOUT)
        await self._cluster.aclose()

    async def _get(self, key: str) -> Entry | None:
        entries = (await self._list(key)).entries
        return entries[0] if entries else None

    async def _list(self, name: str) -> Listing:
        self._check_open()
        return await self._history.read((name,))

    async def _commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        self._check_open()
        return await self._commits.commit(writes, when)

    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch:
        return EtcdWatch(self._feeds, names, after)

    async def open_session(self, ttl: float) -> Session:
        """Open a session; etcd counts whole seconds and has a least TTL, so more than asked for may be granted."""
        self._check_open()
        asked = check_seconds("ttl", ttl)
        sent_at = clock.lease_now()
        lease, granted = await grant(self._cluster, self._rng, math.ceil(LEASE_PART * asked))
        session = EtcdSession(lease, max(asked, float(granted)), sent_at, self)
        self._keep_alives.expect_ttl(session.ttl)
        self._feeds.expect_ttl(session.ttl)
        return session

    async def end_session(self, session: str) -> None:
        self._check_open()
        lease = lease_id(session)
        if lease is None:
            return
        try:
            await self._cluster.call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))
        except EtcdRefusedError as error:
            if error.fault is not Fault.LEASE_GONE:
                raise

    async def keep_alive(self, lease: int) -> bool:
        """Keep a lease alive; False if there is no such lease."""
        self._check_open()
        while not await self._keep_alives.refresh(lease):
            # A leader that has only just been elected may not know of the lease yet; only a second answer counts.
            answer = await self._cluster.call("LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=lease))
            if answer.TTL <= 0:
                return False
        return True

    def _check_open(self) -> None:
        if self._closing.is_set() or self._cluster.closed:
            raise closed_error(self.name)
