"""Commits that are made at the same moment travel as one transaction: a thousand nodes of one process cost a few calls.

While a transaction is under way, the small commits that come meanwhile gather; when it is answered they go together, as
transactions inside a transaction, each with its own comparisons and its own outcome. A commit that comes alone is sent
at once, by its own task.

etcd makes all comparisons of such a transaction before any of its writes. So only commits that have nothing to do with
each other travel together: none writes what another one writes or compares. They share a revision.

What the batch cannot settle is settled alone: when it is refused (one dead lease spoils it for all) or nobody answers,
each commit is sent by itself, by its own task. That is safe, since a commit happens once (see commits.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
from aetcd import rpc

from rendezvous_async import clock
from rendezvous_async.backends.base import Condition, Delete, Write
from rendezvous_async.backends.etcd.channel import Cluster, Tally
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Batches"]

MAX_TOGETHER = 64
MAX_OPERATIONS = 16
"""Of one commit in a batch; etcd counts those of the largest and the batch's own together, and takes 128."""
MAX_SIZE = 8 * 1024
"""Bytes of one commit in a batch; 64 of them are far from etcd's limit of 1.5 MiB."""


class _Parcel:
    """A commit that waits for a batch; ``answer`` is None if it must be sent alone."""

    def __init__(self, request: Any, writes: frozenset[str], compares: frozenset[str], deadline: float) -> None:
        self.request = request
        self.writes = writes
        self.compares = compares
        self.deadline = deadline
        self.tally = Tally()
        self.answer: asyncio.Future[tuple[Any, int] | None] = asyncio.get_running_loop().create_future()

    def settle(self, answer: tuple[Any, int] | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Batches:
    """Sends transactions, together where that can be; ``run()`` is run by the backend's owner task."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._under_way = 0
        self._waiting: deque[_Parcel] = deque()
        self._ready = anyio.Event()
        self._closed = False

    async def send(self, request: Any, writes: Sequence[Write], when: Sequence[Condition], tally: Tally) -> Any:
        """Send the transaction that makes a commit; return its response and the revision that it is as of.

        Raises:
            EtcdRefusedError: The answer is no.
            RendezvousConnectionError: Nobody has answered.
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
            tally.doubt |= parcel.tally.doubt
            if answer is not None:
                return answer
        self._under_way += 1
        try:
            response = await self._cluster.call("Txn", request, tally=tally, deadline=deadline)
        finally:
            self._landed()
        return response, response.header.revision

    async def run(self) -> None:
        """Send what has gathered, one batch after the other."""
        while True:
            while self._waiting:
                await self._fly(self._take())
            self._ready = anyio.Event()
            await self._ready.wait()

    def close(self) -> None:
        """Have whoever waits go alone, and find out that the backend is closed."""
        self._closed = True
        for parcel in self._waiting:
            parcel.settle(None)

    def _landed(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._ready.set()

    def _take(self) -> list[_Parcel]:
        """Take the commit that has waited longest, and all that can go with it."""
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
        tally = Tally()
        answers: list[tuple[Any, int] | None] = [None] * len(batch)
        self._under_way += 1
        try:
            inner = [rpc.RequestOp(request_txn=parcel.request) for parcel in batch]
            # The first has waited longest; whoever has more time left goes on alone.
            response = await self._cluster.call(
                "Txn", rpc.TxnRequest(success=inner), tally=tally, deadline=batch[0].deadline
            )
            answers = [(each.response_txn, response.header.revision) for each in response.responses]
        except RendezvousConnectionError:
            pass  # Alone, each gets an error of its own, or an answer.
        except BaseException:
            tally.doubt = True
            raise
        finally:
            for parcel, answer in zip(batch, answers, strict=True):
                parcel.tally.doubt = tally.doubt
                parcel.settle(answer)
            self._landed()


def _is_small(request: Any, writes: Sequence[Write]) -> bool:
    """Tell whether a commit may travel with others; a subtree that is deleted has to do with too many of them."""
    operations = max(len(request.compare), len(request.success), len(request.failure))
    if operations > MAX_OPERATIONS or any(isinstance(each, Delete) and each.name.endswith("/") for each in writes):
        return False
    size: int = request.ByteSize()
    return size <= MAX_SIZE
