"""What a formation costs the server, counted and not timed: operations and bytes per node, flat in N and under a cap.

This is the gate against the protocol growing fat: a change that makes every node ask once more, that sends every node
something that grows with the world, or that makes what is sent a third larger, fails here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.server import requests
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.server.serving import serve

SET_UP = (wire.OpenSession, wire.Follow)
SMALL, LARGE = 16, 128
TIMEOUTS = rdzv.Timeouts(join=60)
USUAL = {"first operations": 1.06, "first bytes": 1_480.0, "second operations": 1.02, "second bytes": 1_021.0}
"""What a node of the large world costs; a change that makes it cheaper lowers these."""
MARGIN = 1.3
COUNT_BYTES = 330
"""What it takes to tell a member how many wait."""


class Bill:
    """What the server was asked, and how many bytes it read and wrote."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: Counter[type] = Counter()
        self.heads = 0
        self.bytes = 0
        for kind, answer in requests.ANSWERS.items():
            patch.setitem(requests.ANSWERS, kind, self._counting(kind, answer))
        feed, flush = Connection.data_received, Connection.flush

        def data_received(peer: Connection, data: bytes) -> None:
            self.bytes += len(data)
            feed(peer, data)

        def counted_flush(peer: Connection) -> None:
            self.bytes += len(peer._out)
            flush(peer)

        patch.setattr(Connection, "data_received", data_received)
        patch.setattr(Connection, "flush", counted_flush)

    def _counting(self, kind: type, answer: Callable[[Connection, Any], None]) -> Callable[[Connection, Any], None]:
        def counting(peer: Connection, request: Any) -> None:
            # A session that is opened with its first commit is no set-up alone.
            self.asked[wire.Transact if kind is wire.OpenSession and request.writes else kind] += 1
            self.heads += any(write.key.endswith("/state") for write in getattr(request, "writes", ()))
            answer(peer, request)

        return counting

    def clear(self) -> None:
        self.asked.clear()
        self.heads = 0
        self.bytes = 0

    def operations(self) -> int:
        """Everything but the set-up of sessions and watches, and keep-alives, which come with time."""
        return sum(count for kind, count in self.asked.items() if kind not in (*SET_UP, wire.Renew, wire.Ping))


@asynccontextmanager
async def nodes_of(endpoint: str, count: int) -> AsyncIterator[list[rdzv.Rendezvous]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                rdzv.connect(endpoint, run_id=f"run-{count}", nodes=count, timeouts=TIMEOUTS, node=f"n{number:04}")
            )
            for number in range(count)
        ]


async def join_all(nodes: list[rdzv.Rendezvous]) -> None:
    async with anyio.create_task_group() as group:
        for node in nodes:
            group.start_soon(node.join)


async def bill_of(endpoint: str, bill: Bill, count: int) -> tuple[dict[str, float], int]:
    """Return the cost per node of a first and of a second round, and how often the second told members of a count.

    Each tenth of a second they are told how many wait: never on a fast machine.
    """
    async with nodes_of(endpoint, count) as nodes:
        for node in nodes:
            await node.status()
        bill.clear()
        await join_all(nodes)
        first_operations, first_bytes = bill.operations() / count, bill.bytes / count
        bill.clear()
        await join_all(nodes)
        cost = {
            "first operations": first_operations,
            "first bytes": first_bytes,
            "second operations": bill.operations() / count,
            "second bytes": bill.bytes / count,
        }
        return cost, bill.heads - 1  # the last one formed the round


async def test_a_node_costs_little_whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    bill = Bill(monkeypatch)
    async with serve("127.0.0.1", 0) as server:
        small, _ = await bill_of(server.endpoint, bill, SMALL)
        large, told = await bill_of(server.endpoint, bill, LARGE)
    assert large["first operations"] <= 3
    assert large["second operations"] <= 3
    counts = {"second operations": told / LARGE, "second bytes": float(told * COUNT_BYTES)}
    for what, cost in large.items():
        # The coordinator's own few calls weigh less in a larger world, and nothing may weigh more.
        most = 1.1 * small[what] + counts.get(what, 0)
        assert cost <= most, f"{what} per node: {small[what]:.2f} of {SMALL}, {cost:.2f} of {LARGE}"
        cap = MARGIN * USUAL[what] + counts.get(what, 0)
        assert cost <= cap, f"{what} per node: {cost:.2f} of {LARGE}, at most {cap:.2f}"
