"""Applies each commit exactly once, even if answers are lost and requests are retried.

A write without an answer may have been applied, or may be applied later: a frozen member that wakes up still forwards
its old requests to the leader. So every commit also puts a marker, a small key ``<namespace>/@commits/<lease>/<slot>``
that holds the commit's number, and compares it with what this client last wrote there:

* A retry of a commit that was applied fails the comparison, finds its own number, and knows its revision.
* At most one copy of a request can be applied, whenever the copies arrive.
* A commit that lost while a copy is unanswered writes the marker again, which voids that copy.

A slot serves one commit at a time, so there are as many markers as this client has had concurrent commits. They belong
to a lease of the client (the page), which the driver keeps alive, and expire with it. A marker costs no extra revision,
is invisible to lists and watches of a run, and was measured to cost about a tenth of the throughput. Recognising the
written values instead would be free, but two clients may write equal values, and a deletion leaves nothing to
recognise.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import anyio
from aetcd import rpc

from rendezvous_async.backends.etcd.batches import Batches
from rendezvous_async.backends.etcd.channel import CallTrail, ClusterClient
from rendezvous_async.backends.etcd.faults import EtcdFault, EtcdRefusedError
from rendezvous_async.backends.etcd.history import ClusterHistory, get_op, put_op, unchanged
from rendezvous_async.backends.etcd.lease import KeepAlives, lease_id
from rendezvous_async.backends.etcd.reads import key_range
from rendezvous_async.backends.values import Commit, Condition, Delete, Put, Write
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError

__all__ = ["Commits", "grant"]

PAGE_TTL = 60
KEEP_PAGE_EVERY = 20.0
MAX_LOST_SLOTS = 64
_VOID = b"void"
_NO_LEASE = 2**63 - 1
"""A lease id that is never granted; stands for session ids that are not valid."""


async def grant(cluster: ClusterClient, rng: Random, ttl: int) -> tuple[int, int]:
    """Grant a lease; return its id and TTL.

    The client chooses the id, so that a retry does not leave a second lease behind.
    """
    lease = rng.getrandbits(62) + 1
    try:
        answer = await cluster.call("LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl, ID=lease))
    except EtcdRefusedError as error:
        if error.fault is not EtcdFault.LEASE_EXISTS:
            raise
        answer = await cluster.call("LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=lease))
        return lease, answer.grantedTTL
    return lease, answer.TTL


class _Slot:
    """The marker key of one commit at a time; ``revision`` is that of its last put, 0 if never written."""

    def __init__(self, key: str, lease: int) -> None:
        self.key = key
        self.lease = lease
        self.revision = 0


class _MarkerPage:
    """A lease and the slots that belong to it."""

    def __init__(self, prefix: str, lease: int) -> None:
        self.lease = lease
        self.free: list[_Slot] = []
        self.lost = 0
        self._prefix = f"{prefix}@commits/{lease:x}/"
        self._count = 0

    def take(self) -> _Slot:
        if self.free:
            return self.free.pop()
        self._count += 1
        return _Slot(f"{self._prefix}{self._count}", self.lease)


class Commits:
    """Makes commits; the driver's owner task runs ``run()``."""

    def __init__(
        self, cluster: ClusterClient, history: ClusterHistory, keep_alives: KeepAlives, namespace: str, rng: Random
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._keep_alives = keep_alives
        self._namespace = namespace
        self._rng = rng
        self._page: _MarkerPage | None = None
        self._batches = Batches(cluster)
        self._turning = anyio.Lock()
        self._number = 0

    async def run(self) -> None:
        """Send batches and keep the page alive."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._batches.run)
            await self._keep_page()

    def close(self) -> None:
        """Release the commits that wait for a batch."""
        self._batches.close()

    async def _keep_page(self) -> None:
        while True:
            await anyio.sleep(KEEP_PAGE_EVERY)
            page = self._page
            if page is not None:
                try:
                    alive = await self._keep_alives.refresh(page.lease)
                except RendezvousConnectionError:
                    continue
                if not alive:
                    self._drop(page)

    async def aclose(self, deadline: float) -> None:
        """Delete the markers, if etcd answers before the deadline."""
        page, self._page = self._page, None
        if page is not None:
            await self._cluster.call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=page.lease), deadline=deadline)

    async def commit(self, writes: Sequence[Write], when: Sequence[Condition]) -> Commit:
        """Apply all writes exactly once if every condition holds; otherwise apply none."""
        while True:
            if foreign := any(each.token and each.token.epoch != self._history.epoch for each in when):
                await self._history.verify()  # Perhaps it is this client that has not seen the new epoch.
            if foreign or not writes:
                commit = await self._check(when)
                if not (commit.won and writes):
                    return commit
                continue
            page = await self._turn()
            slot = page.take()
            kept = False
            try:
                done = await self._attempt(slot, writes, when)
                kept = True
            except _PageGoneError:
                self._drop(page)
                continue
            except (RendezvousSessionError, ValueError):
                kept = True
                raise
            finally:
                # A copy of a cancelled commit may still be in flight, so its slot must not be reused.
                if kept:
                    page.free.append(slot)
                else:
                    page.lost += 1
            if done is not None:
                return done

    async def _attempt(self, slot: _Slot, writes: Sequence[Write], when: Sequence[Condition]) -> Commit | None:
        """Make one commit in a slot; return None if the epoch has changed and nothing was written."""
        self._number += 1
        number = b"%d" % self._number
        request = rpc.TxnRequest(
            compare=[self._history.guard, unchanged(slot.key, slot.revision), *self._conditions(when)],
            success=[put_op(slot.key, number, slot.lease), *(self._operation(write) for write in writes)],
            failure=[get_op(self._history.key), get_op(slot.key), *(get_op(each.key) for each in when)],
        )
        trail = CallTrail()
        try:
            response, revision = await self._batches.send(request, writes, when, trail)
        except EtcdRefusedError as error:
            raise await self._refusal(error, slot, trail, writes) from error
        if response.succeeded:
            slot.revision = revision
            return Commit(True, self._history.token(slot.revision))
        if not self._history.holds(response):
            await self._history.load()
            if trail.doubt:
                raise self._unknown("etcd has lost its data since")
            return None
        marker = response.responses[1].response_range.kvs
        if marker and marker[0].value == number:
            slot.revision = marker[0].mod_revision
            return Commit(True, self._history.token(slot.revision))
        if (marker[0].mod_revision if marker else 0) != slot.revision:
            raise self._unknown("its marker is gone") if trail.doubt else _PageGoneError
        if trail.doubt and (won := await self._void(slot, number)) is not None:
            return won
        found = [pair for read in response.responses[2:] for pair in read.response_range.kvs]
        entries = {pair.key: self._history.entry(pair) for pair in found}
        return Commit(False, self._history.token(revision), tuple(entries.values()))

    async def _void(self, slot: _Slot, number: bytes) -> Commit | None:
        """Void all copies of a commit; return the commit if one was already applied."""
        void = _VOID + number
        request = rpc.TxnRequest(
            compare=[unchanged(slot.key, slot.revision)],
            success=[put_op(slot.key, void, slot.lease)],
            failure=[get_op(slot.key)],
        )
        try:
            response = await self._cluster.call("Txn", request)
        except EtcdRefusedError as error:
            raise self._unknown("its lease is gone") from error
        if response.succeeded:
            slot.revision = response.header.revision
            return None
        marker = response.responses[0].response_range.kvs
        if not marker or marker[0].value not in (number, void):
            raise self._unknown("its marker is gone")
        slot.revision = marker[0].mod_revision
        return Commit(True, self._history.token(slot.revision)) if marker[0].value == number else None

    async def _refusal(
        self, error: EtcdRefusedError, slot: _Slot, trail: CallTrail, writes: Sequence[Write]
    ) -> Exception:
        """Return the error to raise for a refused commit.

        If a lease is gone, the comparisons held: no earlier copy was applied, and none can be under that lease.
        """
        if error.fault is EtcdFault.TOO_LARGE:
            return ValueError(f"{error}; split the commit")
        if error.fault is not EtcdFault.LEASE_GONE:
            return error
        page = await self._cluster.call("LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=slot.lease))
        if page.TTL > 0:
            sessions = sorted({write.session for write in writes if isinstance(write, Put) and write.session})
            return RendezvousSessionError(f"session {' or '.join(sessions)} has ended; nothing was written")
        return self._unknown("its lease is gone") if trail.doubt else _PageGoneError()

    async def _check(self, when: Sequence[Condition]) -> Commit:
        """Answer a commit without writes, or one that must lose since a condition is of another epoch."""
        keys = list(dict.fromkeys(each.key for each in when))
        listing = await self._history.read(keys or [self._history.key])
        entries = {entry.key: entry for entry in listing.entries if keys}
        current = {key: entry.token for key, entry in entries.items()}
        won = all(current.get(each.key) == each.token for each in when)
        return Commit(won, listing.token, () if won else tuple(entries.values()))

    def _conditions(self, when: Sequence[Condition]) -> list[Any]:
        return [unchanged(each.key, 0 if each.token is None else each.token.revision) for each in when]

    def _operation(self, write: Write) -> Any:
        match write:
            case Put(key, value, session):
                return put_op(key, value, 0 if session is None else lease_id(session) or _NO_LEASE)
            case Delete(name):
                start, end = key_range(name)
                return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=start, range_end=end))

    def _unknown(self, why: str) -> RendezvousConnectionError:
        return RendezvousConnectionError(
            f"a commit to {self._cluster.endpoint} got no answer and may or may not have happened: {why}"
        )

    async def _turn(self) -> _MarkerPage:
        """Return the current page; start a new one if there is none or it has lost too many slots."""
        page = self._page
        if page is not None and page.lost < MAX_LOST_SLOTS:
            return page
        async with self._turning:
            if self._page is page:
                lease, _ = await grant(self._cluster, self._rng, PAGE_TTL)
                self._page = _MarkerPage(self._namespace, lease)
            assert self._page is not None
            return self._page

    def _drop(self, page: _MarkerPage) -> None:
        if self._page is page:
            self._page = None


class _PageGoneError(Exception):
    """The lease of the page has ended; nothing was written."""
