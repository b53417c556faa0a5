"""Watches keep their promise through broken connections, compactions and a server that has lost its data."""

from __future__ import annotations

import anyio
import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Condition, Delete, Put, Watch
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.testing.conformance.check import WatchReader
from rendezvous_async.testing.etcd import EtcdCluster, start_etcd
from tests.backends.etcd.relay import Relay, relay_to

CALL = 0.4


def compact(etcd: EtcdCluster) -> None:
    """Have etcd forget everything but the present."""
    etcd.members[0].ask("/v3/kv/compaction", {"revision": etcd.revision(), "physical": True})


async def until_current(watch: Watch, moment: float) -> None:
    """Wait until a watch knows everything that was committed before ``moment``."""
    with anyio.fail_after(10):
        while watch.current_at < moment:  # noqa: ASYNC110 - a number that only moves has no event
            await anyio.sleep(0.05)


@pytest.mark.parametrize("names", [("a/",), ("a/x", "a/y", "b")], ids=["one name", "several names"])
async def test_a_watch_resumes_after_every_break(etcd: EtcdCluster, names: tuple[str, ...]) -> None:
    async with (
        open_backend(etcd.endpoint, run_id="breaks") as other,
        relay_to(etcd.members[0].client_port) as relay,
        open_backend(f"etcd://{relay.address}", run_id="breaks", call_timeout=CALL) as backend,
        backend.watch(*names) as watch,
    ):
        reader = WatchReader(watch, *names)
        await reader.read()
        for number in range(6):
            value = b"%d" % number
            if number % 2:
                relay.refuse()
            else:
                relay.cut()
            await other.commit(Put("a/x", value), Put("a/y", value), Delete("a/z"))
            if number % 2:
                await relay.open()
            await other.commit(Put("a/z", value))
            await reader.until_value("a/y", value)
            assert reader.view["a/x"] == value, "half a commit"
        await other.commit(Delete(""))
        await reader.until("the end", lambda view: not view)


@pytest.mark.parametrize("names", [("a/",), ("a/gone", "a/new", "a/old")], ids=["one name", "several names"])
async def test_what_was_compacted_while_cut_off_is_listed(etcd: EtcdCluster, names: tuple[str, ...]) -> None:
    async with (
        open_backend(etcd.endpoint, run_id="compacted") as other,
        relay_to(etcd.members[0].client_port) as relay,
        open_backend(f"etcd://{relay.address}", run_id="compacted", call_timeout=CALL) as backend,
        backend.watch(*names) as watch,
    ):
        await other.commit(Put("a/gone", b"1"), Put("a/old", b"1"))
        reader = WatchReader(watch, *names)
        await reader.read()
        relay.refuse()
        await other.commit(Put("a/new", b"1"))
        await other.commit(Delete("a/gone"))
        compact(etcd)
        await relay.open()
        await reader.read("what happened meanwhile")
        assert reader.view == {"a/old": b"1", "a/new": b"1"}
        await other.commit(Put("a/old", b"2"), Delete("a/new"))
        await reader.until("what comes after", lambda view: view == {"a/old": b"2"})
        await other.commit(Delete(""))


async def test_after_a_token_that_is_compacted(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="old token") as backend:
        old = await backend.commit(Put("a", b"1"), Put("b", b"1"))
        await backend.commit(Put("a", b"2"), Delete("b"))
        await backend.commit(Put("a", b"3"))
        compact(etcd)
        async with backend.watch("a", "b", after=old.token) as watch:
            reader = WatchReader(watch, "a", "b")
            listing = await reader.read()
            assert listing.complete
            assert reader.view == {"a": b"3"}
            await backend.commit(Put("b", b"2"))
            await reader.until("what comes after", lambda view: view == {"a": b"3", "b": b"2"})
        await backend.commit(Delete(""))


async def test_many_watches_are_one_stream_and_one_feed_for_each_name(etcd: EtcdCluster) -> None:
    streams, watchers = "etcd_debugging_mvcc_watch_stream_total", "etcd_debugging_mvcc_watcher_total"
    member = etcd.members[0]
    streams_before, watchers_before = member.metric(streams), member.metric(watchers)
    async with open_backend(etcd.endpoint, run_id="many watches") as backend:
        everybody = 300

        async def follow(number: int) -> None:
            async with backend.watch("state", f"seats/{number % 10}") as watch:
                reader = WatchReader(watch, "state", f"seats/{number % 10}")
                await reader.read()
                there.append(number)
                if len(there) == everybody:
                    all_there.set()
                await reader.until_value("state", b"formed")
                assert reader.view[f"seats/{number % 10}"] == b"yours"

        there: list[int] = []
        all_there = anyio.Event()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for number in range(everybody):
                    group.start_soon(follow, number)
                await all_there.wait()
                assert member.metric(streams) == streams_before + 1
                assert member.metric(watchers) == watchers_before + 11
                seats = (Put(f"seats/{number}", b"yours") for number in range(10))
                await backend.commit(*seats, Put("state", b"formed"))
        await backend.commit(Delete(""))
        with anyio.fail_after(10):
            while member.metric(watchers) > watchers_before:  # noqa: ASYNC110 - a counter inside etcd
                await anyio.sleep(0.02)


