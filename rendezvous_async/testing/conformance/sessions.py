"""Checks of sessions: the keys bound to one, its expiry, and what its owner knows."""

from __future__ import annotations

from functools import partial

import anyio

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import OUT_AFTER, OWN, Backend, Condition, Delete, Opening, Put, Session, news_of
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.testing.conformance.check import (
    TTL,
    WAIT,
    Check,
    Pushed,
    Trial,
    WatchReader,
    expect,
    expect_error,
    expect_same,
    keeping,
)

ABSENT = Condition("nobody", None)


async def expect_ended(backend: Backend, session: Session) -> None:
    """Check everything that must hold for a session that has ended."""
    await expect_error(RendezvousSessionError, session.keep_alive, "keep_alive() of a session that has ended")
    expect(session.lost.is_set(), "keep_alive() was refused and `lost` is not set")
    before = await backend.list("")
    await expect_error(
        RendezvousSessionError,
        lambda: backend.commit(Put("late", b""), Put("other", b"", session.id), Delete("kept")),
        "a put under a session that has ended",
    )
    expect_same((await backend.list("")).entries, before.entries, "the run after a put that was refused")


async def keys(backend: Backend) -> list[str]:
    return [entry.key for entry in (await backend.list("")).entries]


@Check
async def an_entry_names_its_session(run: Trial) -> None:
    """Sessions have different ids; an entry tells, in reads, lost commits and watches, under which it was put."""
    async with run.client() as backend, run.client() as other:
        first, second = await backend.open_session(20), await other.open_session(20)
        expect(first.id != second.id, f"two sessions have the same id {first.id}")
        expect(min(first.ttl, second.ttl) >= 20, f"asked for 20 s, granted less: {first} {second}")
        wanted = {"a": first.id, "b": second.id, "c": None}
        await backend.commit(*(Put(key, b"", session) for key, session in wanted.items()))
        lost = await other.commit(when=[Condition(key, None) for key in wanted])
        async with other.watch("") as watch:
            shown = await WatchReader(watch, "").read()
        for entries in ((await other.list("")).entries, lost.entries, shown.entries):
            expect_same({entry.key: entry.session for entry in entries}, wanted, "the sessions of entries")
        entry = await backend.get("b")
        expect_same(entry and entry.session, second.id, "the session of an entry")
        await first.aclose()
        await second.aclose()


@Check
async def a_closed_session_takes_its_keys_along(run: Trial) -> None:
    """When its owner ends a session, exactly its keys are deleted at once; ending it twice is allowed."""
    async with run.client() as backend, run.client() as other, other.watch("") as watch:
        reader = WatchReader(watch, "")
        session, bystander = await backend.open_session(20), await backend.open_session(20)
        await backend.commit(Put("bound/a", b"", session.id), Put("bound/b", b"", session.id), Put("kept", b""))
        await backend.commit(Put("bystander", b"", bystander.id))
        await reader.until("four keys", lambda view: len(view) == 4)
        await session.aclose()
        expect_same(await keys(backend), ["bystander", "kept"], "the run after a session was closed")
        expect_same(await keys(other), ["bystander", "kept"], "the run as another client sees it")
        await reader.until("the deletion of a closed session's keys", lambda view: len(view) == 2)
        await expect_ended(other, session)
        await session.aclose()
        await backend.end_session(session.id)
        await bystander.aclose()
        expect_same(await keys(backend), ["kept"], "the run after both sessions were closed")


@Check
async def a_session_begins_with_its_first_commit(run: Trial) -> None:
    """open() opens a session and commits under it in one step, or opens it and says that it has not committed."""
    async with run.client() as backend, run.client() as other:
        await other.commit(Put("taken", b"1"))
        deadline = Deadline.after(WAIT, "open")
        first = Opening(20, (Put("a", b"1", OWN), Put("b", b"2")), (ABSENT,))
        session, commit, _ = await backend.open(first, deadline)
        second = Opening(20, (Put("c", b"", OWN),), (ABSENT, Condition("taken", None)))
        late, refused, _ = await backend.open(second, deadline)
        expect(session.id != late.id, f"two sessions have the same id {session.id}")
        if commit is None or refused is None:
            expect(commit is None and refused is None, "open() commits only now and then")
            expect_same(await keys(other), ["taken"], "the run after commits that were not made")
        else:
            expect(commit.won, f"the first commit of a session lost: {commit}")
            entries = (await other.list("")).entries
            expect_same([entry.key for entry in entries], ["a", "b", "taken"], "the run after the first commit")
            expect_same([entry.session for entry in entries], [session.id, None, None], "the sessions of entries")
            expect_same({entry.token for entry in entries[:2]}, {commit.token}, "the tokens of a first commit")
            expect(not refused.won, "a first commit won against its conditions")
            expect_same([entry.key for entry in refused.entries], ["taken"], "the entries of a first commit that lost")
        for opened in (session, late):
            await opened.keep_alive()
            await backend.commit(Put("mine", b"", opened.id))
            await opened.aclose()
            await expect_ended(other, opened)
        expect_same(await keys(other), ["taken"] if commit is None else ["b", "taken"], "the run after both have ended")


