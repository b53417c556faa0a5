"""A process that used etcd ends by itself: gRPC has nothing left to shut down once the interpreter exits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rendezvous_async.testing.etcd import EtcdCluster

PROGRAM = """
import atexit, asyncio, gc, sys
from rendezvous_async.backends import start_backend
from rendezvous_async.settings import parse_endpoint


@atexit.register  # The first one registered is the last one called.
def show():
    kinds = [type(each).__name__ for each in gc.get_objects()]
    print(kinds.count("AioChannel"), "channels", exits.kept, "kept")


from rendezvous_async.backends.etcd import exits
exits.kept, init = 0, exits.init_grpc_aio


def count():
    exits.kept += 1
    init()


exits.init_grpc_aio = count
held = []


async def main(endpoint, ends):
    backend = await start_backend(parse_endpoint(endpoint), "exits")
    async with backend.watch("key") as watch:
        await anext(watch)
    if ends == "closed":
        await backend.aclose()
    else:
        held.append(backend)


gc.disable()  # What only garbage keeps alive must be freed at exit at the latest.
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("ends", "seen"), [("closed", "0 channels 0 kept\n"), ("abandoned", "1 channels 1 kept\n")], ids=str
)
def test_no_channel_is_freed_while_the_interpreter_exits(etcd: EtcdCluster, ends: str, seen: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, etcd.endpoint, ends]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, seen), done.stderr
