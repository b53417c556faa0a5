"""A program that goes through an outage ends with a clean event loop: no warning, no stray task, no word on stderr."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, gc, logging, sys
import anyio
from rendezvous_async.backends import open_backend, start_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.errors import RendezvousError
from rendezvous_async.testing.etcd import start_etcd

logging.getLogger("asyncio").setLevel(logging.ERROR)  # slow steps of a busy machine are no defect

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


def test_the_loop_closes_clean_after_an_outage() -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("clean\n", "", 0)


def test_only_the_first_etcd_endpoint_loads_grpc() -> None:
    code = "import sys, rendezvous_async.backends; print('grpc' in sys.modules, 'aetcd' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n"
