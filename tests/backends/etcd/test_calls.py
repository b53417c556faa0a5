"""What gRPC was asked is let come to its end, whoever is cancelled meanwhile: else gRPC never frees it."""

from __future__ import annotations

import asyncio
import gc
import socket
from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.etcd import channel
from rendezvous_async.backends.etcd.channel import ClusterClient, ClusterMember
from rendezvous_async.backends.etcd.driver import EtcdDriver
from rendezvous_async.backends.etcd.lease import KeepAlives
from rendezvous_async.backends.etcd.options import EtcdOptions
from rendezvous_async.settings import parse_endpoint
from rendezvous_async.testing.conformance.cancellation import TURNS, give_up
from rendezvous_async.testing.etcd import EtcdCluster
from tests.backends.etcd.relay import relay_to
from tests.proof.cycles import heap

WAIT = 20
STREAMS = ("Watch", "LeaseKeepAlive")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Every call that is made, by the name of its method."""
    made: list[tuple[str, Any]] = []
    method = ClusterMember.method

    def record(self: ClusterMember, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append((name, method(self, name)(*arguments, **options)))
            return made[-1][1]

        return call

    monkeypatch.setattr(ClusterMember, "method", record)
    monkeypatch.setattr(channel, "LAST_ANSWERS", WAIT)
    return made


def under_way(backend: Backend) -> int:
    assert isinstance(backend.driver, EtcdDriver)
    return len(backend.driver._cluster.under_way)


async def test_a_call_that_is_given_up_comes_to_its_end(etcd: EtcdCluster, calls: list[tuple[str, Any]]) -> None:
    async with open_backend(etcd.endpoint, run_id="given up") as backend:
        given_up = 0
        for turns in TURNS:
            given_up += not await give_up(lambda: backend.get("a"), turns)
            given_up += not await give_up(lambda: backend.commit(Put("a", b"")), turns)
        assert given_up
    assert under_way(backend) == 0
    assert {name for name, _ in calls} >= {"Range", "Txn"}
    assert [name for name, call in calls if not call.done() or (call.cancelled() and name not in STREAMS)] == []


async def test_a_stream_ends_with_its_backend(etcd: EtcdCluster, calls: list[tuple[str, Any]]) -> None:
    async with open_backend(etcd.endpoint, run_id="stream") as backend:
        session = await backend.open_session(5)
        await session.keep_alive()
        async with backend.watch("a") as watch:
            await anext(watch)
            assert under_way(backend) >= 2
    assert under_way(backend) == 0
    assert [name for name in STREAMS if all(name != made for made, _ in calls)] == []
    assert [name for name, call in calls if not call.done()] == []


async def test_who_closes_does_not_wait_long_for_what_was_given_up(etcd: EtcdCluster) -> None:
    async with relay_to(etcd.members[0].client_port) as relay:
        patient = {"call_timeout": 60, "connect_timeout": 60}
        async with open_backend(f"etcd://{relay.address}", run_id="silence", **patient) as backend:
            relay.drop_answers = True
            for turns in TURNS:
                assert not await give_up(lambda: backend.get("a"), turns)
            assert under_way(backend) > 0
            with anyio.fail_after(WAIT):
                await backend.aclose()
        assert under_way(backend) == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_that_nobody_waits_for_is_no_news(etcd: EtcdCluster) -> None:
    news: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: news.append(context["message"]))
    async with open_backend(etcd.endpoint, run_id="no news") as backend:
        for turns in TURNS:
            await give_up(lambda: backend.end_session("1"), turns)  # there is no such lease
    gc.collect()
    # gRPC may report calls to this loop that an earlier loop has cancelled; ignore those.
    assert [message for message in news if "never retrieved" in message] == []


async def test_a_stream_that_is_not_connected_yet_can_be_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        endpoint = parse_endpoint(f"etcd://127.0.0.1:{silent.getsockname()[1]}")
        cluster = ClusterClient(endpoint, EtcdOptions(), None, Random(0))
        keep_alives = KeepAlives(cluster)
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                group.start_soon(keep_alives.run)
                group.start_soon(keep_alives.refresh, 1)
                while not len(cluster.under_way):
                    await checkpoint()
                group.cancel_scope.cancel()
            await cluster.under_way.drain(WAIT)
            assert len(cluster.under_way) == 0
        await cluster.aclose()


async def test_grpc_frees_what_a_call_that_was_given_up_held(etcd: EtcdCluster) -> None:
    """Cancelled with who awaited it, each call cost 1.6 KiB for good, and more if the answer was on its way."""
    if not heap():
        pytest.skip("malloc does not tell how much it has given out")
    async with open_backend(etcd.endpoint, run_id="memory") as backend:

        async def give_up_many(times: int) -> int:
            for number in range(times):
                await give_up(lambda: backend.get("a"), 2 + number % 4)
                await backend.get("a")
            gc.collect()
            return heap()

        before = await give_up_many(100)
        assert await give_up_many(400) - before < 400 * 300
