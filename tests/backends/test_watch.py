"""What is news of what a driver pushes, and how a watch gathers it for its reader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends import watch as watching
from rendezvous_async.backends.base import Delete, Entry, Following, Listing, Put, Sink, Token, Watch, Write
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.watch import News
from rendezvous_async.errors import RendezvousConnectionError

EPOCH = "epoch"


def token(revision: int, epoch: str = EPOCH) -> Token:
    return Token(epoch, revision)


def put(key: str, revision: int, epoch: str = EPOCH) -> Entry:
    return Entry(key, b"%d" % revision, token(revision, epoch))


class TestSettling:
    """A watch may be fed stale, repeated and complete listings; its reader sees each change once, in order."""

    def test_the_first_listing_is_passed_on_even_if_it_is_empty(self) -> None:
        listing = Listing((), token(3))
        assert News().settle(listing) == listing

    def test_with_after_an_empty_listing_is_no_news(self) -> None:
        assert News(after=token(3)).settle(Listing((), token(4), complete=False)) is None

    def test_what_was_delivered_is_dropped(self) -> None:
        news = News()
        first = Listing((put("a", 1), put("b", 2)), token(2))
        assert news.settle(first) == first
        assert news.settle(first) is None
        again = news.settle(Listing((put("a", 1), put("b", 3)), token(3), complete=False))
        assert again == Listing((put("b", 3),), token(3), complete=False)

    def test_what_vanished_before_a_fresh_start_is_a_deletion(self) -> None:
        news = News()
        news.settle(Listing((put("a", 1), put("b", 2)), token(2)))
        settled = news.settle(Listing((put("b", 2), put("c", 4)), token(5)))
        assert settled is not None
        assert settled.entries == (Entry("a", None, token(5)), put("c", 4))
        assert not settled.complete, "b, which is there, was left out"

    def test_a_listing_of_another_epoch_is_delivered_in_full(self) -> None:
        news = News()
        news.settle(Listing((put("a", 7), put("b", 8)), token(8)))
        settled = news.settle(Listing((put("a", 1, "new"),), token(1, "new")))
        assert settled == Listing((put("a", 1, "new"), Entry("b", None, token(1, "new"))), token(1, "new"))
        assert news.settle(Listing((), token(1, "newer"))) == Listing(
            (Entry("a", None, token(1, "newer")),), token(1, "newer")
        )
        assert news.settle(Listing((), token(1, "newest"))) == Listing((), token(1, "newest"))

    def test_a_stale_complete_listing_deletes_nothing(self) -> None:
        news = News()
        news.settle(Listing((put("a", 1),), token(1)))
        news.settle(Listing((put("b", 2),), token(2), complete=False))
        assert news.settle(Listing((put("a", 1),), token(1))) is None
        assert news.position == token(2)

    def test_a_stale_listing_brings_nothing_back(self) -> None:
        news = News()
        news.settle(Listing((put("a", 1),), token(1)))
        news.settle(Listing((Entry("a", None, token(2)),), token(2), complete=False))
        assert news.settle(Listing((put("a", 1),), token(1), complete=False)) is None

    def test_what_the_reader_has_learned_elsewhere_is_deleted_if_it_is_gone(self) -> None:
        news = News()
        news.learn([put("a", 1), put("b", 2)])
        settled = news.settle(Listing((put("b", 2), put("c", 3)), token(4)))
        assert settled == Listing((Entry("a", None, token(4)), put("c", 3)), token(4), complete=False)

    def test_what_is_learned_late_does_not_hide_what_is_newer(self) -> None:
        news = News()
        news.settle(Listing((put("a", 5),), token(5)))
        assert news.learn([put("a", 3)]) == ()
        assert news.settle(Listing((put("a", 5),), token(6), complete=False)) is None
        newer = Listing((put("a", 7),), token(7), complete=False)
        assert news.settle(newer) == newer

    def test_a_watch_that_resumes_gets_a_complete_listing_in_full(self) -> None:
        listing = Listing((put("a", 1), put("b", 9)), token(9))
        assert News(after=token(5)).settle(listing) == listing

    @given(st.data())
    def test_the_view_is_always_that_of_the_newest_listing(self, data: st.DataObject) -> None:
        """Listings of a real table, complete or from some position not after the watch's, in any order."""
        table = Table(EPOCH)
        states: list[dict[str, bytes | None]] = [{}]
        changes: list[list[Listing]] = []
        for _ in range(data.draw(st.integers(1, 8))):
            key = data.draw(st.sampled_from(["n/a", "n/b", "n/c"]))
            write: Write = Put(key, b"%d" % len(states)) if data.draw(st.booleans()) else Delete(key)
            if table.commit([write]).revision < len(states):
                continue
            states.append({entry.key: entry.value for entry in table.list("n/").entries})
            known = [table.changes(["n/"], token(after)) for after in range(len(states) - 1)]
            changes.append([listing for listing in known if listing is not None])
        complete = [Listing((), token(0))] + [
            Listing(
                tuple(Entry(key, value, self.put_at(states, key, revision)) for key, value in state.items()),
                token(revision),
            )
            for revision, state in enumerate(states)
            if revision
        ]
        news = News()
        view: dict[str, bytes | None] = {}
        newest = -1
        for _ in range(data.draw(st.integers(1, 10))):
            revision = data.draw(st.integers(0, len(states) - 1))
            listing = complete[revision]
            if newest >= 0 and revision > 0 and data.draw(st.booleans()):
                listing = changes[revision - 1][data.draw(st.integers(0, min(newest, revision - 1)))]
            settled = news.settle(listing)
            if settled is not None:
                assert settled.revision >= newest
                view.update((entry.key, entry.value) for entry in settled.entries)
                view = {key: value for key, value in view.items() if value is not None}
            newest = max(newest, revision)
            assert view == states[newest]
            if settled is not None and settled.complete:
                assert {e.key: e.value for e in settled.entries if e.value is not None} == states[newest]

    @staticmethod
    def put_at(states: list[dict[str, bytes | None]], key: str, revision: int) -> Token:
        while revision > 0 and states[revision - 1].get(key) == states[revision][key]:
            revision -= 1
        return token(revision)

    def test_what_is_older_than_the_position_and_not_known_is_gone(self) -> None:
        news = News()
        news.settle(Listing((put("a", 1),), token(1)))
        news.settle(Listing((Entry("a", None, token(5)),), token(5), complete=False))
        assert news.learn([put("a", 1), put("b", 4)]) == ()
        assert news.learn([put("a", 6)]) == (put("a", 6),)
        assert news.learn([put("a", 1, "new")]) == (put("a", 1, "new"),)


