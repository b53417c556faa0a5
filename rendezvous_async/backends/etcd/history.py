"""Which history of the cluster we are in: the epoch of every token, and reads that belong to it.

etcd's cluster id is made of its members' addresses, so a cluster that has lost its data and is started anew has the
same id and counts revisions from 1 again. What tells the two apart is a random text that the first client writes to
``<namespace>/@epoch`` and nobody writes again (no run can have that key, since ``@`` is encoded in run ids). Every
commit compares it, so no write ever goes to a history that the caller does not know of. Reads look at it when there is
reason to: after every call that got no answer, and when the revision has fallen.

Reads are plain Range calls, never transactions: etcd before 3.5.5 crashes when a client cancels a transaction that only
reads. Several names are read as of one revision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from aetcd import rpc

from rendezvous_async.backends.base import Entry, Listing, Token
from rendezvous_async.backends.etcd.channel import Cluster, logger
from rendezvous_async.backends.etcd.faults import EtcdRefusedError, Fault
from rendezvous_async.backends.etcd.lease import session_id
from rendezvous_async.backends.etcd.reads import Reads

__all__ = ["History", "get_op", "key_of", "put_op", "unchanged"]


def key_of(pair: Any) -> str:
    """Return the key of a KeyValue; one that somebody else put there need not be text."""
    key: str = pair.key.decode(errors="backslashreplace")
    return key


def get_op(key: str) -> Any:
    """Return the operation that reads a key, for a transaction that may write (see above)."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode()))


def put_op(key: str, value: bytes, lease: int = 0) -> Any:
    """Return the operation that writes a key."""
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease))


class History:
    """The epoch in force, and how to notice that it has changed."""

    def __init__(self, cluster: Cluster, namespace: str, rng: Random) -> None:
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
        return f"<History {self.epoch}>"

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the cluster turns out to have another history."""
        self._changed.append(callback)

    def token(self, revision: int) -> Token:
        return Token(self.epoch, revision)

    def entry(self, pair: Any) -> Entry:
        """Return what etcd calls a KeyValue as an entry."""
        return Entry(key_of(pair), pair.value, Token(self.epoch, pair.mod_revision), session_id(pair.lease))

    async def load(self, deadline: float | None = None) -> None:
        """Read the epoch, or begin one."""
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
            logger.warning("etcd has another history than before: its data was lost, deleted or replaced")
            for callback in self._changed:
                callback()

    async def read(self, names: Sequence[str], past: int = 0) -> Listing:
        """Return what stands under some names that do not overlap, as of one revision; linearizable.

        Args:
            names: Keys and subtrees.
            past: A revision of the past, instead of now; refused as ``Fault.REVISION`` if etcd does not know it.
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
                if error.fault is Fault.REVISION and not past:
                    continue  # another member that is not as far yet, or a compaction
                raise
            if response.header.cluster_id != self._cluster_id or revision < floor:
                await self.load()
            elif epoch == self.epoch:
                self._revision = max(self._revision, revision)
                entries.sort(key=lambda entry: entry.key)
                return Listing(tuple(entries), Token(epoch, revision))

    async def verify(self) -> int:
        """Make sure that the epoch is still the same, and return the revision of this moment."""
        missed = self._cluster.missed_answers
        response = await self._reads.range(self.key)
        value = response.kvs[0].value if response.kvs else None
        if (response.header.cluster_id, value) != (self._cluster_id, self.guard.value):
            await self.load()
        self._verified_after = missed
        revision: int = response.header.revision
        return revision

    def holds(self, response: Any) -> bool:
        """Tell whether a transaction that failed, with the epoch's key first in its failure branch, knew our epoch."""
        pairs = response.responses[0].response_range.kvs
        return bool(pairs) and pairs[0].value == self.guard.value


def _compare(**fields: Any) -> Any:
    return rpc.Compare(result=rpc.Compare.EQUAL, **fields)


def unchanged(key: str, revision: int) -> Any:
    """Return the comparison that a key was last written at ``revision``; 0 means that there is no such key."""
    return _compare(key=key.encode(), target=rpc.Compare.MOD, mod_revision=revision)
