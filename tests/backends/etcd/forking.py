"""A program that uses etcd and forks: ``python -m tests.backends.etcd.forking ENDPOINT HOW``; prints how children end.

HOW is ``async`` (forks in a running loop), ``sync`` (the loop runs in the background thread of the blocking facade) or
``garbage`` (forks when everything is closed and not yet collected).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable

import anyio

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.sync import RendezvousParameters, create_handler

CHILDREN = 12
HUNG = 20


def fork(what: str, work: Callable[[], None], *, orderly: bool = False) -> None:
    """Let a forked child do some work, and print its exit code; ``orderly`` means by way of the interpreter's exit."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(HUNG)
        try:
            work()
        except RendezvousConnectionError as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(3)
        if orderly:
            sys.exit(0)
        os._exit(0)
    print(what, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def rest() -> None:
    """Do what any program does: allocate, collect garbage, wait."""
    gc.collect()
    threading.Event().wait(0.1)


def apart(work: Callable[[], None]) -> None:
    """Do it in another thread, since this one has a running loop, and raise its error here."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


async def use(endpoint: str) -> None:
    """Do everything that needs a call or a stream."""
    async with open_backend(endpoint, run_id="child") as backend:
        session = await backend.open_session(60)
        await session.keep_alive()
        async with backend.watch("b") as watch:
            await anext(watch)
            await backend.commit(Put("b", b"1", session.id))
            assert [entry.value for entry in (await anext(watch)).entries] == [b"1"]
            await session.aclose()
            assert [entry.value for entry in (await anext(watch)).entries] == [None]


async def fork_in_loop(endpoint: str) -> None:
    async with open_backend(endpoint, run_id="parent") as backend:
        session = await backend.open_session(60)
        await session.keep_alive()
        async with backend.watch("a") as watch:
            await anext(watch)
            for _ in range(CHILDREN):
                fork("rest", rest)
            fork("new", lambda: apart(lambda: anyio.run(use, endpoint)))
            fork("old", lambda: apart(lambda: anyio.run(use_again, backend)))
            await session.keep_alive()
            await backend.commit(Put("a", b"1"))
            await anext(watch)
    print("parent 0", flush=True)


async def use_again(backend: Backend) -> None:
    await backend.aclose()
    await backend.get("a")


def fork_with_garbage(endpoint: str) -> None:
    """Use etcd again and again, and leave what was used to the garbage collectors of the children."""
    gc.disable()
    place = endpoint.removeprefix("etcd://")
    for number in range(CHILDREN):
        handler = create_handler(RendezvousParameters("async-etcd", place, f"garbage-{number}", 1, 1))
        handler.next_rendezvous()
        handler.shutdown()
        del handler
        fork("rest", rest)
    gc.enable()
    gc.collect()
    print("parent 0", flush=True)


def fork_beside_loop(endpoint: str) -> None:
    place = endpoint.removeprefix("etcd://")
    handler = create_handler(RendezvousParameters("async-etcd", place, "parent", 1, 1))
    handler.next_rendezvous()

    def join() -> None:
        create_handler(RendezvousParameters("async-etcd", place, "child", 1, 1)).next_rendezvous()

    for _ in range(CHILDREN):
        fork("rest", rest)
    fork("new", join)
    fork("exit", rest, orderly=True)
    handler.num_nodes_waiting()
    handler.shutdown()
    print("parent 0", flush=True)


if __name__ == "__main__":
    match sys.argv[2]:
        case "async":
            anyio.run(fork_in_loop, sys.argv[1])
        case "garbage":
            fork_with_garbage(sys.argv[1])
        case _:
            fork_beside_loop(sys.argv[1])
