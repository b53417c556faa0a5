"""A process of the file backend's tests: ``python -m tests.backends.file.worker <role> <json arguments>``.

It says what happens on its standard output, one JSON value a line, and reads what to do next from its standard input.
Times are of the monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio

from rendezvous_async import Timeouts, connect
from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Condition, Put, Session
from rendezvous_async.backends.file.directory import Directory, open_file
from rendezvous_async.backends.file.lock import FileLock
from rendezvous_async.errors import RendezvousError, RendezvousSessionError
from rendezvous_async.testing.conformance import BACKEND_CHECKS


def say(*what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


async def hear() -> str:
    line: str = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return line.strip()


async def kit(path: str, first: int) -> None:
    """Put the directory to the conformance kit, from another check on than others do who are at it at the same time."""

    def make(run_id: str) -> AbstractAsyncContextManager[Backend]:
        return open_backend(f"file://{path}", run_id=f"{run_id} {os.getpid()}")

    first %= len(BACKEND_CHECKS)
    for check in BACKEND_CHECKS[first:] + BACKEND_CHECKS[:first]:
        await check(make)
    say("passed")


async def increment(path: str, name: str, commits: int, options: dict[str, Any]) -> None:
    """Add to one counter by compare and set; say each attempt, with when it began and ended."""
    async with open_backend(f"file://{path}", run_id="hammer", **options) as backend:
        session = await backend.open_session(20)
        await backend.commit(Put(f"here/{name}", b"", session.id))
        say("ready", session.id)
        await hear()
        won = 0
        async with backend.watch("counter", "here/") as watch, anyio.create_task_group() as group:
            group.start_soon(follow, watch)
            while won < commits:
                began = time.monotonic()
                entry = await backend.get("counter")
                say("read", began, time.monotonic(), None if entry is None else entry.token.revision)
                value = int(entry.value or b"0") if entry is not None else 0
                began = time.monotonic()
                commit = await backend.commit(
                    Put("counter", b"%d" % (value + 1)),
                    Put(f"mine/{name}", b"%d" % won),
                    when=[Condition("counter", entry.token if entry is not None else None)],
                )
                if commit.won:
                    won += 1
                    based_on = entry.token.revision if entry is not None else None
                    say("won", began, time.monotonic(), commit.revision, based_on, value + 1)
                elif won % 8 == 0:
                    await session.keep_alive()
            say("done")
            await hear()
            group.cancel_scope.cancel()
        await session.aclose()


async def follow(watch: Any) -> None:
    async for listing in watch:
        for entry in listing.entries:
            if entry.key == "counter":
                say("saw", entry.token.revision, int(entry.value))


async def commit(path: str, name: str, options: dict[str, Any]) -> None:
    """Commit until killed, several at a time; say each once it is acknowledged."""
    async with open_backend(f"file://{path}", run_id="killed", **options) as backend:
        session = await backend.open_session(60)
        await backend.commit(Put(f"here/{name}", b"", session.id))
        say("ready", session.id)

        async def loop(lane: int) -> None:
            number = 0
            while True:
                key = f"done/{name}/{lane}/{number % 20}"
                done = await backend.commit(Put(key, os.urandom(20) * 20))
                say("acknowledged", key, done.revision)
                number += 1

        async with anyio.create_task_group() as group:
            for lane in range(3):
                group.start_soon(loop, lane)


async def live(path: str, ttl: float, ahead: float, options: dict[str, Any]) -> None:
    """Keep a session alive, with a wall clock of its own, until told to fall silent; then say when it is lost."""
    if ahead:
        real, real_ns = time.time, time.time_ns  # noqa: TID251
        time.time = lambda: real() + ahead  # noqa: TID251
        time.time_ns = lambda: real_ns() + int(ahead * 1e9)
    async with open_backend(f"file://{path}", run_id="live", **options) as backend:
        session = await backend.open_session(ttl)
        await backend.commit(Put(f"node/{ahead:g}", b"", session.id))
        say("ready", session.id)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(keep_alive, session, path, ahead)
                await hear()
                scope.cancel()
        say("silent")
        await session.lost.wait()
        say("lost", time.monotonic())
        try:
            await session.keep_alive()
        except RendezvousSessionError:
            say("ended")


async def keep_alive(session: Session, path: str, ahead: float) -> None:
    while True:
        try:
            await session.keep_alive()
        except RendezvousError as error:
            say("refused", type(error).__name__)
            return
        if ahead:
            for file in (f"sessions/{session.id}", "log", "lock"):
                real = time.time()  # noqa: TID251
                os.utime(os.path.join(path, file), (real, real))
        await anyio.sleep(session.ttl / 5)


async def hold_lock(path: str) -> None:
    """Take the directory's lock and keep it until told."""
    directory = Directory.open(path)
    lock = FileLock(open_file("lock", directory.fd, directory.mode))
    lock.acquire(wait=True)
    say("held")
    await hear()
    lock.release()
    say("released")
    await hear()


async def put_until_full(path: str, limit: int) -> None:
    """Commit while the system lets no file grow past ``limit``, then after it does again."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with open_backend(f"file://{path}", run_id="full") as backend:
        watch = backend.watch("")
        await watch.__anext__()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        kept, error = await fill(backend)
        say("full", kept, type(error).__name__, str(error))
        assert len((await backend.list("data/")).entries) == kept
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await backend.commit(Put("after", b""))
        shown = await watch.__anext__()
        while shown.entries[-1].key != "data/" and all(entry.key != "after" for entry in shown.entries):
            shown = await watch.__anext__()
        say("goes on", len((await backend.list("data/")).entries))


async def fill(backend: Backend) -> tuple[int, RendezvousError]:
    kept = 0
    while True:
        try:
            await backend.commit(Put(f"data/{kept:06}", b"x" * 1000))
        except RendezvousError as error:
            return kept, error
        kept += 1


async def join(path: str, size: int, options: dict[str, Any]) -> None:
    """Form a world with others; say the rank, and go when told."""
    timeouts = Timeouts(join=100, last_call=100)
    async with connect(f"file://{path}", run_id="world", nodes=size, timeouts=timeouts, **options) as rendezvous:
        say("ready")
        await hear()
        began = time.monotonic()
        world = await rendezvous.join()
        say("joined", began, time.monotonic(), world.round, world.rank, world.size, str(world.token))
        await hear()
        await rendezvous.leave()


ROLES: dict[str, Callable[..., Awaitable[None]]] = {
    role.__name__: role for role in (kit, increment, commit, live, hold_lock, put_until_full, join)
}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](**json.loads(sys.argv[2])))  # type: ignore[arg-type]
