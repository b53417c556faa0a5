"""A member that says nothing, or that hands on requests to a leader that has died, holds up nobody.

``call_timeout`` is as long as ``connect_timeout`` here, so that whoever waits for one member alone fails.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Put, Session
from rendezvous_async.backends.etcd.driver import EtcdDriver
from rendezvous_async.testing.conformance.check import WatchReader
from rendezvous_async.testing.etcd import EtcdCluster, start_etcd
from tests.backends.etcd.relay import Relay, relay_to
from tests.backends.tcp.support import eventually

PATIENT = {"call_timeout": 6, "connect_timeout": 6}


def address_in_use(backend: Backend) -> str:
    assert isinstance(backend.driver, EtcdDriver)
    return backend.driver._cluster.member.address


@asynccontextmanager
async def two_members(etcd: EtcdCluster, run_id: str) -> AsyncIterator[tuple[Backend, Callable[[], Relay]]]:
    """A backend with two ways to one etcd, and a function that silences the one in use."""
    port = etcd.members[0].client_port
    async with (
        relay_to(port) as first,
        relay_to(port) as second,
        open_backend(f"etcd://{first.address},{second.address}", run_id=run_id, **PATIENT) as backend,
    ):

        def silence() -> Relay:
            relay = next(each for each in (first, second) if each.address == address_in_use(backend))
            relay.hold_requests = True
            return relay

        yield backend, silence


@pytest.mark.parametrize("what", ["get", "commit", "open a session"])
async def test_a_call_is_answered_by_the_next_member(etcd: EtcdCluster, what: str) -> None:
    async with two_members(etcd, f"silent {what}") as (backend, silence):
        await backend.commit(Put("a", b"1"))
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get": lambda: backend.get("a"),
            "commit": lambda: backend.commit(Put("a", b"2")),
            "open a session": lambda: backend.open_session(60),
        }
        silent = silence()
        await calls[what]()
        assert silent.requested.is_set()
        assert address_in_use(backend) != silent.address


async def test_a_keep_alive_is_answered_by_the_next_member(etcd: EtcdCluster) -> None:
    async with two_members(etcd, "silent keep-alive") as (backend, silence):
        session = await backend.open_session(60)
        await session.keep_alive()
        deadline = session.deadline
        silent = silence()
        await session.keep_alive()
        assert silent.requested.is_set()
        assert session.deadline > deadline


async def test_a_keep_alive_is_asked_as_often_as_a_call_while_nobody_answers(etcd: EtcdCluster) -> None:
    """During an election all are silent. Who then waited longer for the dead leader was out by its own clock."""
    port = etcd.members[0].client_port
    async with AsyncExitStack() as stack:
        relays = [await stack.enter_async_context(relay_to(port)) for _ in range(3)]
        endpoint = "etcd://" + ",".join(relay.address for relay in relays)
        backend = await stack.enter_async_context(open_backend(endpoint, run_id="silent", call_timeout=2))
        driver = backend.driver
        assert isinstance(driver, EtcdDriver)
        session = await backend.open_session(60)
        await session.keep_alive()
        for relay in relays:
            relay.hold_requests = True
        calls = driver.operations
        async with anyio.create_task_group() as group:
            group.start_soon(session.keep_alive)
            group.start_soon(backend.get, "a")
            await eventually(lambda: driver.operations - calls > 8)
            assert driver._keep_alives._silences >= 6
            for relay in relays:
                relay.hold_requests = False
                relay.cut()


async def test_a_silent_member_is_left_though_this_loop_is_blocked_again_and_again(etcd: EtcdCluster) -> None:
    async with two_members(etcd, "blocked") as (backend, silence):
        session = await backend.open_session(60)
        await session.keep_alive()
        deadline = session.deadline
        silence()
        async with anyio.create_task_group() as group:
            group.start_soon(session.keep_alive)
            while session.deadline == deadline:
                time.sleep(0.6)  # noqa: TID251, ASYNC251 - blocks the loop, on purpose
                await anyio.sleep(0.01)


async def test_a_watch_moves_with_the_calls(etcd: EtcdCluster) -> None:
    async with two_members(etcd, "silent watch") as (backend, silence), backend.watch("a") as watch:
        reader = WatchReader(watch, "a")
        await reader.read()
        silence()
        await backend.commit(Put("a", b"moved"))
        with anyio.fail_after(5):
            await reader.until_value("a", b"moved")


async def test_a_commit_and_a_keep_alive_outlast_an_election() -> None:
    """A follower hands both on to the leader, and waits for seven seconds if that has died."""
    async with start_etcd(3) as cluster, open_backend(cluster.endpoint, run_id="election", **PATIENT) as backend:
        session: Session = await backend.open_session(60)
        await session.keep_alive()
        await backend.commit(Put("a", b"before", session.id))
        deadline = session.deadline
        cluster.leader().freeze()
        async with anyio.create_task_group() as group:
            group.start_soon(session.keep_alive)
            assert (await backend.commit(Put("a", b"after", session.id))).won
        assert session.deadline > deadline
