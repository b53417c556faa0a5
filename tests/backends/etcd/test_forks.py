"""A forked child of a process that used etcd neither crashes nor hangs, and can use etcd by a helper process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rendezvous_async.testing.etcd import EtcdCluster
from tests.backends.etcd.forking import CHILDREN


@pytest.mark.parametrize(
    ("how", "refused", "others"), [("async", ("old",), ("new",)), ("sync", (), ("new", "exit")), ("garbage", (), ())]
)
def test_a_forked_child(etcd: EtcdCluster, how: str, refused: tuple[str, ...], others: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-m", "tests.backends.etcd.forking", etcd.endpoint, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    ends = done.stdout.splitlines()
    assert ends == [
        *["rest 0"] * CHILDREN,
        *(f"{what} 0" for what in others),
        *(f"{what} 3" for what in refused),
        "parent 0",
    ]
    assert done.stderr.count("forked from it: open a new one in the child") == len(refused)
