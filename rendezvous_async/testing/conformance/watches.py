"""Checks of watches: a complete listing first, then the newest of every change, without gaps."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
from anyio.lowlevel import checkpoint

from rendezvous_async.backends.base import Backend, Delete, Entry, Put, Token, Watch
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.testing.conformance.check import (
    WAIT,
    Check,
    Trial,
    WatchReader,
    expect,
    expect_error,
    expect_same,
)


@Check
async def a_watch_begins_with_what_is_there(run: Trial) -> None:
    """Without `after`, the first listing is complete, even if empty; the next ones are changes."""
    async with run.client() as backend, run.client() as other:
        async with backend.watch("a", "b/") as watch:
            reader = WatchReader(watch, "a", "b/")
            first = await reader.read("a first listing, though there is nothing")
            expect_same((first.entries, first.complete), ((), True), "the first listing of nothing")
            put = await other.commit(Put("a", b"1"), Put("b/c", b"2"), Put("c", b"3"))
            second = await reader.read("two keys that were put")
            expect_same(reader.view, {"a": b"1", "b/c": b"2"}, "the view after a put")
            expect_same(second.complete, False, "whether a listing of changes is complete")
            expect(second.revision >= put.revision, f"the listing is as of {second.token}, its entries of {put.token}")
        async with backend.watch("a", "b/") as watch:
            listing = await WatchReader(watch, "a", "b/").read()
            expect_same(listing.complete, True, "whether a first listing is complete")
            expect_same(
                listing.entries, (Entry("a", b"1", put.token), Entry("b/c", b"2", put.token)), "the entries of a watch"
            )


@Check
async def a_watch_shows_changes_and_deletions(run: Trial) -> None:
    """Puts are shown with value, token and session, deletions with value None and the token of the deletion."""
    async with run.client() as backend, run.client() as other, backend.watch("a", "b/") as watch:
        reader = WatchReader(watch, "a", "b/")
        await reader.read()
        for number in range(5):
            put = await other.commit(Put("a", b"%d" % number), Put("b/c", b""), Put("b/d", b""))
            await reader.until_value("a", b"%d" % number)
            expect_same(sorted(reader.view), ["a", "b/c", "b/d"], "the keys of one commit, shown together")
            shown = {entry.key: entry.token for listing in reader.listings for entry in listing.entries}
            expect_same(shown["a"], put.token, "the token of a change")
            deleted = await (other if number % 2 else backend).commit(Delete("a"), Delete("b/"))
            await reader.until("deletions", lambda view: not view)
            gone = [entry for entry in reader.listings[-1].entries if entry.value is None]
            expect(
                bool(gone)
                and all(put.revision < entry.token.revision <= reader.listings[-1].revision for entry in gone),
                f"deletions at {deleted.token}, after {put.token}, are shown as {gone}",
            )


@Check
async def after_resumes_without_a_gap(run: Trial) -> None:
    """With `after`, a watch delivers all that has changed since that token, deletions included, and nothing older."""
    async with run.client() as backend, run.client() as other:
        await backend.commit(Put("old", b""), Put("doomed", b""), Put("changed", b"1"))
        position = (await backend.list("")).token
        await other.commit(Put("changed", b"2"), Delete("doomed"))
        await other.commit(Put("new", b""))
        async with backend.watch("", after=position) as watch:
            reader = WatchReader(watch, "")
            await reader.until("changes since a listing", lambda view: "new" in view)
            expect(not reader.listings[0].complete, "the first listing of a watch that resumes is marked complete")
            shown = {entry.key: entry.value for listing in reader.listings for entry in listing.entries}
            expect_same(shown, {"changed": b"2", "doomed": None, "new": b""}, "what a watch that resumes delivers")
        position = reader.listings[-1].token
        for number in range(10):
            value = b"%d" % number
            await other.commit(Put(f"key{number % 3}", value), Put("last", value))
            async with backend.watch("key0", "key1", "key2", "last", after=position) as watch:
                reader = WatchReader(watch, "key0", "key1", "key2", "last")
                await reader.until_value("last", value)
                expect_same(reader.view, {f"key{number % 3}": value, "last": value}, "what it delivers")
                position = reader.listings[-1].token


@Check
async def after_the_token_of_a_commit(run: Trial) -> None:
    """A watch `after` a commit's token does not repeat that commit, and waits for the next."""
    async with run.client() as backend:
        commit = await backend.commit(Put("a", b"1"))
        async with backend.watch("a", after=commit.token) as watch:
            reader = WatchReader(watch, "a")
            async with anyio.create_task_group() as group:
                group.start_soon(reader.read, "the change after a commit")
                await checkpoint()
                await backend.commit(Put("b", b"unrelated"))
                await backend.commit(Put("a", b"2"))
            expect_same([entry.value for entry in reader.listings[0].entries], [b"2"], "what comes after a commit")


