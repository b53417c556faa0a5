"""What stages can do to a backend, each on its own: what is cut is cut, and whoever hosts is found."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.testing.etcd import EtcdMember, etcd_program
from tests.proof.campaign.faults import faults_of
from tests.proof.campaign.processes import Child
from tests.proof.campaign.report import STAGES
from tests.proof.campaign.stage import Stage
from tests.proof.campaign.stage_cas import redis_program
from tests.proof.campaign.stage_etcd import EtcdStage
from tests.proof.campaign.stage_tcp import SECRET


@asynccontextmanager
async def stage_of(name: str, folder: Path, places: int = 2) -> AsyncIterator[Stage]:
    async with anyio.create_task_group() as group:
        async with STAGES[name](folder, group, places) as stage:
            yield stage
        group.cancel_scope.cancel()


def _reads(member: EtcdMember) -> bool:
    """Tell whether a member can read through the others; it answers for itself either way."""
    assert "version" in member.ask("/v3/maintenance/status")
    try:
        member.ask("/v3/kv/range", {"key": "AA=="}, timeout=2.0)
    except OSError:
        return False
    return True


async def test_a_member_of_etcd_that_is_cut_off_from_the_others_still_answers_and_knows_nothing(tmp_path: Path) -> None:
    if etcd_program() is None:
        pytest.skip("there is no etcd here")
    async with stage_of("etcd", tmp_path) as stage:
        assert isinstance(stage, EtcdStage)
        if stage.peers_way is None:
            pytest.skip(f"{stage.remarks}")
        *others, away = stage.cluster.members
        assert await to_thread.run_sync(stage.peers_way.cut_inside) is None
        try:
            await to_thread.run_sync(stage.cluster.wait_ready, *others)
            assert not await to_thread.run_sync(_reads, away)
        finally:
            assert await to_thread.run_sync(stage.peers_way.mend_inside) is None
        await to_thread.run_sync(stage.cluster.wait_ready)
        assert await to_thread.run_sync(_reads, away)
        assert {"majority stop", "majority freeze", "member cut off", "member cut off from the others"} <= set(
            faults_of(stage)
        )


async def test_a_stage_without_a_majority_comes_back(tmp_path: Path) -> None:
    if etcd_program() is None:
        pytest.skip("there is no etcd here")
    async with stage_of("etcd", tmp_path) as stage:
        async with open_backend(stage.endpoint, run_id="run") as backend:
            await backend.commit(Put("key", b"before"))
        await stage.faults["majority stop"](random.Random(1))
        async with open_backend(stage.endpoint, run_id="run") as backend:
            entry = await backend.get("key")
            assert entry is not None
            assert entry.value == b"before"


async def test_the_server_of_the_tcp_stage_wants_its_secret(tmp_path: Path) -> None:
    async with stage_of("tcp", tmp_path) as stage:
        assert all(SECRET in place.endpoint for place in stage.places)
        async with open_backend(stage.endpoint, run_id="run") as backend:
            assert (await backend.commit(Put("key", b"value"))).won
        with pytest.raises(ConnectionError, match="secret"):
            async with open_backend(stage.endpoint.replace(SECRET, "another"), run_id="run"):
                pass


async def test_a_redis_that_is_killed_or_stopped_has_everything_and_every_write_was_seen(tmp_path: Path) -> None:
    if redis_program() is None:
        pytest.skip("there is no Redis here")
    async with stage_of("cas", tmp_path) as stage:
        seen: dict[str, bytes | None] = {}
        async with open_backend(stage.endpoint, run_id="run") as backend:
            for number, fault in enumerate(("redis kill -9", "redis stop", "redis freeze")):
                await backend.commit(Put(fault, b"%d" % number))
                await stage.faults[fault](random.Random(1))
            assert [entry.value for entry in (await backend.list("")).entries] == [b"2", b"0", b"1"]
            epoch = (await backend.list("")).token.epoch
        for commit in stage.follower.poll():
            seen |= {entry.key.rpartition("/")[2]: entry.value for entry in commit.entries}
        assert seen == {"redis kill -9": b"0", "redis stop": b"1", "redis freeze": b"2"}
        assert stage.follower.epoch == epoch


HOST = """
import sys
import anyio
from rendezvous_async.backends import open_backend
async def main(endpoint):
    async with open_backend(endpoint, run_id="run") as backend:
        print("hosting" if backend.driver.is_hosting else "not", file=sys.stderr, flush=True)
        await anyio.sleep_forever()
anyio.run(main, sys.argv[1])
"""


async def test_whoever_hosts_is_found_and_another_takes_over(tmp_path: Path) -> None:
    async with stage_of("hosted", tmp_path) as stage:
        port = stage.hosted_port
        assert port is not None
        assert {"host kill -9", "host stop", "host freeze", "host fsync error"} <= set(faults_of(stage))
        first, second = Child("first", tmp_path), Child("second", tmp_path)
        assert not first.listens(port)
        try:
            with anyio.fail_after(30):
                await first.start("-c", HOST, stage.endpoint)
                while not first.errors:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
                await second.start("-c", HOST, stage.endpoint)
                while not second.errors:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
                assert (first.errors, second.errors) == ("hosting\n", "not\n")
                assert (first.listens(port), second.listens(port)) == (True, False)
                await first.kill()
                while not second.listens(port):  # noqa: ASYNC110
                    await anyio.sleep(0.02)
        finally:
            with anyio.CancelScope(shield=True):
                await first.kill()
                await second.kill()
