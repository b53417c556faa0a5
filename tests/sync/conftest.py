"""What the tests of the blocking facade share: one etcd for a whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rendezvous_async.testing.etcd import EtcdCluster, etcd_program


@pytest.fixture(scope="session")
def etcd_endpoint() -> Iterator[str]:
    if etcd_program() is None:
        pytest.skip("no etcd program")
    with EtcdCluster(1) as etcd:
        yield etcd.endpoint
