"""Nodes for tests of the blocking facade: each call in a thread of its own, each wait with an end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import TypeVar

import pytest

from rendezvous_async.admin import let_newcomers_in, scale_run
from rendezvous_async.backends.base import Put
from rendezvous_async.core.spec import Spec
from rendezvous_async.core.state import NODES, STATE
from rendezvous_async.sync import (
    DynamicRendezvousHandler,
    RendezvousInfo,
    RendezvousSettings,
    RendezvousTimeout,
)
from rendezvous_async.sync.carrier import at_endpoint
from tests.proof.campaign.namespaces import Link, Links

__all__ = [
    "PATIENCE",
    "count_nodes",
    "damage",
    "in_thread",
    "join_all",
    "let_in",
    "linked",
    "make_handler",
    "scale",
    "serve_apart",
    "wait_until",
]

PATIENCE = float(os.environ.get("RENDEZVOUS_TEST_PATIENCE", "60"))
"""Seconds after which a test gives up; ``tests.proof.mutations`` has less."""

T = TypeVar("T")

_SERVER = """
import anyio, sys
from rendezvous_async.backends.tcp import serve

async def main():
    async with serve("127.0.0.1", 0) as server:
        print(server.endpoint, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(main)
"""


def make_handler(
    endpoint: str,
    nodes: tuple[int, int] = (2, 2),
    *,
    run_id: str = "run",
    join: float = PATIENCE,
    last_call: float = 0.1,
    name: str = "test",
) -> DynamicRendezvousHandler:
    """Make a handler that does not wait long."""
    seconds = [timedelta(seconds=value) for value in (join, last_call, 10, 5)]
    settings = RendezvousSettings(run_id, *nodes, RendezvousTimeout(*seconds))
    return DynamicRendezvousHandler(name, at_endpoint(endpoint), settings, local_addr="127.0.0.1")


def linked(number: int) -> Iterator[Link]:
    """Yield a link to another machine, as far as the network goes; for fixtures, whose numbers must differ."""
    links = Links(number)
    links.make(1)
    if links.why_not:
        pytest.skip(links.why_not)
    try:
        yield links.links[0]
    finally:
        links.remove()


def in_thread(function: Callable[..., T], *args: object) -> Future[T]:
    """Call a function in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="a node", daemon=True).start()
    return future


def join_all(*handlers: DynamicRendezvousHandler) -> list[RendezvousInfo]:
    """Let all join at once, and return what they got, in the same order."""
    joins = [in_thread(handler.next_rendezvous) for handler in handlers]
    return [join.result(PATIENCE) for join in joins]


def wait_until(met: Callable[[], bool]) -> None:
    """Wait until something that was pushed has come."""
    never = Event()
    for _ in range(int(PATIENCE / 0.005)):
        if met():
            return
        never.wait(0.005)
    raise AssertionError(f"it did not come within {PATIENCE:g} s")


def count_nodes(member: DynamicRendezvousHandler) -> int:
    """Count the nodes that are here, at the barrier or in the round, as a member finds them."""
    lease, place = member._open()
    _, backend = lease.call(place._open)
    return len(lease.call(backend.list, NODES).entries)


def damage(handler: DynamicRendezvousHandler) -> None:
    """Write what is not ours over the run's state."""
    lease, place = handler._open()
    _, backend = lease.call(place._open)
    lease.call(backend.commit, Put(STATE, b"not what we wrote"))


def scale(handler: DynamicRendezvousHandler, nodes: str | None = None, target: int | None = None) -> Spec:
    """Scale the handler's run."""
    lease, place = handler._open()
    _, backend = lease.call(place._open)
    return lease.call(scale_run, backend, nodes, target)


def let_in(handler: DynamicRendezvousHandler) -> None:
    """Let newcomers in who are held back."""
    lease, place = handler._open()
    _, backend = lease.call(place._open)
    lease.call(let_newcomers_in, backend)


@contextmanager
def serve_apart() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve tcp:// in a process of its own; returns its endpoint, and the process."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()
