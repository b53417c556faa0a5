"""Options come from the query or as keywords; what is wrong or unknown is a ValueError before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.testing.etcd import EtcdCluster


@pytest.mark.parametrize(
    ("endpoint", "options", "says"),
    [
        ("etcd://h", {"colour": "red"}, "no option 'colour'; it knows namespace, user, password, call_timeout"),
        ("etcd://h?colour=red", {}, "no option 'colour'"),
        ("etcd://h", {"call_timeout": 0}, "call_timeout must be a positive"),
        ("etcd://h?call_timeout=soon", {}, "call_timeout must be a number of seconds, not 'soon'"),
        ("etcd://h", {"connect_timeout": float("inf")}, "connect_timeout must be a positive, finite"),
        ("etcd://h?user=me", {}, "both user and password"),
        ("etcd://h", {"password": "x"}, "both user and password"),
        ("etcd://h", {"namespace": "/"}, "namespace must be a non-empty string"),
        ("etcd://h", {"namespace": "a//b"}, "single slashes"),
        ("etcd://h", {"ca": "/ca.pem"}, "certificates are for etcds://"),
        ("etcds://h", {"cert": "/cert.pem"}, "both cert and key"),
        ("etcds://h", {"ca": "/no/such/file"}, "ca='/no/such/file' cannot be read"),
    ],
)
async def test_wrong_options_are_refused(endpoint: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        async with open_backend(endpoint, run_id="run", **options):
            pass


async def test_the_namespace_is_the_prefix_of_all_keys(etcd: EtcdCluster) -> None:
    async with open_backend(f"{etcd.endpoint}?namespace=/team/a/", run_id="job 7") as backend:
        await backend.commit(Put("state", b"1"))
        assert backend.prefix == "/team/a/job%207/"
    found = etcd.members[0].ask("/v3/kv/range", {"key": "L3RlYW0vYS8=", "range_end": "L3RlYW0vYTA=", "keys_only": True})
    # Besides the run's key there is only the epoch: the markers of commits went with the backend.
    assert [pair["key"] for pair in found["kvs"]] == ["L3RlYW0vYS9AZXBvY2g=", "L3RlYW0vYS9qb2IlMjA3L3N0YXRl"]
    async with open_backend(etcd.endpoint, run_id="job 7") as backend:
        assert backend.prefix == "/rendezvous_async/job%207/"
        assert await backend.get("state") is None


async def test_proxies_of_the_environment_are_not_used(etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    async with open_backend(etcd.endpoint, run_id="run", connect_timeout=3) as backend:
        assert await backend.get("state") is None


async def test_a_relative_name_of_this_machine_will_do(etcd: EtcdCluster, tmp_path: Path) -> None:
    endpoint = f"etcd://localhost:{etcd.members[0].client_port},127.0.0.1:9"
    async with open_backend(endpoint, run_id="run") as backend:
        assert await backend.get("state") is None
        assert repr(backend) == f"<Backend run='run' on <EtcdDriver {endpoint}>>"
