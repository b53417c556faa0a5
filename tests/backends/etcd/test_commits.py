"""A commit happens once, whatever is lost on the way; what makes sure of that leaves no traces."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Condition, Delete, Put, Token
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.testing.etcd import EtcdCluster
from tests.backends.etcd.relay import Relay, relay_to

CALL = 0.4


def relayed(relay: Relay, run_id: str, **options: Any) -> Any:
    return open_backend(f"etcd://{relay.address}", run_id=run_id, call_timeout=CALL, **options)


def markers(etcd: EtcdCluster) -> list[dict[str, str]]:
    """Return the markers of commits that stand in etcd."""
    start, end = (base64.b64encode(text).decode() for text in (b"/rendezvous_async/@commits/", b"/rendezvous_async/@d"))
    found: list[dict[str, str]] = etcd.members[0].ask("/v3/kv/range", {"key": start, "range_end": end}).get("kvs", [])
    return found


def revoke_pages(etcd: EtcdCluster) -> None:
    for lease in {marker["lease"] for marker in markers(etcd)}:
        etcd.members[0].ask("/v3/lease/revoke", {"ID": lease})


async def lose_the_answer(relay: Relay) -> None:
    """Let the next request through, lose its answer, and let the client connect again."""
    relay.drop_answers = True
    await relay.answered.wait()
    relay.drop_answers = False
    relay.cut()


@pytest.mark.parametrize("write", [Put("a", b"2"), Delete("a")], ids=["put", "delete"])
async def test_a_commit_whose_answer_was_lost_is_recognised(etcd: EtcdCluster, write: Put | Delete) -> None:
    async with (
        open_backend(etcd.endpoint, run_id="lost answer") as other,
        relay_to(etcd.members[0].client_port) as relay,
        relayed(relay, "lost answer") as backend,
    ):
        first = await backend.commit(Put("a", b"1"))
        async with anyio.create_task_group() as group:
            group.start_soon(lose_the_answer, relay)
            with anyio.fail_after(10):
                second = await backend.commit(write, Put("count", b"1"), when=[Condition("a", first.token)])
        assert second.won
        entry = await other.get("count")
        assert entry is not None
        assert entry.token == second.token
        assert (await backend.commit(Put("a", b"3"), when=[Condition("count", second.token)])).won
        await other.commit(Delete(""))


async def test_it_is_recognised_even_if_it_was_overwritten_meanwhile(etcd: EtcdCluster) -> None:
    async with (
        open_backend(etcd.endpoint, run_id="overwritten") as other,
        relay_to(etcd.members[0].client_port) as relay,
        relayed(relay, "overwritten") as backend,
    ):
        await backend.commit(Put("warm", b""))

        async def overwrite() -> None:
            relay.drop_answers = True
            await relay.answered.wait()
            entry = await other.get("a")
            assert entry is not None
            mine.append(await other.commit(Put("a", b"other"), when=[Condition("a", entry.token)]))
            relay.drop_answers = False
            relay.cut()

        mine: list[Any] = []
        async with anyio.create_task_group() as group:
            group.start_soon(overwrite)
            with anyio.fail_after(10):
                commit = await backend.commit(Put("a", b"first"), when=[Condition("a", None)])
        assert commit.won
        assert mine[0].won
        assert commit.revision < mine[0].revision
        entry = await other.get("a")
        assert entry is not None
        assert entry.value == b"other"
        await other.commit(Delete(""))


class TwoWays:
    """A client with two ways to one etcd, of which it uses the slow one, and another client to look on."""

    def __init__(self, slow: Relay, backend: Backend, other: Backend) -> None:
        self.slow = slow
        self.backend = backend
        self.other = other

    async def expect_nothing_after(self, token: Token) -> None:
        """Let the copy that was held arrive, and make sure that it changes nothing."""
        self.slow.release()
        async with relayed(self.slow, self.other.run_id) as witness:
            await witness.get("a")
        with anyio.move_on_after(0.3):
            async with self.other.watch("", after=token) as watch:
                async for listing in watch:
                    raise AssertionError(f"a late copy was applied: {listing}")


@asynccontextmanager
async def two_ways(etcd: EtcdCluster, run_id: str) -> AsyncIterator[TwoWays]:
    port = etcd.members[0].client_port
    async with open_backend(etcd.endpoint, run_id=run_id) as other, relay_to(port) as slow, relay_to(port) as fast:
        fast.refuse()
        endpoint = f"etcd://{slow.address},{fast.address}"
        async with open_backend(endpoint, run_id=run_id, call_timeout=CALL) as backend:
            await backend.commit(Put("warm", b""))
            await fast.open()
            yield TwoWays(slow, backend, other)
            await other.commit(Delete(""))


@pytest.mark.parametrize("conditional", [False, True])
async def test_a_copy_that_arrives_late_changes_nothing(etcd: EtcdCluster, conditional: bool) -> None:
    """What a frozen member does when it wakes up: it hands on a request that was answered elsewhere long ago."""
    async with two_ways(etcd, "late copy") as ways:
        ways.slow.hold_requests = True
        with anyio.fail_after(10):
            when = [Condition("a", None)] if conditional else []
            assert (await ways.backend.commit(Put("a", b"first"), when=when)).won
        assert ways.slow.requested.is_set()
        second = await ways.other.commit(Delete("a") if conditional else Put("a", b"second"))
        await ways.expect_nothing_after(second.token)


async def test_a_commit_that_lost_after_a_missing_answer_cannot_win_later(etcd: EtcdCluster) -> None:
    async with two_ways(etcd, "void") as ways:
        blocker = await ways.other.commit(Put("a", b"other"))
        ways.slow.hold_requests = True
        with anyio.fail_after(10):
            lost = await ways.backend.commit(Put("a", b"mine"), when=[Condition("a", None)])
        assert not lost.won
        assert [entry.token for entry in lost.entries] == [blocker.token]
        gone = await ways.other.commit(Delete("a"))  # now the condition of the late copy holds
        await ways.expect_nothing_after(gone.token)


async def test_markers_are_few_and_go_with_the_backend(etcd: EtcdCluster) -> None:
    before = len(markers(etcd))
    async with open_backend(etcd.endpoint, run_id="markers") as backend:
        start = etcd.revision()
        for number in range(20):
            await backend.commit(Put("a", b"%d" % number))
        assert etcd.revision() == start + 20
        assert len(markers(etcd)) == before + 1
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(backend.commit, Put(f"b/{number}", b""))
        assert len(markers(etcd)) <= before + 8
        assert all(int(marker["lease"]) > 0 for marker in markers(etcd)[before:])
        await backend.commit(Delete(""))
    assert len(markers(etcd)) == before


async def test_commits_that_were_given_up_do_not_pile_up(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="given up") as backend:
        for turn in range(200):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(backend.commit, Put("a", b"%d" % turn))
                    for _ in range(turn % 20):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
        assert (await backend.commit(Delete(""))).won
        assert len(markers(etcd)) < 200


async def test_the_page_can_be_lost(etcd: EtcdCluster) -> None:
    """The client's own lease may be revoked by somebody; commits go on under a new one."""
    async with open_backend(etcd.endpoint, run_id="page") as backend:
        await backend.commit(Put("a", b"1"))
        revoke_pages(etcd)
        commit = await backend.commit(Put("a", b"2"))
        assert commit.won
        entry = await backend.get("a")
        assert entry is not None
        assert entry.token == commit.token
        session = await backend.open_session(5)
        revoke_pages(etcd)
        assert (await backend.commit(Put("a", b"3", session.id), when=[Condition("a", commit.token)])).won
        await session.aclose()
        with pytest.raises(RendezvousSessionError, match=f"session {session.id} has ended; nothing was written"):
            await backend.commit(Put("a", b"4", session.id))


