"""Batches concurrent commits: a thousand nodes of one process cost a few calls.

While a transaction is in flight, small commits queue up. When it is answered they are sent together, as nested
transactions, each with its own comparisons and its own outcome. A commit that finds nothing in flight is sent at once,
by its own task.

etcd evaluates all comparisons of such a transaction before any of its writes. So a batch only holds independent
commits: none writes what another one writes or compares. They share a revision.

If a batch is refused (one dead lease fails it as a whole) or gets no answer, each of its commits is sent by itself, by
its own task. That is safe, since a commit happens only once (see commits.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
from aetcd import rpc

from rendezvous_async.aio import clock
from rendezvous_async.backends.etcd.channel import CallTrail, ClusterClient
from rendezvous_async.backends.values import Condition, Delete, Write
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Batches"]

MAX_TOGETHER = 64
MAX_OPERATIONS = 16
"""Per commit in a batch; etcd adds those of the largest commit to the batch's own, and allows 128."""
MAX_SIZE = 8 * 1024
"""Bytes per commit in a batch; 64 of them stay far below etcd's limit of 1.5 MiB."""


class _Parcel:
    """A commit that waits for a batch; the result of ``answer`` is None if it must be sent alone."""

    def __init__(self, request: Any, writes: frozenset[str], compares: frozenset[str], deadline: float) -> None:
        self.request = request
        self.writes = writes
        self.compares = compares
        self.deadline = deadline
        self.trail = CallTrail()
        self.answer: asyncio.Future[tuple[Any, int] | None] = asyncio.get_running_loop().create_future()

    def settle(self, answer: tuple[Any, int] | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Batches:
    """Sends transactions, batched where possible; the driver's owner task runs ``run()``."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._under_way = 0
        self._waiting: deque[_Parcel] = deque()
        self._ready = anyio.Event()
        self._closed = False

    async def send(self, request: Any, writes: Sequence[Write], when: Sequence[Condition], trail: CallTrail) -> Any:
        """Send the transaction of a commit; return its response and revision.

        Raises:
            EtcdRefusedError: etcd refused it.
            RendezvousConnectionError: No member has answered.
        """
        deadline = clock.now() + self._cluster.connect_timeout
        if self._under_way and not self._closed and _is_small(request, writes):
            keys = frozenset(each.name if isinstance(each, Delete) else each.key for each in writes)
            parcel = _Parcel(request, keys, frozenset(each.key for each in when), deadline)
            self._waiting.append(parcel)
            try:
                answer = await parcel.answer
            finally:
                with suppress(ValueError):
                    self._waiting.remove(parcel)
            trail.doubt |= parcel.trail.doubt
            if answer is not None:
                return answer
        self._under_way += 1
        try:
            response = await self._cluster.call("Txn", request, trail=trail, deadline=deadline)
        finally:
            self._landed()
        return response, response.header.revision

    async def run(self) -> None:
        """Send the queued commits, one batch after the other."""
        while True:
            while self._waiting:
                await self._fly(self._take())
            self._ready = anyio.Event()
            await self._ready.wait()

    def close(self) -> None:
        """Release the queued commits; each is then sent alone and fails, since the driver is closed."""
        self._closed = True
        for parcel in self._waiting:
            parcel.settle(None)

    def _landed(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._ready.set()

    def _take(self) -> list[_Parcel]:
        """Take the commit that has waited longest and all that can share a batch with it."""
        batch: list[_Parcel] = []
        left: deque[_Parcel] = deque()
        writes: set[str] = set()
        compares: set[str] = set()
        for parcel in self._waiting:
            apart = writes.isdisjoint(parcel.writes) and writes.isdisjoint(parcel.compares)
            if len(batch) < MAX_TOGETHER and apart and compares.isdisjoint(parcel.writes):
                batch.append(parcel)
                writes |= parcel.writes
                compares |= parcel.compares
            else:
                left.append(parcel)
        self._waiting = left
        return batch

    async def _fly(self, batch: list[_Parcel]) -> None:
        trail = CallTrail()
        answers: list[tuple[Any, int] | None] = [None] * len(batch)
        self._under_way += 1
        try:
            inner = [rpc.RequestOp(request_txn=parcel.request) for parcel in batch]
            # The first has the earliest deadline; the others can still be sent alone.
            response = await self._cluster.call(
                "Txn", rpc.TxnRequest(success=inner), trail=trail, deadline=batch[0].deadline
            )
            answers = [(each.response_txn, response.header.revision) for each in response.responses]
        except RendezvousConnectionError:
            pass  # Each is sent alone, and gets its own answer or error.
        except BaseException:
            trail.doubt = True
            raise
        finally:
            for parcel, answer in zip(batch, answers, strict=True):
                parcel.trail.doubt = trail.doubt
                parcel.settle(answer)
            self._landed()


def _is_small(request: Any, writes: Sequence[Write]) -> bool:
    """Return whether a commit may be batched; the deletion of a subtree would conflict with too many others."""
    operations = max(len(request.compare), len(request.success), len(request.failure))
    if operations > MAX_OPERATIONS or any(isinstance(each, Delete) and each.name.endswith("/") for each in writes):
        return False
    size: int = request.ByteSize()
    return size <= MAX_SIZE
