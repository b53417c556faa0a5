"""Checks of reads and commits: conditions, atomicity, revisions, and visibility between two clients."""

from __future__ import annotations

from functools import partial

import anyio

from rendezvous_async.backends.base import Backend, Condition, Delete, Listing, Put, Token, Write
from rendezvous_async.testing.conformance.check import WAIT, Check, Trial, expect, expect_error, expect_same, increment


@Check
async def what_is_absent_reads_as_nothing(run: Trial) -> None:
    """get() of an absent key is None; list() without keys is an empty, complete listing."""
    async with run.client() as backend:
        expect_same(await backend.get("a"), None, "get() of no key")
        for name in ("", "a", "a/"):
            listing = await backend.list(name)
            expect_same((listing.entries, listing.complete), ((), True), f"list({name!r}) of an empty run")


@Check
async def a_put_is_read_back(run: Trial) -> None:
    """get() and list() return value, token and session of the last put, and other clients see the same at once."""
    async with run.client() as backend, run.client() as other:
        for value in (b"one", b"", bytes(range(256)), b"x" * 70_000):
            commit = await backend.commit(Put("a", value))
            expect_same((commit.won, commit.entries), (True, ()), "a commit without conditions")
            for reader in (backend, other):
                entry = await reader.get("a")
                assert entry is not None, "get() of a key that was put"
                expect_same((entry.key, entry.value, entry.session), ("a", value, None), "get()")
                expect_same(entry.token, commit.token, "the token of an entry and of the commit that put it")
                expect_same((await reader.list("a")).entries, (entry,), "list() of one key")


@Check
async def reads_see_every_acknowledged_commit(run: Trial) -> None:
    """A read that is sent after a commit was acknowledged sees it, whichever client asks."""
    async with run.client() as first, run.client() as second:
        for number in range(20):
            writer, reader = (first, second) if number % 2 else (second, first)
            value = b"%d" % number
            commit = await writer.commit(Put("a/b", value))
            entry = await reader.get("a/b")
            expect_same(entry and entry.value, value, "get() by the other client")
            listing = await reader.list("a/")
            expect_same([entry.value for entry in listing.entries], [value], "list() by the other client")
            expect(listing.revision >= commit.revision, f"list() is as of {listing.token}, before {commit.token}")
            check = await reader.commit(when=[Condition("a/b", commit.token)])
            expect(check.won, "a commit by the other client, on the token that was just acknowledged, lost")


@Check
async def revisions_grow(run: Trial) -> None:
    """Every commit with writes has a larger revision than all before it, the same for all its keys."""
    async with run.client() as first, run.client() as second:
        last = -1
        for number in range(10):
            backend = first if number % 2 else second
            commit = await backend.commit(Put("a", b""), Put("b/c", b""), Put(f"d{number}", b""))
            expect(commit.revision > last, f"revision {commit.revision} came after {last}")
            listing = await backend.list("")
            written = [entry.token for entry in listing.entries if entry.key in ("a", "b/c", f"d{number}")]
            expect_same(written, [commit.token] * 3, "the tokens of what one commit put")
            last = commit.revision
        deleted = await first.commit(Delete("a"))
        expect(deleted.revision > last, f"a deletion at revision {deleted.revision} came after {last}")
        back = await second.commit(Put("a", b""))
        expect(back.revision > deleted.revision, "a key that was put again does not have a newer revision")


@Check
async def create_if_absent(run: Trial) -> None:
    """A condition with token None holds only while there is no such key."""
    async with run.client() as backend:
        create = [Condition("a", None)]
        first = await backend.commit(Put("a", b"first"), when=create)
        expect(first.won, "creating an absent key lost")
        second = await backend.commit(Put("a", b"second"), when=create)
        expect(not second.won, "creating a key that exists won")
        entry = second.entry("a")
        assert entry is not None, "a lost commit returned no entry for the key in its way"
        expect_same((entry.value, entry.token), (b"first", first.token), "what a lost creation returns")
        expect_same((await backend.list("")).entries, (entry,), "the run after a lost creation")
        await backend.commit(Delete("a"))
        expect((await backend.commit(Put("a", b"third"), when=create)).won, "creating a deleted key lost")