async def test_a_request_over_the_servers_limit_is_a_value_error(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="large") as backend:
        backend.driver.max_bytes = 3 * 1024 * 1024
        with pytest.raises(ValueError, match=r"refused Txn: .* split the commit"):
            await backend.commit(Put("a", b"x" * (2 * 1024 * 1024)))
        backend.driver.max_writes = 200
        with pytest.raises(ValueError, match="too many operations"):
            await backend.commit(*(Put(f"a/{number}", b"") for number in range(128)))
        assert await backend.get("a") is None


async def test_closing_during_a_call(etcd: EtcdCluster) -> None:
    async with relay_to(etcd.members[0].client_port) as relay:
        endpoint = f"etcd://{relay.address}"
        async with open_backend(endpoint, run_id="closing") as backend, anyio.create_task_group() as group:
            await backend.commit(Put("a", b"1"))
            session = await backend.open_session(5)
            relay.drop_answers = True
            ended: list[str] = []

            async def fails(what: str, call: Any) -> None:
                with pytest.raises(RendezvousConnectionError, match="the etcd backend is closed"):
                    await call
                ended.append(what)

            async def follow(backend: Backend) -> None:
                async with backend.watch("a") as watch:
                    await anext(watch)

            group.start_soon(fails, "get", backend.get("a"))
            group.start_soon(fails, "commit", backend.commit(Put("a", b"2")))
            group.start_soon(fails, "commit in a batch", backend.commit(Put("b", b"2")))
            group.start_soon(fails, "keep_alive", session.keep_alive())
            group.start_soon(fails, "watch", follow(backend))
            await relay.answered.wait()
            with anyio.fail_after(3):
                await backend.aclose()
        assert sorted(ended) == ["commit", "commit in a batch", "get", "keep_alive", "watch"]


async def test_a_cancel_scope_ends_a_call_that_gets_no_answer(etcd: EtcdCluster) -> None:
    async with relay_to(etcd.members[0].client_port) as relay, relayed(relay, "scope") as backend:
        session = await backend.open_session(5)
        relay.drop_answers = True
        for call in (
            lambda: backend.get("a"),
            lambda: backend.commit(Put("a", b"")),
            session.keep_alive,
            lambda: backend.open_session(5),
            lambda: anext(backend.watch("a")),
        ):
            with anyio.move_on_after(0.1) as scope:
                await call()
            assert scope.cancelled_caught
        relay.drop_answers = False
        relay.cut()
        assert await backend.get("b") is None