@Check
async def after_an_unknown_token(run: Trial) -> None:
    """With `after` of another epoch, the first listing is complete."""
    async with run.client() as backend:
        commit = await backend.commit(Put("a", b"1"))
        async with backend.watch("a", "b", after=Token("another epoch", commit.revision + 1000)) as watch:
            reader = WatchReader(watch, "a", "b")
            first = await reader.read("a complete listing")
            expect_same((first.complete, reader.view), (True, {"a": b"1"}), "the first listing")
            await backend.commit(Put("b", b"2"))
            await reader.until("a change", lambda view: "b" in view)


@Check
async def a_slow_reader_gets_the_newest(run: Trial) -> None:
    """A slow reader gets the newest values, not a queue, and still sees deletions."""
    async with (
        run.client() as backend,
        run.client() as other,
        backend.watch("a/") as slow,
        backend.watch("a/") as control,
    ):
        late, prompt = WatchReader(slow, "a/"), WatchReader(control, "a/")
        await late.read()
        await other.commit(Put("a/doomed", b""))
        await late.until("a key", lambda view: "a/doomed" in view)
        read_before = len(late.listings)
        with anyio.fail_after(WAIT):
            for number in range(150):
                await other.commit(Put("a/x", b"%d" % number), Put(f"a/flicker{number % 2}", b"x" * 100))
            await other.commit(Delete("a/doomed"), Delete("a/flicker0"), Delete("a/flicker1"))
        await prompt.until("the last value", lambda view: view == {"a/x": b"149"})
        await late.until("the last value", lambda view: view == {"a/x": b"149"})
        read = len(late.listings) - read_before
        expect(read <= 15, f"151 commits reached a slow reader as {read} listings: a queue")


@Check
async def a_watch_of_many_keys(run: Trial) -> None:
    """A subtree of many keys, and large values, are listed and watched in full."""
    async with run.client() as backend, run.client() as other, other.watch("many/") as early:
        reader = WatchReader(early, "many/")
        await reader.read()
        values = {f"many/{number:04}": b"v%d" % number for number in range(600)}
        values |= {f"many/large{number}": b"x" * 100_000 for number in range(5)}
        items = list(values.items())
        step = min(100, backend.max_writes)
        with anyio.fail_after(WAIT):
            for start in range(0, len(items), step):
                await backend.commit(*(Put(key, value) for key, value in items[start : start + step]))
        view = await reader.until("all keys of a large subtree", lambda view: len(view) == len(values))
        expect(view == values, "a watch shows other values than were put")
        async with other.watch("many/") as late:
            first = await WatchReader(late, "many/").read()
            shown = {entry.key: entry.value for entry in first.entries}
            expect(first.complete and shown == values, f"a first listing has {len(shown)} of {len(values)} keys")
        await backend.commit(Delete("many/"))
        await reader.until("the deletion of a large subtree", lambda view: not view)


@Check
async def several_watches_at_once(run: Trial) -> None:
    """Watches of the same and of other names on one client each get all their changes, even when some end."""
    names = [("a/",), ("a/", "c"), ("a/1",), ("a/1", "b"), ("",), ("a/", "a/1")]
    async with run.client() as backend, run.client() as other:
        passing = backend.watch("a/")
        await anext(passing)
        behind, all_there = set(names), anyio.Event()

        async def follow(*watched: str) -> None:
            async with backend.watch(*watched) as watch:
                reader = WatchReader(watch, *watched)
                await reader.until_value("a/1", b"9")
                behind.discard(watched)
                if not behind:
                    all_there.set()
                await reader.until("the deletion of a key", lambda view: "a/1" not in view)

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                for watched in names:
                    group.start_soon(follow, *watched)
                for number in range(10):
                    await other.commit(Put("a/1", b"%d" % number), Put("a/2", b""), Put("b", b""))
                    if number == 5:
                        await passing.aclose()
                await all_there.wait()
                await other.commit(Delete("a/1"))