@Check
async def only_the_current_token_wins(run: Trial) -> None:
    """A condition with a token holds only for the entry that has it: not for older, foreign or deleted ones."""
    async with run.client() as backend:
        old = (await backend.commit(Put("a", b"old"))).token
        current = (await backend.commit(Put("a", b"new"), when=[Condition("a", old)])).token
        foreign = [old, Token("another epoch", current.revision), Token(current.epoch, current.revision + 1_000_000)]
        for token in foreign:
            lost = await backend.commit(Put("a", b"wrong"), Delete("b"), when=[Condition("a", token)])
            expect(not lost.won, f"a commit on {token} won, where {current} is current")
            entry = lost.entry("a")
            expect_same(entry and (entry.value, entry.token), (b"new", current), "what a lost commit returns")
            expect(lost.revision >= current.revision, f"a commit lost as of {lost.token}, before {current}")
        same = await backend.commit(Put("a", b"new"), when=[Condition("a", current)])
        expect(same.won and same.token != current, "putting the same value again did not give a new token")
        absent = await backend.commit(Put("c", b"wrong"), when=[Condition("b", current)])
        expect_same((absent.won, absent.entries), (False, ()), "a commit on the token of a key that does not exist")
        await backend.commit(Delete("a"))
        gone = await backend.commit(Put("a", b"wrong"), when=[Condition("a", same.token)])
        expect_same((gone.won, gone.entries), (False, ()), "a commit on the token of a deleted key")
        expect_same((await backend.list("")).entries, (), "the run after commits that lost")


@Check
async def a_commit_is_all_or_nothing(run: Trial) -> None:
    """If one condition of many fails, no write happens, and the current entries of all conditions are returned."""
    async with run.client() as backend:
        setup = await backend.commit(Put("a", b"1"), Put("b", b"2"), Put("doomed/x", b"3"))
        before = (await backend.list("")).entries
        lost = await backend.commit(
            Put("a", b"wrong"),
            Put("new", b"wrong"),
            Delete("doomed/"),
            when=[Condition("a", setup.token), Condition("absent", None), Condition("b", None)],
        )
        expect(not lost.won, "a commit with a condition that fails won")
        expect_same({entry.key: entry.value for entry in lost.entries}, {"a": b"1", "b": b"2"}, "what it returned")
        expect_same((await backend.list("")).entries, before, "the run after a commit that lost")
        won = await backend.commit(
            Put("a", b"right"),
            Put("new", b"right"),
            Delete("doomed/"),
            when=[Condition("a", setup.token), Condition("absent", None), Condition("b", setup.token)],
        )
        expect_same((won.won, won.entries), (True, ()), "a commit whose conditions all hold")
        view = {entry.key: (entry.value, entry.token) for entry in (await backend.list("")).entries}
        expect_same(
            view, {"a": (b"right", won.token), "b": (b"2", setup.token), "new": (b"right", won.token)}, "after it"
        )


@Check
async def a_commit_without_writes_is_a_check(run: Trial) -> None:
    """A commit without writes returns whether its conditions hold now, and changes nothing."""
    async with run.client() as backend, run.client() as other:
        put = await other.commit(Put("a", b"1"))
        for conditions, wanted in (
            ([], True),
            ([Condition("a", put.token), Condition("b", None)], True),
            ([Condition("a", None)], False),
            ([Condition("a", put.token), Condition("b", put.token)], False),
        ):
            commit = await backend.commit(when=conditions)
            expect_same(commit.won, wanted, f"a commit without writes on {conditions}")
            expect(commit.revision >= put.revision, f"it is as of {commit.token}, before {put.token}")
        entries = (await backend.list("")).entries
        expect_same([(entry.key, entry.token) for entry in entries], [("a", put.token)], "the run after it")


@Check
async def deleting_nothing_is_allowed(run: Trial) -> None:
    """Delete of an absent key or subtree wins and changes nothing; overlapping deletes are fine."""
    async with run.client() as backend:
        expect((await backend.commit(Delete("a"), Delete("b/"))).won, "deleting nothing lost")
        await backend.commit(Put("a", b""), Put("b/c", b""), Put("b/d", b""), Put("e", b""))
        won = await backend.commit(Delete("a"), Delete("a"), Delete("b/"), Delete("b/c"), Delete("absent"))
        expect(won.won, "a commit of overlapping deletes lost")
        expect_same([entry.key for entry in (await backend.list("")).entries], ["e"], "what is left")


