"""Sessions are leases: what is granted, how they are kept, and how they end."""

from __future__ import annotations

import anyio
import pytest

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import OUT_AFTER, Put, Session
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.testing.etcd import EtcdCluster, start_etcd
from tests.backends.etcd.relay import relay_to


def leases(etcd: EtcdCluster) -> set[str]:
    return {lease["ID"] for lease in etcd.members[0].ask("/v3/lease/leases").get("leases", [])}


async def test_what_etcd_grants_counts(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="granted") as backend:
        for asked, ttl, granted in ((0.3, 2, 2), (2.1, 2.1, 2), (5, 5, 4), (15, 15, 12)):
            before = anyio.current_time()
            session = await backend.open_session(asked)
            assert session.ttl == ttl
            assert before + OUT_AFTER * ttl <= session.deadline <= anyio.current_time() + OUT_AFTER * ttl
            lease = etcd.members[0].ask("/v3/lease/timetolive", {"ID": str(int(session.id, 16))})
            assert int(lease["grantedTTL"]) == granted
            assert session.deadline < before + granted, "its owner would believe in a session that has ended"
            await session.aclose()
        with pytest.raises(ValueError, match="ttl must be a positive"):
            await backend.open_session(0)


async def test_a_dead_lease_is_answered_with_ttl_0_and_that_is_a_lost_session(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="dead") as backend:
        session = await backend.open_session(5)
        await session.keep_alive()
        etcd.members[0].ask("/v3/lease/revoke", {"ID": str(int(session.id, 16))})
        deadline = session.deadline
        with pytest.raises(RendezvousSessionError, match=f"session {session.id} has ended"):
            await session.keep_alive()
        assert session.lost.is_set()
        assert session.deadline == deadline
        await session.aclose()


async def test_a_grant_whose_answer_was_lost_leaves_no_second_lease(etcd: EtcdCluster) -> None:
    async with (
        relay_to(etcd.members[0].client_port) as relay,
        open_backend(f"etcd://{relay.address}", run_id="grant", call_timeout=0.4) as backend,
    ):
        before = leases(etcd)
        sessions: list[Session] = []

        async def open_session() -> None:
            sessions.append(await backend.open_session(5))

        relay.drop_answers = True
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(open_session)
                await relay.answered.wait()
                relay.drop_answers = False
                relay.cut()
        assert leases(etcd) - before == {str(int(sessions[0].id, 16))}
        assert sessions[0].ttl == 5
        await sessions[0].aclose()


async def test_an_answer_counts_for_the_keep_alive_that_it_answers(etcd: EtcdCluster) -> None:
    """One that was given up before is answered first, and must not move the deadline of the next."""
    async with (
        relay_to(etcd.members[0].client_port) as relay,
        open_backend(f"etcd://{relay.address}", run_id="order") as backend,
    ):
        session = await backend.open_session(60)
        await session.keep_alive()
        relay.hold_requests = True
        with anyio.move_on_after(0.1):
            await session.keep_alive()
        deadline = session.deadline
        relay.requested.clear()
        with anyio.move_on_after(0.2) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(session.keep_alive)
                await relay.requested.wait()
                relay.release()  # only the first piece, which is the first request
        assert scope.cancelled_caught
        assert session.deadline == deadline
        relay.cut()
        await session.keep_alive()
        assert session.deadline > deadline
        await session.aclose()


@pytest.mark.parametrize(
    "wiped",
    [pytest.param(False, id="with its data", marks=pytest.mark.slow), pytest.param(True, id="without its data")],
)
async def test_losing_etcd_for_longer_than_the_ttl(wiped: bool) -> None:
    """Nothing hangs; the owner knows that it is out by its own clock; a new session works at once."""
    async with (
        start_etcd() as etcd,
        open_backend(etcd.endpoint, run_id="outage", call_timeout=0.5, connect_timeout=1.2) as backend,
        backend.watch("nodes/") as watch,
    ):
        session = await backend.open_session(2)
        await backend.commit(Put("nodes/a", b"", session.id))
        assert len((await anext(watch)).entries) == 1
        etcd.members[0].kill()
        lost_at = anyio.current_time()
        while anyio.current_time() < lost_at + session.ttl + 0.5:
            with anyio.fail_after(3), pytest.raises(RendezvousConnectionError, match="Connection refused"):
                await session.keep_alive()
        assert anyio.current_time() > session.deadline
        assert not session.lost.is_set()
        with pytest.raises(RendezvousConnectionError, match="Connection refused"):
            await backend.commit(Put("nodes/b", b""))
        if wiped:
            etcd.members[0].wipe()
        etcd.members[0].start()
        await anyio.to_thread.run_sync(etcd.wait_ready)
        with anyio.fail_after(10):
            # As the handler does: a node that is out ends its session and starts over.
            await session.aclose()
            assert [(entry.key, entry.value) for entry in (await anext(watch)).entries] == [("nodes/a", None)]
            with pytest.raises(RendezvousSessionError):
                await session.keep_alive()
            fresh = await backend.open_session(2)
            await backend.commit(Put("nodes/a", b"new", fresh.id))
            await fresh.keep_alive()
        assert [entry.value for entry in (await anext(watch)).entries] == [b"new"]
