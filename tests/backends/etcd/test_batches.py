"""Commits that travel together are few calls, and have nothing else to do with each other."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Commit, Condition, Delete, Put, Write
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.testing.conformance.check import WatchReader
from rendezvous_async.testing.etcd import EtcdCluster
from tests.backends.etcd.relay import relay_to

Asked = tuple[tuple[Write, ...], tuple[Condition, ...]]


async def together(backend: Backend, *asked: Asked) -> list[Commit]:
    """Make commits at the same moment; the first is sent at once, and the others gather behind it."""
    done: dict[int, Commit] = {}

    async def make(number: int, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> None:
        done[number] = await backend.commit(*writes, when=when)

    async with anyio.create_task_group() as group:
        for number, (writes, when) in enumerate(asked):
            group.start_soon(make, number, writes, when)
    return [done[number] for number in range(len(asked))]


def put(key: str, *absent: str, value: bytes = b"") -> Asked:
    return (Put(key, value),), tuple(Condition(name, None) for name in absent)


async def test_many_commits_at_once_are_a_few_calls(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="few calls") as backend:
        await backend.commit(Put("warm", b""))
        before = etcd.members[0].metric("grpc_server_handled_total", grpc_method="Txn")
        commits = await together(backend, *(put(f"many/{number}", value=b"%d" % number) for number in range(300)))
        assert etcd.members[0].metric("grpc_server_handled_total", grpc_method="Txn") - before < 30
        assert all(commit.won for commit in commits)
        found = {entry.key: entry for entry in (await backend.list("many/")).entries}
        for number, commit in enumerate(commits):
            assert (found[f"many/{number}"].value, found[f"many/{number}"].token) == (b"%d" % number, commit.token)
        again = await together(backend, *(put(f"many/{number}", f"many/{number}") for number in range(100)))
        assert [commit.entries for commit in again] == [(found[f"many/{number}"],) for number in range(100)]
        await backend.commit(Delete(""))


async def test_only_one_of_many_that_want_the_same_key_wins(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="same key") as backend:
        commits = await together(backend, put("first"), *(put("key", "key", value=b"%d" % n) for n in range(20)))
        winners = [commit for commit in commits[1:] if commit.won]
        assert len(winners) == 1
        assert all(commit.entries[0].token == winners[0].token for commit in commits[1:] if not commit.won)
        await backend.commit(Delete(""))


async def test_of_two_that_compare_what_the_other_writes_one_loses(etcd: EtcdCluster) -> None:
    """etcd would let both win in one transaction, since it compares before it writes."""
    async with open_backend(etcd.endpoint, run_id="skew") as backend:
        pairs = [(put(f"{n}/a", f"{n}/b"), put(f"{n}/b", f"{n}/a")) for n in range(40)]
        commits = await together(backend, put("first"), *(one for pair in pairs for one in pair))
        for left, right in zip(commits[1::2], commits[2::2], strict=True):
            assert left.won != right.won
        await backend.commit(Delete(""))


async def test_a_session_that_has_ended_spoils_one_commit_and_not_the_others(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="spoiled") as backend:
        session = await backend.open_session(5)
        await session.aclose()
        refused: list[str] = []

        async def with_the_dead_session() -> None:
            with pytest.raises(RendezvousSessionError, match="nothing was written") as caught:
                await backend.commit(Put("dead", b"", session.id))
            refused.append(str(caught.value))

        async with anyio.create_task_group() as group:
            group.start_soon(backend.commit, Put("first", b""))
            group.start_soon(with_the_dead_session)
            for number in range(10):
                group.start_soon(backend.commit, Put(f"alive/{number}", b""))
        assert len(refused) == 1
        assert len((await backend.list("alive/")).entries) == 10
        assert await backend.get("dead") is None
        await backend.commit(Delete(""))


async def test_a_batch_whose_answer_was_lost_has_happened_once(etcd: EtcdCluster) -> None:
    async with (
        open_backend(etcd.endpoint, run_id="lost batch") as other,
        relay_to(etcd.members[0].client_port) as relay,
        open_backend(f"etcd://{relay.address}", run_id="lost batch", call_timeout=0.5) as backend,
    ):
        await backend.commit(Put("warm", b""))
        taken = await other.commit(Put("batch/taken", b""))

        async def first() -> None:
            await backend.commit(Put("first", b""))
            relay.drop_answers = True  # from now on; the batch goes next
            async with other.watch("batch/9") as watch:
                await WatchReader(watch, "batch/9").until("the batch", bool)
            relay.drop_answers = False
            relay.cut()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(first)
                asked = [put(f"batch/{number}", f"batch/{number}") for number in range(10)]
                commits = await together(backend, *asked, put("batch/taken", "batch/taken"))
        assert [commit.won for commit in commits] == [True] * 10 + [False]
        assert [entry.token for entry in commits[-1].entries] == [taken.token]
        found = {entry.key: entry.token for entry in (await other.list("batch/")).entries}
        assert [found[f"batch/{number}"] for number in range(10)] == [commit.token for commit in commits[:-1]]
        await other.commit(Delete(""))


async def test_who_is_cancelled_before_the_batch_goes_has_written_nothing(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="cancelled") as backend:
        await backend.commit(Put("warm", b""))
        async with anyio.create_task_group() as group:
            group.start_soon(backend.commit, Put("first", b""))
            async with anyio.create_task_group() as given_up:
                given_up.start_soon(backend.commit, Put("given up", b""))
                group.start_soon(backend.commit, Put("last", b""))
                await checkpoint()  # All three are under way, and nothing has been heard from etcd.
                given_up.cancel_scope.cancel()
        assert [entry.key for entry in (await backend.list("")).entries] == ["first", "last", "warm"]
        await backend.commit(Delete(""))
