"""Checks of cancellation: any call can be cancelled at any point, and the backend stays usable.

A cancelled write may or may not have happened; it has no other effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import OWN, Backend, Delete, Opened, Opening, Put
from rendezvous_async.testing.conformance.check import (
    TTL,
    WAIT,
    Check,
    Pushed,
    Trial,
    WatchReader,
    expect,
    expect_same,
    increment,
)

TURNS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 25, 50, 100, 200)
"""Turns of the event loop before the cancellation: from before the call is sent to after it is answered."""


async def give_up(call: Callable[[], Awaitable[object]], turns: int) -> bool:
    """Cancel ``call`` after a number of turns of the loop; return whether it had finished."""
    finished = False
    scope = anyio.CancelScope()

    async def attempt() -> None:
        nonlocal finished
        try:
            with scope:
                await call()
                finished = True
        except anyio.get_cancelled_exc_class():
            await checkpoint_if_cancelled()  # The whole check is being cancelled.
            raise AssertionError("a cancellation escaped from its own cancel scope") from None

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(attempt)
            for _ in range(turns):
                await checkpoint()
            scope.cancel()
    return finished


async def expect_usable(backend: Backend, other: Backend) -> None:
    """Use every kind of call once."""
    with anyio.fail_after(WAIT):
        session = await backend.open_session(20)
        commit = await backend.commit(Put("alive", b"1", session.id))
        expect(commit.won, "a commit lost")
        for reader in (backend, other):
            entry = await reader.get("alive")
            expect_same(entry and (entry.value, entry.token), (b"1", commit.token), "get()")
        async with backend.watch("alive") as watch:
            expect_same((await anext(watch)).entries, (await backend.list("alive")).entries, "watch and list")
        await session.keep_alive()
        await session.aclose()
        expect_same(await backend.get("alive"), None, "get() of a closed session's key")


@Check
async def calls_can_be_cancelled(run: Trial) -> None:
    """get, list, open_session, keep_alive, end_session and a first read can be cancelled at any point, without harm."""
    async with run.client() as backend, run.client() as other:
        session = await backend.open_session(20)
        await backend.commit(Put("bound", b"", session.id))

        async def read_first() -> None:
            async with backend.watch("") as watch:
                await anext(watch)

        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: backend.get("bound"),
            lambda: backend.list(""),
            lambda: backend.open_session(TTL),
            session.keep_alive,
            lambda: backend.end_session("no such session"),
            backend.get_state,
            read_first,
        ]
        for call in calls:
            for turns in TURNS:
                await give_up(call, turns)
        await session.keep_alive()
        for turns in TURNS:
            await give_up(session.aclose, turns)
        await session.aclose()
        expect_same((await backend.list("")).entries, (), "the run after the session was closed")
        await expect_usable(backend, other)


@Check
async def a_cancelled_commit_happened_or_not(run: Trial) -> None:
    """A commit that is cancelled has happened in full, or not at all, and at most once."""
    async with run.client() as backend, run.client() as other:
        finished = 0
        for turns in TURNS:
            finished += await give_up(lambda: increment(backend, "counter"), turns)
            value = b"%d" % turns
            await give_up(partial(backend.commit, Put("pair/x", value), Put("pair/y", value)), turns)
            pair = (await other.list("pair/")).entries
            expect(
                not pair or (len(pair) == 2 and pair[0].token == pair[1].token and pair[0].value == pair[1].value),
                f"half a commit has happened: {pair}",
            )
        await expect_usable(backend, other)
        await increment(backend, "counter")
        entry = await other.get("counter")
        assert entry is not None and entry.value is not None, "a counter is gone"
        number = int(entry.value)
        expect(finished + 1 <= number <= len(TURNS) + 1, f"{finished} of {len(TURNS)} increments and one: {number}")


@Check
async def a_session_that_is_given_up_leaves_nothing(run: Trial) -> None:
    """An open() that is cancelled at any point leaves no key behind once it would have been answered."""
    async with run.client() as backend, run.client() as other, other.watch("") as watch:
        reader = WatchReader(watch, "")
        for turns in TURNS:

            async def open_and_end() -> None:
                opening = Opening(2 * WAIT, (Put("bound", b"", OWN),))
                opened = await backend.open(opening, Deadline.after(WAIT, "open"))
                with anyio.CancelScope(shield=True):
                    await opened.session.aclose()

            await give_up(open_and_end, turns)
            await other.commit(Put("mark", b"%d" % turns))
            await reader.until("no key of a session", partial(dict.__eq__, {"mark": b"%d" % turns}))
        await expect_usable(backend, other)
        expect_same([entry.key for entry in (await other.list("")).entries], ["mark"], "the keys that are left")


@Check
async def a_session_that_is_given_up_takes_its_watch_along(run: Trial) -> None:
    """The watch of an open() that is cancelled at any point pushes no more; that of the next open() misses nothing."""
    async with run.client() as backend, run.client() as other:
        for turns in TURNS:
            value = b"%d" % turns
            await other.commit(Put("a/old", value))
            opened: list[Opened] = []

            async def open_with(sink: Pushed, opened: list[Opened] = opened) -> None:
                opening = Opening(2 * WAIT, names=("a/",), sink=sink)
                opened.append(await backend.open(opening, Deadline.after(WAIT, "open")))

            given_up, kept = Pushed(), Pushed()
            finished = await give_up(partial(open_with, given_up), turns)
            expect_same(finished, bool(opened), "whether a session was opened")
            pushed = len(given_up)
            await open_with(kept)
            reader = WatchReader(kept, "a/")
            await reader.until_value("a/old", value)
            await other.commit(Put("a/new", value))
            await reader.until_value("a/new", value)
            expect(finished or len(given_up) == pushed, "a watch that was given up pushes on")
            for each in opened:
                assert each.following is not None, "a session was opened without its watch"
                each.following.close()
                await each.session.aclose()
        await expect_usable(backend, other)


@Check
async def a_cancelled_read_loses_nothing(run: Trial) -> None:
    """A read of a watch that is cancelled while changes arrive leaves them for the next read."""
    async with run.client() as backend, run.client() as other, backend.watch("a/") as watch:
        reader = WatchReader(watch, "a/")
        await reader.read()
        with anyio.move_on_after(0.02) as scope:
            await reader.read()
        expect(scope.cancelled_caught, "a read with nothing to read was not cancelled by move_on_after")
        for number, turns in enumerate(TURNS):

            async def change(number: int = number) -> None:
                await other.commit(Put(f"a/{number}", b""), *([Delete(f"a/{number - 1}")] if number else []))

            async with anyio.create_task_group() as group:
                group.start_soon(change)
                await give_up(reader.read, turns)
            await reader.until("the change", partial(dict.__eq__, {f"a/{number}": b""}))
        await expect_usable(backend, other)


@Check
async def a_cancelled_task_group_leaves_the_backend_usable(run: Trial) -> None:
    """When many tasks are cancelled in the middle of their calls, the backend still serves others."""
    async with run.client() as backend, run.client() as other:

        async def work() -> None:
            while True:
                session = await backend.open_session(TTL)
                await increment(backend, "counter")
                async with backend.watch("counter") as watch:
                    await anext(watch)
                await session.aclose()

        for _ in range(3):
            with anyio.fail_after(WAIT):
                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(work)
                    async with other.watch("counter") as watch:
                        reader = WatchReader(watch, "counter")
                        await reader.read()
                        await reader.read("an increment")
                    group.cancel_scope.cancel()
            await expect_usable(backend, other)