@Check
async def a_session_begins_with_its_watch(run: Trial) -> None:
    """The watch of an opening pushes what is there, the first commit and what comes, until it is closed."""
    async with run.client() as backend, run.client() as other:
        await other.commit(Put("a/old", b"0"))
        sink, names = Pushed(), ("a/", "mark")
        reader = WatchReader(sink, *names)
        opening = Opening(20, (Put("a/new", b"1", OWN),), (ABSENT,), names, sink)
        session, commit, following = await backend.open(opening, Deadline.after(WAIT, "open"))
        assert following is not None, "a session was opened without its watch"
        await other.commit(Put("mark", b"2"))
        wanted = {"a/old": b"0", "mark": b"2"} | ({} if commit is None else {"a/new": b"1"})
        await reader.until("all that was put", partial(dict.__eq__, wanted))
        await session.aclose()
        await other.commit(Delete("a/old"))
        await reader.until("the deletions", partial(dict.__eq__, {"mark": b"2"}))
        expect(following.current_at <= anyio.current_time(), "the watch is current as of the future")
        following.close()
        await other.commit(Put("mark", b"3"))
        async with backend.watch("mark") as watch:
            await WatchReader(watch, "mark").until_value("mark", b"3")
        expect_same(reader.view, {"mark": b"2"}, "what was pushed after the watch was closed")


@Check
async def what_a_commit_tells_is_pushed_once(run: Trial) -> None:
    """What learn() was told of a commit's answer is pushed at once and not again; its deletion is pushed."""
    async with run.client() as backend, run.client() as other:
        sink = Pushed()
        reader = WatchReader(sink, "a/")
        _, _, following = await backend.open(Opening(20, names=("a/",), sink=sink), Deadline.after(WAIT, "open"))
        assert following is not None, "a session was opened without its watch"
        await reader.read("a first listing, though there is nothing")
        writes = (Put("a/x", b"1"), Put("b", b"1"))
        following.learn(news_of(writes, await backend.commit(*writes)))
        expect_same(len(sink), 1, "how many listings have been pushed of what was learned")
        expect_same((await reader.read("what was learned")).entries[0].key, "a/x", "what was learned")
        await other.commit(Delete("a/x"))
        await other.commit(Put("a/y", b"2"))
        await reader.until("the deletion of what was learned", partial(dict.__eq__, {"a/y": b"2"}))
        following.close()


@Check
async def anyone_can_end_a_session(run: Trial) -> None:
    """end_session() by another client deletes the keys at once and its owner notices; unknown ids are ignored."""
    async with run.client() as backend, run.client() as other:
        session = await backend.open_session(20)
        await backend.commit(Put("bound", b"", session.id), Put("kept", b""))
        await other.end_session(session.id)
        expect_same(await keys(backend), ["kept"], "the run after another client ended the session")
        await expect_ended(backend, session)
        await other.end_session(session.id)
        for unknown in ("no such session", "", "0", "123456789", "-1"):
            await other.end_session(unknown)
        expect_same(await keys(backend), ["kept"], "the run after sessions that do not exist were ended")


@Check
async def a_silent_session_expires(run: Trial) -> None:
    """Without keep-alives a session expires, but not before its owner's deadline; the puts of others stay."""
    async with run.client() as backend, run.client() as other, other.watch("") as watch:
        reader = WatchReader(watch, "")
        silent, heir = await backend.open_session(TTL), await other.open_session(TTL)
        wanted = {"freed": b"new", "inherited": b"new", "kept": b"new"}

        async def put() -> None:
            old = [Put(key, b"old", silent.id) for key in ("bound", "freed", "inherited", "kept", "returned")]
            await backend.commit(*old)
            await other.commit(Put("inherited", b"new", heir.id), Put("kept", b"new"), Delete("freed"))
            await other.commit(Put("freed", b"new"), Put("returned", b"new", heir.id))
            await backend.commit(Put("returned", b"newest", silent.id))
            await reader.until("the keys of two sessions", lambda view: view.get("returned") == b"newest")

        async def outlive() -> None:
            await keeping(silent, put)
            await reader.until("the expiry of a session", lambda view: "bound" not in view)
            seen_at = anyio.current_time()
            expect(seen_at >= silent.deadline, "it ended before the deadline at which its owner counts itself out")

        await keeping(heir, outlive)
        view = await reader.until("the deletion of all of its keys", lambda view: "returned" not in view)
        expect_same(view, wanted, "the run as a watch shows it after the expiry")
        expect_same(
            {entry.key: entry.value for entry in (await backend.list("")).entries}, wanted, "and as a read does"
        )
        await expect_ended(backend, silent)
        await heir.aclose()
        expect_same(await keys(backend), ["freed", "kept"], "the run after the heir's session was closed")


