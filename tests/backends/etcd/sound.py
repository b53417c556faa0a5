"""A cluster that is not blamed for what its etcd does by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from anyio import to_thread

from rendezvous_async.testing.etcd import EtcdCluster, start_etcd

__all__ = ["sound_cluster"]


@asynccontextmanager
async def sound_cluster() -> AsyncIterator[EtcdCluster]:
    """A cluster of three, and no verdict if etcd itself has lost its consistency.

    etcd 3.5.0 to 3.5.2 may lose a commit of a member that is killed under load (etcd issue 13766): its members then
    have applied the same log and hold different data, and no client can make up for that.
    """
    async with start_etcd(3) as cluster:
        try:
            yield cluster
        except Exception:
            if len(await to_thread.run_sync(hashes, cluster)) > 1:
                pytest.skip("the members of this etcd hold different data: etcd issue 13766, use 3.5.3 or newer")
            raise


def hashes(cluster: EtcdCluster) -> set[str]:
    """Return the different hashes of what the members hold, once all have applied the same log."""
    for member in cluster.members:
        member.thaw()
        if not member.running:
            member.start()
    cluster.wait_ready()
    for _ in range(100):
        states = [member.ask("/v3/maintenance/status") for member in cluster.members]
        if len({state["raftAppliedIndex"] for state in states}) == 1:
            return {member.ask("/v3/maintenance/hash")["hash"] for member in cluster.members}
    return set()
