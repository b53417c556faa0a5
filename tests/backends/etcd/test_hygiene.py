"""A program that goes through an outage ends with a clean event loop: no warning, no stray task, no word on stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLS = """
import asyncio, gc, logging, sys
import anyio
from rendezvous_async.backends import open_backend, start_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.errors import RendezvousError
from rendezvous_async.testing.etcd import start_etcd

logging.getLogger("asyncio").setLevel(logging.ERROR)  # slow steps of a busy machine are no defect
logging.getLogger("rendezvous_async").setLevel(logging.ERROR)  # which version of etcd it is does not matter here

async def follow(backend, seen):
    async with backend.watch("a", "b/") as watch:
        async for listing in watch:
            seen.set()

async def main():
    async with start_etcd(2) as etcd:
        abandoned = await start_backend(etcd.endpoint, "run")
        async with (
            open_backend(etcd.endpoint, run_id="run", call_timeout=0.2, connect_timeout=0.3) as backend,
            anyio.create_task_group() as group,
        ):
            seen = anyio.Event()
            group.start_soon(follow, backend, seen)
            session = await backend.open_session(5)
            await backend.commit(Put("a", b"", session.id))
            await seen.wait()
            for member in etcd.members:
                member.kill()
            for call in (lambda: backend.get("a"), session.keep_alive, lambda: backend.commit(Put("a", b""))):
                try:
                    await call()
                except RendezvousError:
                    pass
                with anyio.move_on_after(0.05):
                    await call()
            group.cancel_scope.cancel()
        await abandoned.aclose()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others

asyncio.run(main(), debug=True)
gc.collect()
print("clean")
"""


NODES = """
import asyncio, gc, logging, sys
import anyio
import rendezvous_async as rdzv
from rendezvous_async.testing.etcd import start_etcd

logging.getLogger("asyncio").setLevel(logging.ERROR)  # slow steps of a busy machine are no defect
logging.getLogger("rendezvous_async").setLevel(logging.ERROR)  # that etcd does not answer is to be told
NODES, TTL = 3, 2

class Meeting:
    def __init__(self):
        self.count, self.all = 0, anyio.Event()
    def arrive(self):
        self.count += 1
        if self.count == NODES:
            self.all.set()

async def node(endpoint, first, out, second):
    async with rdzv.connect(
        endpoint, run_id="outage", nodes=NODES, keep_alive_interval=0.5, keep_alive_max_attempt=4,
        call_timeout=0.5, connect_timeout=1,
    ) as rendezvous:
        world = before = await rendezvous.join()
        first.arrive()
        while await world.changed() is not rdzv.Change.EVICTED:
            world = await rendezvous.join()
        out.arrive()
        world = await rendezvous.join()
        assert world.round > before.round, (world, before)
        second.arrive()
        while second.count < NODES and await world.changed():  # on a busy machine a session may be lost once more
            world = await rendezvous.join()

async def main():
    first, out, second = Meeting(), Meeting(), Meeting()
    async with start_etcd() as etcd:
        async with anyio.create_task_group() as group:
            for _ in range(NODES):
                group.start_soon(node, etcd.endpoint, first, out, second)
            with anyio.fail_after(60):
                await first.all.wait()
                etcd.members[0].kill()
                longer_than_the_ttl = anyio.current_time() + TTL + 1
                await out.all.wait()
                await anyio.sleep_until(longer_than_the_ttl)
                if sys.argv[1] == "wiped":
                    etcd.members[0].wipe()
                etcd.members[0].start()
                await second.all.wait()
            group.cancel_scope.cancel()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others

asyncio.run(main(), debug=True)
gc.collect()
print("clean")
"""


def expect_clean(program: str, *arguments: str) -> None:
    """Run a program in asyncio's debug mode with every warning an error, and see that it ends without a word."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("clean\n", "", 0)


def test_the_loop_closes_clean_after_calls_that_nobody_answered() -> None:
    expect_clean(CALLS)


@pytest.mark.parametrize(
    "data", ["kept", pytest.param("wiped", marks=pytest.mark.slow)], ids=["with its data", "without its data"]
)
def test_nodes_that_lose_etcd_for_longer_than_the_ttl_learn_it_and_meet_again(data: str) -> None:
    expect_clean(NODES, data)


def test_only_the_first_etcd_endpoint_loads_grpc() -> None:
    code = "import sys, rendezvous_async.backends; print('grpc' in sys.modules, 'aetcd' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n"