@Check
async def keep_alives_hold_a_session(run: Trial) -> None:
    """A session that is kept alive outlives its TTL, and its keys with it."""
    async with run.client() as backend, backend.watch("") as watch:
        reader = WatchReader(watch, "")
        kept = await backend.open_session(TTL)
        await backend.commit(Put("kept", b"", kept.id))

        async def put(session: str) -> None:
            await backend.commit(Put("other", b"", session))
            await reader.until("a key of another session", lambda view: "other" in view)

        async def outlive_two_others() -> None:
            for _ in range(2):
                other = await backend.open_session(TTL)
                await keeping(other, partial(put, other.id))
                await reader.until("the expiry of another session", lambda view: "other" not in view)

        await keeping(kept, outlive_two_others)
        await kept.keep_alive()
        expect(not kept.lost.is_set(), "`lost` is set on a session that is alive")
        expect_same(await keys(backend), ["kept"], "the run after two TTLs")
        deleted = [entry.key for listing in reader.listings for entry in listing.entries if entry.value is None]
        expect("kept" not in deleted, "a watch showed the deletion of a key whose session is alive")
        await kept.aclose()


@Check
async def a_key_belongs_to_the_session_of_its_last_put(run: Trial) -> None:
    """A session that ends does not delete keys that were last put under another session or none."""
    async with run.client() as backend, run.client() as other:
        first, second = await backend.open_session(20), await other.open_session(20)
        await backend.commit(
            Put("a", b"1", first.id), Put("b", b"1", first.id), Put("c", b"1"), Put("d", b"1", first.id)
        )
        await other.commit(Put("a", b"2", second.id), Put("b", b"2"), Put("c", b"2", first.id))
        await other.commit(Put("d", b"2", second.id))
        await backend.commit(Put("d", b"3", first.id))
        await first.aclose()
        expect_same(await keys(backend), ["a", "b"], "the run after the first session ended")
        await backend.end_session(second.id)
        expect_same(await keys(backend), ["b"], "the run after the second session ended")


@Check
async def a_deadline_is_that_of_the_last_answered_keep_alive(run: Trial) -> None:
    """A session's deadline is the send time of the last answered keep-alive plus three quarters of the TTL."""
    async with run.client() as backend:
        before = anyio.current_time()
        session = await backend.open_session(TTL)
        for what in ("open_session()", "keep_alive()", "keep_alive()"):
            sent_at = session.deadline - OUT_AFTER * session.ttl
            after = anyio.current_time()
            expect(before - 0.001 <= sent_at <= after + 0.001, f"{what} between {before} and {after} says {sent_at}")
            before = anyio.current_time()
            await session.keep_alive()
        await session.aclose()
        deadline = session.deadline
        await expect_error(RendezvousSessionError, session.keep_alive, "keep_alive() of a closed session")
        expect_same(session.deadline, deadline, "the deadline after a keep-alive that was refused")


@Check
async def many_sessions_at_once(run: Trial) -> None:
    """Sessions that are opened, used and closed at the same time do not get in each other's way."""
    async with run.client() as first, run.client() as second:
        sessions: dict[str, Session] = {}

        async def arrive(backend: Backend, key: str) -> None:
            sessions[key] = await backend.open_session(20)
            await backend.commit(Put(key, b"", sessions[key].id))
            await sessions[key].keep_alive()

        async def leave(key: str) -> None:
            await sessions[key].aclose()

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(arrive, (first, second)[number % 2], f"n{number:02}")
            expect_same(len({session.id for session in sessions.values()}), 20, "the number of session ids")
            expect_same(await keys(first), sorted(sessions), "the run with 20 sessions")
            async with anyio.create_task_group() as group:
                for number in range(0, 20, 2):
                    group.start_soon(leave, f"n{number:02}")
            expect_same(await keys(second), [f"n{number:02}" for number in range(1, 20, 2)], "after half have left")
            for number in range(1, 20, 2):
                await leave(f"n{number:02}")
