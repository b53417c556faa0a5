"""The driver of an etcd v3 cluster: keys, leases and transactions, one etcd revision for each commit.

It is built on aetcd's stubs and messages, not on its client, which has no member list, no TLS, no renewal of auth
tokens, and a watcher that does not resume. ``ClusterClient`` talks to the members, ``ClusterHistory`` holds the epoch,
``Commits`` writes exactly once, ``KeepAlives`` and ``Feeds`` are the two streams. One owner task per driver does all
background work, with a child task for each watch; one more task awaits each gRPC answer (see calls.py). All of them end
in ``aclose()``.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from random import Random

import anyio
from aetcd import rpc

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.driver import Driver, Granted, Opening, Sink, Subscription, closed_error
from rendezvous_async.backends.etcd.bridge import TlsFiles
from rendezvous_async.backends.etcd.channel import ClusterClient, logger
from rendezvous_async.backends.etcd.commits import Commits, grant
from rendezvous_async.backends.etcd.faults import EtcdFault, EtcdRefusedError
from rendezvous_async.backends.etcd.feeds import Feeds
from rendezvous_async.backends.etcd.history import ClusterHistory
from rendezvous_async.backends.etcd.lease import KeepAlives, lease_id, session_id
from rendezvous_async.backends.etcd.options import EtcdOptions
from rendezvous_async.backends.etcd.watch import EtcdSubscription
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.settings import Endpoint

__all__ = ["EtcdDriver"]

MAX_OPERATIONS = 128
"""Operations, and comparisons, that etcd allows in a transaction by default."""
OWN_OPERATIONS = 2
"""Those that every commit adds: the epoch and the marker."""
LEASE_PART = 0.8
"""The lease of a session lasts this fraction of its TTL, rounded up to whole seconds.

The owner counts itself out after 0.75 of the TTL, so a longer lease would only delay the detection of a dead node. It
is already delayed if the leader dies too: the new leader renews every lease in full and adds an election timeout.

A shorter lease would end while its owner rightly believes in it. And the owner cannot give up sooner: with a TTL of 5 s
it may have last been answered an interval (1 s) before the leader died, an election takes up to 2 s, and the next
member is asked after 0.3 s. So 4 s, the first whole second after 3.75 s, is the least.
"""
CLOSING_TIMEOUT = 1.0


class EtcdDriver(Driver):
    """A client of an etcd cluster."""

    name = "etcd"
    root = "/"
    max_writes = MAX_OPERATIONS - OWN_OPERATIONS
    max_bytes = 1024 * 1024
    """etcd allows 1.5 MiB in a request; the rest is for conditions and the encoding."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: EtcdOptions,
        tls: TlsFiles | None = None,
        rng: Random | None = None,
        outage: Outage | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._rng = Random() if rng is None else rng
        namespace = f"/{options.namespace.strip('/')}/"
        self._cluster = ClusterClient(endpoint, options, tls, self._rng, outage)
        self._history = ClusterHistory(self._cluster, namespace, self._rng)
        self._keep_alives = KeepAlives(self._cluster)
        self._feeds = Feeds(self._cluster, self._history)
        self._commits = Commits(self._cluster, self._history, self._keep_alives, namespace, self._rng)
        self._owner: asyncio.Task[None] | None = None
        self._group = anyio.create_task_group()
        self._is_running = anyio.Event()
        self._closing = anyio.Event()

    def __repr__(self) -> str:
        return f"<EtcdDriver {self.endpoint}>"

    @property
    def operations(self) -> int:
        """The number of calls made so far, without keep-alives and watches."""
        return self._cluster.calls

    @property
    def trouble(self) -> str | None:
        trouble = self._cluster.trouble
        return None if trouble is None else f"no answer from {self.endpoint} ({trouble})"

    async def start(self) -> None:
        """Connect, check the server's version, and load the epoch."""
        deadline = clock.now() + self._cluster.connect_timeout
        try:
            await self._cluster.start(deadline)
            await self._history.load(deadline)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._cluster.aclose()
            raise
        # The owner task enters and leaves the task group, so that open and close may be called from different tasks;
        # aclose() awaits it.
        self._owner = asyncio.create_task(self._own(), name=f"etcd driver of {self.endpoint}")  # noqa: TID251
        await self._is_running.wait()

    async def _own(self) -> None:
        try:
            async with self._group as group:
                group.start_soon(self._keep_alives.run)
                group.start_soon(self._feeds.run)
                group.start_soon(self._commits.run)
                self._is_running.set()
                await self._closing.wait()
                self._feeds.close()
                group.cancel_scope.cancel()
        except Exception:
            # A bug. Callers that wait for the streams must not hang.
            logger.exception("the background task of %r failed", self, extra=self._cluster.outage.fields)
            self._cluster.closed = True
        finally:
            self._commits.close()
            self._keep_alives.close()
            self._feeds.close()

    async def aclose(self) -> None:
        if self._closing.is_set() or not self._cluster.owner.is_here:
            return
        self._closing.set()
        try:
            if self._owner is not None:
                await self._owner
            if not self._cluster.closed and self._cluster.trouble is None:
                with anyio.move_on_after(CLOSING_TIMEOUT), suppress(RendezvousConnectionError):
                    await self._commits.aclose(clock.now() + CLOSING_TIMEOUT)
        finally:
            await self._cluster.aclose()

    async def get(self, key: str) -> Entry | None:
        entries = (await self.list(key)).entries
        return entries[0] if entries else None

    async def list(self, name: str) -> Listing:
        self._check_open()
        return await self._history.read((name,))

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        self._check_open()
        return await self._commits.commit(writes, when)

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        """Open a session. etcd may grant a longer TTL: it counts whole seconds and has a minimum."""
        self._check_open()
        sent_at = clock.lease_now()
        lease, granted = await grant(self._cluster, self._rng, math.ceil(LEASE_PART * opening.ttl))
        session = Session(self, session_id(lease) or "", max(opening.ttl, float(granted)), sent_at)
        self._keep_alives.expect_ttl(session.ttl)
        self._feeds.expect_ttl(session.ttl)
        return Granted(session)

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        self._check_open()
        lease = lease_id(session) or 0
        while not await self._keep_alives.refresh(lease):
            # A newly elected leader may not know the lease yet, so ask again before believing it.
            answer = await self._cluster.call("LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=lease))
            if answer.TTL <= 0:
                raise RendezvousSessionError(f"session {session} has ended: etcd knows no lease of that id")

    async def end_session(self, session: str, cause: str = "") -> None:
        self._check_open()
        lease = lease_id(session)
        if lease is None:
            return
        try:
            await self._cluster.call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))
        except EtcdRefusedError as error:
            if error.fault is not EtcdFault.LEASE_GONE:
                raise

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        self._check_open()
        subscription = EtcdSubscription(self._feeds, names, after, sink)
        self._group.start_soon(subscription.run)
        return subscription

    def _check_open(self) -> None:
        if self._closing.is_set() or self._cluster.closed:
            raise closed_error(self.name)