@Check
async def closing_a_watch_ends_it(run: Trial) -> None:
    """aclose() ends a pending read and every later one with StopAsyncIteration; it may be called twice."""
    async with run.client() as backend:
        watch = backend.watch("a")
        await anext(watch)
        ended = anyio.Event()

        async def follow() -> None:
            async for listing in watch:
                raise AssertionError(f"a watch of nothing delivered {listing}")
            ended.set()

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                for _ in range(10):
                    await checkpoint()
                await watch.aclose()
                await ended.wait()
        await expect_error(StopAsyncIteration, lambda: read(watch), "a read of a closed watch")
        await watch.aclose()
        unread = backend.watch("a")
        await unread.aclose()
        await expect_error(StopAsyncIteration, lambda: read(unread), "a read of a watch that was closed before")
        await backend.commit(Put("a", b""))


async def read(watch: Watch) -> object:
    return await watch.__anext__()


@Check
async def a_closed_backend_says_so(run: Trial) -> None:
    """aclose() makes pending reads and later calls raise RendezvousConnectionError; it may be called twice."""
    async with run.client() as other, run.client() as backend:
        session = await backend.open_session(20)
        await backend.commit(Put("a", b"1"))
        watch, unread = backend.watch("a"), backend.watch("a")
        await anext(watch)
        failed = anyio.Event()

        async def follow() -> None:
            await expect_error(RendezvousConnectionError, lambda: read(watch), "a pending read of a closed backend")
            failed.set()

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                for _ in range(10):
                    await checkpoint()
                await backend.aclose()
                await failed.wait()

        async def watch_again() -> object:
            return await read(backend.watch("a"))

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get": lambda: backend.get("a"),
            "list": lambda: backend.list(""),
            "commit": lambda: backend.commit(Put("b", b"")),
            "an empty commit": lambda: backend.commit(),
            "open_session": lambda: backend.open_session(20),
            "end_session": lambda: backend.end_session(session.id),
            "keep_alive": session.keep_alive,
            "get_state": backend.get_state,
            "set_state": lambda: backend.set_state(b""),
            "a new watch": watch_again,
            "an old watch": lambda: read(unread),
            "the watch that failed": lambda: read(watch),
        }
        for what, call in calls.items():
            await expect_error(RendezvousConnectionError, call, f"{what} on a closed backend")
        expect(not session.lost.is_set(), "closing the backend marked a session as ended by the backend")
        await watch.aclose()
        await backend.aclose()
        expect_same((await other.list("b")).entries, (), "what a closed backend wrote")
        await other.end_session(session.id)


@Check
async def a_watch_says_how_current_it_is(run: Trial) -> None:
    """current_at is a time on this process's clock that is not in the future and never decreases."""
    async with run.client() as backend, backend.watch("a") as watch:
        reader, last = WatchReader(watch, "a"), -math.inf
        for number in range(5):
            await backend.commit(Put("a", b"%d" % number))
            await reader.until_value("a", b"%d" % number)
            current_at = watch.current_at
            expect(last <= current_at <= anyio.current_time(), f"current_at went from {last} to {current_at}")
            last = current_at


@Check
async def watches_follow_many_writers(run: Trial) -> None:
    """While many tasks of two clients put and delete, every watch ends up with exactly what a read shows."""
    async with run.client() as first, run.client() as second:

        async def write(backend: Backend, number: int) -> None:
            for step in range(8):
                key = f"a/{(number + step) % 5}"
                await backend.commit(Delete(key) if step % 3 == 2 else Put(key, b"%d.%d" % (number, step)))

        async def follow(backend: Backend, views: list[dict[str, bytes]]) -> None:
            async with backend.watch("a/", "done") as watch:
                views.append(
                    await WatchReader(watch, "a/", "done").until("the last commit", lambda view: "done" in view)
                )

        views: list[dict[str, bytes]] = []
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as followers:
                followers.start_soon(follow, first, views)
                followers.start_soon(follow, second, views)
                async with anyio.create_task_group() as writers:
                    for number in range(4):
                        writers.start_soon(write, (first, second)[number % 2], number)
                await first.commit(Put("done", b""))
        wanted = {entry.key: entry.value for entry in (await second.list("")).entries}
        expect_same(views, [wanted, wanted], "what two watches have seen")
