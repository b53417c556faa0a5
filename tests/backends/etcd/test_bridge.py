"""A process that cannot use gRPC itself: its backends on etcd keep every promise by way of a helper process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.etcd import forks
from rendezvous_async.backends.etcd.driver import EtcdDriver
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.testing import BACKEND_CHECKS
from rendezvous_async.testing.conformance import Check
from rendezvous_async.testing.conformance.check import WatchReader
from rendezvous_async.testing.etcd import EtcdCluster
from tests.certificates import mutual_context, write_certificates

MOST_TELLING = {  # of the way; the rest is the same code against the same protocol
    "no_reader_sees_half_a_commit",
    "many_sessions_at_once",
    "watches_follow_many_writers",
    "calls_can_be_cancelled",
    "a_cancelled_commit_happened_or_not",
}


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a process that was forked from another one, which had used gRPC; ``test_forks.py`` has real ones."""
    monkeypatch.setattr(forks, "_user", os.getppid())


def helper_of(backend: Backend) -> int:
    assert isinstance(backend.driver, EtcdDriver)
    bridge = backend.driver._cluster._bridge
    assert bridge is not None
    assert bridge._helper is not None
    return bridge._helper.pid


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=() if check.__name__ in MOST_TELLING else pytest.mark.slow, id=check.__name__)
        for check in BACKEND_CHECKS
    ],
)
async def test_it_keeps_its_promises(check: Check, etcd: EtcdCluster) -> None:
    await check(lambda run_id: open_backend(etcd.endpoint, run_id=run_id))


async def test_a_helper_that_is_killed_is_replaced(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="killed") as backend:
        session = await backend.open_session(60)
        async with backend.watch("a", "b") as watch:
            reader = WatchReader(watch, "a", "b")
            await reader.read()
            before = helper_of(backend)
            os.kill(before, signal.SIGKILL)
            with anyio.fail_after(30):
                await backend.commit(Put("a", b"1", session.id))
                await session.keep_alive()
                await reader.until_value("a", b"1")
            assert helper_of(backend) != before


async def test_the_helper_ends_with_its_backend(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="ends") as backend:
        await backend.commit(Put("a", b"1"))
        helper = helper_of(backend)
    with pytest.raises(ProcessLookupError):
        os.kill(helper, 0)
    with pytest.raises(RendezvousConnectionError, match="closed"):
        await backend.commit(Put("a", b"2"))


async def test_certificates_are_used(tmp_path: Path) -> None:
    ca, cert, key = write_certificates(tmp_path)
    context = mutual_context(ca, cert, key)
    with EtcdCluster(ca=ca, cert=cert, key=key, client_auth=True, client_tls=context) as cluster:
        async with open_backend(cluster.endpoint, run_id="tls", ca=ca, cert=cert, key=key) as backend:
            assert (await backend.commit(Put("a", b"1"))).won
        with pytest.raises(RendezvousConnectionError, match="certificate"):
            async with open_backend(cluster.endpoint, run_id="tls", ca=ca, connect_timeout=5):
                pass
