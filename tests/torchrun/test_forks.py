"""A process that uses async-etcd and makes children: forked and spawned ones take part, and it goes on."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from typing import Any

import pytest

from rendezvous_async.testing.etcd import EtcdCluster, etcd_program
from tests.blocking import PATIENCE

_PROGRAM = """
from tests.torchrun.test_forks import main
main({endpoint!r})
"""


def test_children_of_an_agent_on_etcd() -> None:
    if etcd_program() is None:
        pytest.skip("no etcd program")
    with EtcdCluster(1) as etcd:
        program = _PROGRAM.format(endpoint=etcd.endpoint)
        command = [sys.executable, "-W", "ignore", "-c", f"if __name__ == '__main__':\n{_indented(program)}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "parent: rank 0 of 1",
        "fork: rank 0 of 1",
        "fork: exit code 0",
        "spawn: rank 0 of 1",
        "spawn: exit code 0",
        "parent: 0 waiting, closed",
    ]


def _indented(program: str) -> str:
    return "\n".join(f"    {line}" for line in program.strip().splitlines())


def make(endpoint: str, run_id: str) -> Any:
    from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry

    params = RendezvousParameters("async-etcd", endpoint, run_id, 1, 1, "127.0.0.1", timeout=900)
    return rendezvous_handler_registry.create_handler(params)


def join(endpoint: str, how: str) -> None:
    """Be an agent of a run of its own, for a moment."""
    handler = make(endpoint, how)
    info = handler.next_rendezvous()
    print(f"{how}: rank {info.rank} of {info.world_size}", flush=True)
    handler.shutdown()


def main(endpoint: str) -> None:
    """Be an agent that makes children while it is in a round."""
    handler = make(endpoint, "parent")
    info = handler.next_rendezvous()
    print(f"parent: rank {info.rank} of {info.world_size}", flush=True)
    for how in ("fork", "spawn"):
        child: Any = multiprocessing.get_context(how).Process(target=join, args=(endpoint, how))  # type: ignore[attr-defined]
        child.start()
        child.join()
        print(f"{how}: exit code {child.exitcode}", flush=True)
    waiting = handler.num_nodes_waiting()
    handler.shutdown()
    print(f"parent: {waiting} waiting, {'closed' if handler.is_closed() else 'open'}", flush=True)
