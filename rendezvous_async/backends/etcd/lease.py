"""Sessions as etcd leases: the keep-alive stream of a driver.

Answers come in the order of the requests, so the n-th answer for a lease belongs to its n-th request. A caller never
mistakes the answer to an earlier request for its own, which would extend its deadline too far. For a lease that is
gone, etcd answers with TTL 0 and no error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import anyio
from aetcd import rpc

from rendezvous_async.aio import clock
from rendezvous_async.backends.driver import closed_error
from rendezvous_async.backends.etcd.channel import ClusterClient
from rendezvous_async.backends.etcd.stream import Stream
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["KeepAlives", "lease_id", "session_id"]

SHORTEST_STALL = 0.5


def session_id(lease: int) -> str | None:
    """Return the session id of a lease; None for lease 0."""
    return f"{lease:x}" if lease else None


def lease_id(session: str) -> int | None:
    """Return the lease of a session id, or None if no session can have that id."""
    try:
        lease = int(session, 16)
    except ValueError:
        return None
    return lease if session_id(lease) == session and lease < 2**63 else None


class KeepAlives(Stream):
    """The stream that keeps every lease of a driver alive."""

    method = "LeaseKeepAlive"

    def __init__(self, cluster: ClusterClient) -> None:
        super().__init__(cluster)
        self._shortest_stall = cluster.call_timeout if cluster.size == 1 else cluster.ask_next_after
        self._longest_stall = cluster.call_timeout
        self._stall = self._shortest_stall
        self._silences = 0
        self._asked: dict[int, deque[asyncio.Future[int]]] = {}
        self._sent_at: deque[float] = deque()
        self._waiting = anyio.Event()
        self._closed = False

    def expect_ttl(self, ttl: float) -> None:
        """Notice a silent member early enough for a lease of this TTL."""
        self._longest_stall = min(self._longest_stall, max(SHORTEST_STALL, ttl / 4))
        self._stall = min(self._stall, self._longest_stall)

    async def refresh(self, lease: int) -> int:
        """Keep a lease alive and return its TTL; 0 if there is no such lease."""
        if self._closed:
            raise closed_error("etcd")
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._asked.setdefault(lease, deque())
        if not self.is_open and waiting and waiting[-1].done():
            waiting.pop()  # Cancelled: do not ask on its behalf.
        waiting.append(answer)
        self._ask(lease)
        self.want()
        with anyio.move_on_after(self._cluster.connect_timeout):
            return await answer
        raise RendezvousConnectionError(
            f"no answer from {self._cluster.endpoint} to a keep-alive in {self._cluster.connect_timeout:g} s",
            [f"{self.member.address}: {self.member.trouble or 'no answer'}"],
        )

    def close(self) -> None:
        """Fail the pending keep-alives."""
        self._closed = True
        for answers in self._asked.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(closed_error("etcd"))
        self._asked.clear()

    def _ask(self, lease: int) -> None:
        if self.is_open:
            self._sent_at.append(clock.now())
            self._waiting.set()
            self.send(rpc.LeaseKeepAliveRequest(ID=lease))

    def _opened(self) -> None:
        # Repeat the requests of the previous stream that still have waiters, in the same order.
        self._sent_at.clear()
        for lease, answers in list(self._asked.items()):
            waiting = deque(answer for answer in answers if not answer.done())
            if waiting:
                self._asked[lease] = waiting
                for _ in waiting:
                    self._ask(lease)
            else:
                del self._asked[lease]

    def _received(self, response: Any) -> None:
        self._silences = 0
        self.member.trouble = ""
        if self._sent_at:
            # A distant cluster is not silent: wait for twice the last round trip.
            took = clock.now() - self._sent_at.popleft()
            self._stall = min(self._longest_stall, max(self._shortest_stall, 2 * took))
        answers = self._asked.get(response.ID)
        if answers:
            answer = answers.popleft()
            if not answers:
                del self._asked[response.ID]
            if not answer.done():
                answer.set_result(response.TTL)

    async def _watch_over(self) -> None:
        while True:
            if not self._sent_at:
                self._waiting = anyio.Event()
                await self._waiting.wait()
            looked_at = clock.now()
            # Back off as calls do: quick while there may be an election, then slower, since each new attempt drops the
            # pending answer. A longer wait for a dead leader would put this node out soon after the election.
            stall = self._stall * self._cluster.slowness(self._silences)
            await anyio.sleep(stall / 4)
            # After a stall of this loop, answers may be unread; count only up to the last look.
            now = clock.now()
            until = now if now - looked_at <= stall / 2 else looked_at
            if self._sent_at and until - self._sent_at[0] > stall:
                # The member itself may be healthy: if it forwarded the request to a dead leader, it blocks this
                # stream for seconds.
                self._silences += 1
                self.move_on(f"no answer to a keep-alive in {stall:g} s")
                return
