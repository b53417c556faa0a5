"""The conformance kit, against a single member and a cluster of three."""

from __future__ import annotations

import pytest

from rendezvous_async.backends import open_backend
from rendezvous_async.testing import BACKEND_CHECKS
from rendezvous_async.testing.conformance import Check
from rendezvous_async.testing.etcd import EtcdCluster

MOST_TELLING = {  # of the cluster; the rest is the same code against the same protocol
    "concurrent_increments_add_up",
    "no_reader_sees_half_a_commit",
    "the_limits_are_what_they_say",
    "a_key_belongs_to_the_session_of_its_last_put",
    "many_sessions_at_once",
    "a_watch_shows_changes_and_deletions",
    "watches_follow_many_writers",
    "calls_can_be_cancelled",
    "a_cancelled_commit_happened_or_not",
}


async def put_to(check: Check, cluster: EtcdCluster) -> None:
    await check(lambda run_id: open_backend(cluster.endpoint, run_id=run_id))


@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.__name__)
async def test_a_single_member_keeps_its_promises(check: Check, etcd: EtcdCluster) -> None:
    await put_to(check, etcd)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=() if check.__name__ in MOST_TELLING else pytest.mark.slow, id=check.__name__)
        for check in BACKEND_CHECKS
    ],
)
async def test_a_cluster_keeps_its_promises(check: Check, etcd3: EtcdCluster) -> None:
    await put_to(check, etcd3)