class Pushing:
    """A driver's side of watches, pushed by hand."""

    def __init__(self) -> None:
        self.asked: list[Token | None] = []
        self.closed = 0
        self.current_at = 0.0
        self.sink: Sink

    def subscribe(self, after: Token | None, sink: Sink) -> Pushing:
        self.asked.append(after)
        self.sink = sink
        return self

    def close(self) -> None:
        self.closed += 1


def change(revision: int, *entries: Entry) -> Listing:
    return Listing(entries, token(revision), complete=False)


@pytest.fixture
async def pushing() -> AsyncIterator[tuple[Pushing, Watch]]:
    driver = Pushing()
    async with Watch(driver.subscribe, "") as watch:
        yield driver, watch
    assert driver.closed == len(driver.asked)


async def start(watch: Watch, driver: Pushing) -> None:
    """Have the watch follow, and read its first listing: there is a, at revision 1."""
    async with anyio.create_task_group() as group:
        group.start_soon(watch.__anext__)
        await anyio.wait_all_tasks_blocked()
        driver.sink.take(Listing((put("a", 1),), token(1)))


class TestGathering:
    async def test_a_slow_reader_gets_of_each_key_the_newest(self, pushing: tuple[Pushing, Watch]) -> None:
        driver, watch = pushing
        await start(watch, driver)
        assert driver.asked == [None]
        driver.sink.take(change(2, put("b", 2)))
        driver.sink.take(change(3, put("a", 3), put("c", 3)))
        driver.sink.take(change(4, Entry("c", None, token(4)), put("b", 4)))
        driver.sink.take(change(3, put("b", 3)))  # stale
        assert await anext(watch) == change(4, put("a", 3), put("b", 4), Entry("c", None, token(4)))

    async def test_a_reader_that_does_not_come_is_given_up_and_followed_again(
        self, pushing: tuple[Pushing, Watch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "MAX_UNREAD", 3)
        driver, watch = pushing
        await start(watch, driver)
        for revision in range(2, 6):
            assert driver.closed == 0
            driver.sink.take(change(revision, put("b", revision)))
            driver.current_at = float(revision)
        driver.sink.take(change(6, put("b", 6)))
        assert driver.closed == 1
        async with anyio.create_task_group() as group:
            group.start_soon(watch.__anext__)
            await anyio.wait_all_tasks_blocked()
            assert driver.asked == [None, token(1)], "it goes on from where the reader stands"
            driver.sink.take(Listing((put("b", 9),), token(9)))

    async def test_what_has_gone_meanwhile_is_a_deletion(
        self, pushing: tuple[Pushing, Watch], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "MAX_UNREAD", 0)
        driver, watch = pushing
        await start(watch, driver)
        driver.sink.take(change(2, Entry("a", None, token(2))))
        driver.sink.take(change(3, put("b", 3)))
        assert driver.closed == 1
        read: list[Listing] = []

        async def read_one() -> None:
            read.append(await anext(watch))

        async with anyio.create_task_group() as group:
            group.start_soon(read_one)
            await anyio.wait_all_tasks_blocked()
            driver.sink.take(Listing((put("b", 3),), token(3)))
        assert read == [Listing((Entry("a", None, token(3)), put("b", 3)), token(3))]

    async def test_a_failure_is_raised_once_and_loses_nothing(self, pushing: tuple[Pushing, Watch]) -> None:
        driver, watch = pushing
        await start(watch, driver)
        driver.sink.take(change(2, put("b", 2)))
        driver.sink.fail(RendezvousConnectionError("refused"))
        with pytest.raises(RendezvousConnectionError, match="refused"):
            await anext(watch)
        async with anyio.create_task_group() as group:
            group.start_soon(watch.__anext__)
            await anyio.wait_all_tasks_blocked()
            assert driver.asked == [None, token(1)]
            driver.sink.take(change(2, put("b", 2)))

    async def test_how_current_it_is_never_falls(self, pushing: tuple[Pushing, Watch]) -> None:
        driver, watch = pushing
        await start(watch, driver)
        driver.current_at = anyio.current_time() + 5
        assert watch.current_at == driver.current_at
        before, driver.current_at = driver.current_at, 0.0
        assert watch.current_at == before
        driver.sink.fail(OSError())
        assert watch.current_at == before
        with pytest.raises(OSError):
            await anext(watch)


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.listings: list[Listing] = []
        self.errors: list[Exception] = []

    def take(self, listing: Listing) -> None:
        self.listings.append(listing)

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


class TestFollowing:
    async def test_it_pushes_what_is_news_without_the_prefix(self) -> None:
        driver, sink = Pushing(), Kept()
        following = Following(("a/", "b"), "run/", sink)
        following.keep(driver.subscribe(None, following))
        following.take(Listing((put("run/a/x", 1),), token(1)))
        following.take(Listing((put("run/a/x", 1),), token(1)))
        following.learn([put("a/y", 2), put("a/x", 1), put("c", 2)])
        following.take(change(2, put("run/a/y", 2)))
        following.take(change(3, Entry("run/a/y", None, token(3))))
        following.learn([put("a/y", 2)])
        gone = change(3, Entry("a/y", None, token(3)))
        assert sink.listings == [Listing((put("a/x", 1),), token(1)), change(2, put("a/y", 2)), gone]

    async def test_nothing_is_pushed_once_it_is_closed(self) -> None:
        driver, sink = Pushing(), Kept()
        following = Following(("a",), "", sink)
        following.keep(driver)
        following.close()
        following.close()
        following.take(Listing((put("a", 1),), token(1)))
        following.learn([put("a", 2)])
        following.fail(OSError())
        assert (sink.listings, sink.errors, driver.closed) == ([], [], 1)

    async def test_a_failure_ends_it_even_before_the_driver_has_answered(self) -> None:
        driver, sink, error = Pushing(), Kept(), OSError()
        following = Following(("a",), "", sink)
        following.fail(error)
        following.keep(driver)
        following.fail(OSError())
        assert (sink.errors, driver.closed) == ([error], 1)