async def test_current_at_moves_while_nothing_happens_and_stands_still_when_cut_off(etcd: EtcdCluster) -> None:
    async with (
        relay_to(etcd.members[0].client_port) as relay,
        open_backend(f"etcd://{relay.address}", run_id="current", call_timeout=CALL) as backend,
        backend.watch("a", "b") as watch,
    ):
        await anext(watch)
        await until_current(watch, anyio.current_time() + 0.2)
        relay.refuse()
        cut_at = anyio.current_time()
        with anyio.move_on_after(1.5):
            await until_current(watch, anyio.current_time())
            raise AssertionError("a watch that was cut off says that it is current")
        assert watch.current_at <= cut_at
        await relay.open()
        await until_current(watch, anyio.current_time())


async def test_a_server_that_has_lost_its_data() -> None:
    async with (
        start_etcd() as etcd,
        open_backend(etcd.endpoint, run_id="wiped", call_timeout=CALL) as backend,
        backend.watch("a/", "b") as watch,
        backend.watch("c") as idle,
    ):
        member = etcd.members[0]
        before = [await backend.commit(Put("a/x", b"1"), Put("a/y", b"1")) for _ in range(20)][-1]
        session = await backend.open_session(5)
        listing = await anext(watch)
        assert len(listing.entries) == 2
        await anext(idle)
        member.kill()
        member.wipe()
        member.start()
        await anyio.to_thread.run_sync(etcd.wait_ready)
        with anyio.fail_after(10):
            listing = await anext(watch)
            assert {entry.key: entry.value for entry in listing.entries} == {"a/x": None, "a/y": None}
            assert listing.token.epoch != before.token.epoch
            assert listing.revision < before.revision
            assert (await anext(idle)).entries == ()
            lost = await backend.commit(Put("a/x", b"2"), when=[Condition("a/x", before.token)])
            assert not lost.won
            commits = [await backend.commit(Put("a/x", b"2")) for _ in range(30)]
            # Here the old token's revision exists again, in another history.
            again = next(commit for commit in commits if commit.revision == before.revision)
            assert again.token != before.token
            async with backend.watch("a/x", after=before.token) as late:
                assert (await anext(late)).complete
            await backend.commit(Put("c", b"1"))
            assert [entry.value for entry in (await anext(idle)).entries] == [b"1"]
            with pytest.raises(RendezvousSessionError):
                await session.keep_alive()
            assert session.lost.is_set()


async def test_a_deleted_namespace_is_another_history(etcd: EtcdCluster) -> None:
    """An operator who deletes everything under the prefix deletes the epoch too; nobody takes old tokens for new."""
    async with open_backend(etcd.endpoint, run_id="deleted", namespace="doomed") as backend:
        before = await backend.commit(Put("a", b"1"))
        etcd.members[0].ask("/v3/kv/deleterange", {"key": "L2Rvb21lZC8=", "range_end": "L2Rvb21lZDA="})
        after = await backend.commit(Put("a", b"2"), when=[Condition("a", None)])
        assert after.won
        assert after.token.epoch != before.token.epoch


async def test_a_frozen_server_stops_nothing_for_good() -> None:
    async with start_etcd() as etcd, open_backend(etcd.endpoint, run_id="frozen", call_timeout=CALL) as backend:
        watched: list[bytes | None] = []

        async def follow(backend: Backend) -> None:
            async with backend.watch("a") as watch:
                async for listing in watch:
                    watched.extend(entry.value for entry in listing.entries)
                    if watched[-1:] == [b"2"]:
                        return

        await backend.commit(Put("a", b"1"))
        async with anyio.create_task_group() as group:
            group.start_soon(follow, backend)
            etcd.members[0].freeze()
            with anyio.move_on_after(3 * CALL) as scope:
                await backend.commit(Put("b", b"1"))
            assert scope.cancelled_caught
            etcd.members[0].thaw()
            with anyio.fail_after(10):
                await backend.commit(Put("a", b"2"))


async def test_relays_lose_nothing_themselves(etcd: EtcdCluster) -> None:
    """The tests above are only as good as their relay."""
    async with relay_to(etcd.members[0].client_port) as relay:
        assert isinstance(relay, Relay)
        async with open_backend(f"etcd://{relay.address}", run_id="relay") as backend:
            assert (await backend.commit(Put("a", b"x" * 500_000))).won
            entry = await backend.get("a")
            assert entry is not None
            assert entry.value == b"x" * 500_000
            await backend.commit(Delete(""))


async def test_a_client_that_does_not_know_the_new_epoch_yet_takes_its_tokens(etcd: EtcdCluster) -> None:
    async with (
        open_backend(etcd.endpoint, run_id="behind", namespace="behind") as behind,
        open_backend(etcd.endpoint, run_id="behind", namespace="behind") as ahead,
    ):
        await behind.commit(Put("a", b"1"))
        etcd.members[0].ask("/v3/kv/deleterange", {"key": "L2JlaGluZC8=", "range_end": "L2JlaGluZDA="})
        fresh = await ahead.commit(Put("a", b"2"))
        commit = await behind.commit(Put("a", b"3"), when=[Condition("a", fresh.token)])
        assert commit.won
        entry = await ahead.get("a")
        assert entry is not None
        assert (entry.value, entry.token) == (b"3", commit.token)