@Check
async def the_limits_are_what_they_say(run: Trial) -> None:
    """A commit of max_writes writes and conditions, or of max_bytes, works."""
    async with run.client() as backend:
        keys = [f"many/{number:06}" for number in range(backend.max_writes)]
        absent = [Condition(key, None) for key in keys]
        with anyio.fail_after(WAIT):
            won = await backend.commit(*(Put(key, b"1") for key in keys), when=absent)
            expect(won.won, "a commit of max_writes writes and conditions lost")
            lost = await backend.commit(*(Put(key, b"2") for key in keys), when=absent)
            expect(not lost.won, "the same commit won again")
            expect_same(sorted(entry.key for entry in lost.entries), keys, "the entries that it returned")
            expect_same([entry.key for entry in (await backend.list("many/")).entries], keys, "list()")
            expect((await backend.commit(*(Delete(key) for key in keys))).won, "max_writes deletes lost")
            expect_same((await backend.list("")).entries, (), "the run after max_writes deletes")
            value = b"x" * (backend.max_bytes - len(backend.prefix + "big"))
            commit = await backend.commit(Put("big", value))
            entry = await backend.get("big")
        expect(entry is not None and entry.value == value, "a value of max_bytes was not read back")
        with anyio.fail_after(WAIT):
            lost = await backend.commit(Put("big", b""), when=[Condition("big", None)])
        entry = lost.entry("big")
        expect(entry is not None and entry.value == value, "a commit that lost to a value of max_bytes misses it")
        expect_same(entry and entry.token, commit.token, "its token")


@Check
async def what_is_too_much_is_refused(run: Trial) -> None:
    """More than max_writes or max_bytes, or writing a key twice, is a ValueError, and nothing is written."""
    async with run.client() as backend:
        before = await backend.list("")
        many = [Put(f"many/{number}", b"") for number in range(backend.max_writes + 1)]
        conditions = [Condition(put.key, None) for put in many]
        big = b"x" * (backend.max_bytes // 2)
        await expect_error(ValueError, lambda: backend.commit(*many), "too many writes")
        await expect_error(ValueError, lambda: backend.commit(Put("a", b""), when=conditions), "too many conditions")
        await expect_error(ValueError, lambda: backend.commit(Put("a", big), Put("b", big + b"xx")), "too many bytes")
        twice: dict[str, tuple[Write, ...]] = {
            "two puts of a key": (Put("a", b"1"), Put("a", b"1")),
            "a put and a delete of a key": (Delete("a"), Put("a", b"1")),
            "a put under a deleted subtree": (Put("a/b/c", b"1"), Delete("a/")),
            "a put and a delete of the run": (Put("a", b"1"), Delete("")),
        }
        for what, writes in twice.items():
            await expect_error(ValueError, partial(backend.commit, *writes), what)
        expect_same((await backend.list("")).entries, before.entries, "the run after commits that were refused")


@Check
async def concurrent_increments_add_up(run: Trial) -> None:
    """Conditional commits are linearizable: increments by many tasks of two clients are neither lost nor doubled."""
    tasks, each = 5, 8
    async with run.client() as first, run.client() as second:

        async def work(backend: Backend) -> None:
            for _ in range(each):
                await increment(backend, "counter")

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                for backend in (first, second) * tasks:
                    group.start_soon(work, backend)
        entry = await first.get("counter")
        expect_same(entry and entry.value, b"%d" % (2 * tasks * each), "the counter")


@Check
async def no_reader_sees_half_a_commit(run: Trial) -> None:
    """While commits that put two keys run, every list() and every watch shows both keys of the same commit."""
    async with run.client() as writer, run.client() as reader:
        await writer.commit(Put("pair/x", b"0"), Put("pair/y", b"0"))

        def expect_pair(listing: Listing, view: dict[str, Token]) -> None:
            view.update((entry.key, entry.token) for entry in listing.entries)
            expect(view["pair/x"] == view["pair/y"], f"as of {listing.token}, half a commit: {view}")

        async def write() -> None:
            for number in range(1, 41):
                value = b"%d" % number
                await writer.commit(Put("pair/x", value), Put("pair/y", value))

        async def watch_subtree(*names: str) -> None:
            view: dict[str, Token] = {}
            async with reader.watch(*names) as watch:
                async for listing in watch:
                    expect_pair(listing, view)
                    if listing.entries[0].value == b"40":
                        return

        async def look() -> None:
            while True:
                listing = await reader.list("pair/")
                expect_pair(listing, {})
                if listing.entries[0].value == b"40":
                    return

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                group.start_soon(watch_subtree, "pair/")
                group.start_soon(watch_subtree, "pair/x", "pair/y")
                group.start_soon(look)
                group.start_soon(write)
