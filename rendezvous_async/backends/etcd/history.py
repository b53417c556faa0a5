"""The history of the cluster: the epoch of every token, and reads within it.

etcd's cluster id is derived from its members' addresses, so a cluster that lost its data and was recreated has the same
id and counts revisions from 1 again. To tell the two apart, the first client writes a random text to
``<namespace>/@epoch``; it is never written again (no run can have that key, since ``@`` is encoded in run ids). Every
commit compares it, so no write goes to a history unknown to the caller. Reads check it when there is reason to: after a
call without an answer, and when the revision has decreased.

Reads are plain Range calls, never transactions: etcd before 3.5.5 crashes when a client cancels a transaction that only
reads. Several names are read as of one revision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from aetcd import rpc

from rendezvous_async.backends.etcd.channel import ClusterClient, logger
from rendezvous_async.backends.etcd.faults import EtcdFault, EtcdRefusedError
from rendezvous_async.backends.etcd.lease import session_id
from rendezvous_async.backends.etcd.reads import Reads
from rendezvous_async.backends.values import Entry, Listing, Token

__all__ = ["ClusterHistory", "get_op", "key_of", "put_op", "unchanged"]


def key_of(pair: Any) -> str:
    """Return the key of a KeyValue; a foreign key need not be valid text."""
    key: str = pair.key.decode(errors="backslashreplace")
    return key


def get_op(key: str) -> Any:
    """Return the operation that reads a key, for a transaction that may write (see above)."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode()))


def put_op(key: str, value: bytes, lease: int = 0) -> Any:
    """Return the operation that writes a key."""
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease))


class ClusterHistory:
    """The current epoch, and the detection of a new one."""

    def __init__(self, cluster: ClusterClient, namespace: str, rng: Random) -> None:
        self.epoch = ""
        self.guard: Any = None
        self.key = f"{namespace}@epoch"
        self._cluster = cluster
        self._reads = Reads(cluster)
        self._cluster_id = 0
        self._rng = rng
        self._revision = 0
        self._verified_after = 0
        self._changed: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<ClusterHistory {self.epoch}>"

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the epoch has changed."""
        self._changed.append(callback)

    def token(self, revision: int) -> Token:
        return Token(self.epoch, revision)

    def entry(self, pair: Any) -> Entry:
        """Return a KeyValue as an entry."""
        return Entry(key_of(pair), pair.value, Token(self.epoch, pair.mod_revision), session_id(pair.lease))

    async def load(self, deadline: float | None = None) -> None:
        """Read the epoch; create it if there is none."""
        key = self.key.encode()
        fresh = f"{self._rng.getrandbits(48):012x}".encode()
        request = rpc.TxnRequest(
            compare=[_compare(key=key, target=rpc.Compare.VERSION, version=0)],
            success=[put_op(self.key, fresh)],
            failure=[get_op(self.key)],
        )
        response = await self._cluster.call("Txn", request, deadline=deadline)
        value = fresh if response.succeeded else response.responses[0].response_range.kvs[0].value
        before, self._revision = self.epoch, 0
        self._cluster_id = response.header.cluster_id
        self.epoch = f"{self._cluster_id:x}.{value.decode(errors='replace')}"
        self.guard = _compare(key=key, target=rpc.Compare.VALUE, value=value)
        if before not in ("", self.epoch):
            text = "etcd has a new history: its data was lost, deleted or replaced"
            logger.warning(text, extra=self._cluster.outage.fields)
            for callback in self._changed:
                callback()

    async def read(self, names: Sequence[str], past: int = 0) -> Listing:
        """Return the entries under some names as of one revision; linearizable.

        Args:
            names: Keys and subtrees that do not overlap.
            past: A past revision to read; refused as ``EtcdFault.REVISION`` if etcd no longer has it.
        """
        while True:
            if self._cluster.missed_answers != self._verified_after:
                await self.verify()
            epoch, floor = self.epoch, 0 if past else self._revision
            entries: list[Entry] = []
            revision = past
            try:
                for name in names:
                    response = await self._reads.range(name, revision)
                    revision = revision or response.header.revision
                    entries.extend(self.entry(pair) for pair in response.kvs)
            except EtcdRefusedError as error:
                if error.fault is EtcdFault.REVISION and not past:
                    continue  # A member that lags behind, or a compaction.
                raise
            if response.header.cluster_id != self._cluster_id or revision < floor:
                await self.load()
            elif epoch == self.epoch:
                self._revision = max(self._revision, revision)
                entries.sort(key=lambda entry: entry.key)
                return Listing(tuple(entries), Token(epoch, revision))

    async def verify(self) -> int:
        """Check that the epoch is unchanged, and return the current revision."""
        missed = self._cluster.missed_answers
        response = await self._reads.range(self.key)
        value = response.kvs[0].value if response.kvs else None
        if (response.header.cluster_id, value) != (self._cluster_id, self.guard.value):
            await self.load()
        self._verified_after = missed
        revision: int = response.header.revision
        return revision

    def holds(self, response: Any) -> bool:
        """Return whether a failed transaction, with the epoch's key first in its failure branch, saw this epoch."""
        pairs = response.responses[0].response_range.kvs
        return bool(pairs) and pairs[0].value == self.guard.value


def _compare(**fields: Any) -> Any:
    return rpc.Compare(result=rpc.Compare.EQUAL, **fields)


def unchanged(key: str, revision: int) -> Any:
    """Return the comparison that a key was last written at ``revision``; 0 means that it does not exist."""
    return _compare(key=key.encode(), target=rpc.Compare.MOD, mod_revision=revision)
