"""What all backends share: names, sizes, the classic envelope, and how a watch settles what comes in."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends.base import (
    Backend,
    Commit,
    Condition,
    Delete,
    Entry,
    Listing,
    Put,
    Session,
    Token,
    Watch,
    Write,
)
from rendezvous_async.backends.names import (
    MAX_KEY_LENGTH,
    REMEMBERED_LENGTH,
    check_key,
    check_name,
    covers,
    place_of,
    subtrees_of,
)
from rendezvous_async.backends.table import Table
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.testing.clock import run

EPOCH = "epoch"
segments = st.text(
    st.characters(exclude_characters="/", exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=5
)
key_texts = st.lists(segments, min_size=1, max_size=4).map("/".join)


def token(revision: int, epoch: str = EPOCH) -> Token:
    return Token(epoch, revision)


class TestNames:
    @given(key_texts)
    def test_segments_between_single_slashes_are_a_key(self, key: str) -> None:
        assert check_key(key) == check_name(key) == key
        assert check_name(key + "/") == key + "/"

    @pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a//b", "a\n", "a\0", "\x7f", "\ud800", "\u200b", "a\u2028b"])
    def test_anything_else_is_not(self, key: str) -> None:
        with pytest.raises(ValueError) as caught:
            check_key(key)
        assert repr(key) in str(caught.value)

    def test_a_name_may_be_the_whole_run(self) -> None:
        assert check_name("") == ""

    def test_keys_are_bounded(self) -> None:
        assert check_key("k" * MAX_KEY_LENGTH)
        with pytest.raises(ValueError, match=f"at most {MAX_KEY_LENGTH} characters, not {MAX_KEY_LENGTH + 1}: 'kkk"):
            check_key("k" * (MAX_KEY_LENGTH + 1))

    @given(key_texts, key_texts)
    def test_a_name_covers_itself_or_what_is_under_it(self, name: str, key: str) -> None:
        assert covers(name, key) == (name == key)
        assert covers(name + "/", key) == (key.split("/")[: name.count("/") + 1] == name.split("/") and key != name)
        assert not covers(key + "/", key)

    @given(key_texts)
    def test_subtrees_are_what_covers_a_key(self, key: str) -> None:
        subtrees = subtrees_of(key)
        assert len(subtrees) == key.count("/")
        assert all(subtree.endswith("/") and covers(subtree, key) for subtree in subtrees)
        assert all(covers(shorter, longer) for shorter, longer in pairwise(subtrees))

    def test_keys_side_by_side_have_one_answer(self) -> None:
        """It is remembered by the subtree, so that thousands of keys take one place."""
        assert subtrees_of("side/by/x") is subtrees_of("side/by/y")
        assert place_of("side/by/x") is place_of("side/by/y")

    @pytest.mark.parametrize(
        "key", ["ns/run/nodes/n", "ns/run/seats/0", "ns/run/rounds/1", "ns/run/state", "ns/run/x/y"]
    )
    def test_a_run_has_its_records(self, key: str) -> None:
        assert place_of(key) == ("ns/run", False)

    def test_a_run_has_the_stores_of_its_rounds(self) -> None:
        assert place_of("ns/run/rounds/1/kv") == place_of("ns/run/rounds/1/kv/a/b") == ("ns/run", True)
        assert place_of("ns/run/nodes/n/x") == ("ns/run", False)

    @pytest.mark.parametrize("run", ["a/b/run", "a/b/c/d/run", f"a/{'b' * REMEMBERED_LENGTH}/run"])
    def test_a_namespace_may_have_several_segments(self, run: str) -> None:
        assert place_of(f"{run}/nodes/n") == (run, False)
        assert place_of(f"{run}/rounds/1/kv/rounds/2/kv") == (run, True)

    @pytest.mark.parametrize("name", ["nodes", "seats", "rounds"])
    def test_a_run_may_have_the_name_of_a_record(self, name: str) -> None:
        assert place_of(f"{name}/{name}/nodes/n") == (f"{name}/{name}", False)

    def test_a_key_outside_of_all_runs_stands_for_itself(self) -> None:
        assert place_of("key") == ("key", False)
        assert place_of("ns/key") == ("ns/key", False)


class FakeWatch(Watch):
    """A watch that is fed by hand."""

    async def _next(self) -> Listing:
        raise StopAsyncIteration

    async def aclose(self) -> None:
        pass


def put(key: str, revision: int, epoch: str = EPOCH) -> Entry:
    return Entry(key, b"%d" % revision, token(revision, epoch))


class TestSettling:
    """A watch may be fed stale, repeated and complete listings; its reader sees each change once, in order."""

    def test_the_first_listing_is_passed_on_even_if_it_is_empty(self) -> None:
        listing = Listing((), token(3))
        assert FakeWatch()._settle(listing) == listing

    def test_with_after_an_empty_listing_is_no_news(self) -> None:
        assert FakeWatch(token(3))._settle(Listing((), token(4), complete=False)) is None

    def test_what_was_delivered_is_dropped(self) -> None:
        watch = FakeWatch()
        first = Listing((put("a", 1), put("b", 2)), token(2))
        assert watch._settle(first) == first
        assert watch._settle(first) is None
        again = watch._settle(Listing((put("a", 1), put("b", 3)), token(3), complete=False))
        assert again == Listing((put("b", 3),), token(3), complete=False)

    def test_what_vanished_before_a_fresh_start_is_a_deletion(self) -> None:
        watch = FakeWatch()
        watch._settle(Listing((put("a", 1), put("b", 2)), token(2)))
        settled = watch._settle(Listing((put("b", 2), put("c", 4)), token(5)))
        assert settled is not None
        assert settled.entries == (Entry("a", None, token(5)), put("c", 4))
        assert not settled.complete, "b, which is there, was left out"

    def test_a_listing_of_another_epoch_is_delivered_in_full(self) -> None:
        watch = FakeWatch()
        watch._settle(Listing((put("a", 7), put("b", 8)), token(8)))
        settled = watch._settle(Listing((put("a", 1, "new"),), token(1, "new")))
        assert settled == Listing((put("a", 1, "new"), Entry("b", None, token(1, "new"))), token(1, "new"))
        assert watch._settle(Listing((), token(1, "newer"))) == Listing(
            (Entry("a", None, token(1, "newer")),), token(1, "newer")
        )
        assert watch._settle(Listing((), token(1, "newest"))) == Listing((), token(1, "newest"))

    def test_a_stale_complete_listing_deletes_nothing(self) -> None:
        watch = FakeWatch()
        watch._settle(Listing((put("a", 1),), token(1)))
        watch._settle(Listing((put("b", 2),), token(2), complete=False))
        assert watch._settle(Listing((put("a", 1),), token(1))) is None
        assert watch._position == token(2)

    def test_a_stale_listing_brings_nothing_back(self) -> None:
        watch = FakeWatch()
        watch._settle(Listing((put("a", 1),), token(1)))
        watch._settle(Listing((Entry("a", None, token(2)),), token(2), complete=False))
        assert watch._settle(Listing((put("a", 1),), token(1), complete=False)) is None

    def test_what_the_reader_has_learned_elsewhere_is_deleted_if_it_is_gone(self) -> None:
        watch = FakeWatch()
        watch.learn(put("a", 1))
        watch.learn(put("b", 2))
        settled = watch._settle(Listing((put("b", 2), put("c", 3)), token(4)))
        assert settled == Listing((Entry("a", None, token(4)), put("c", 3)), token(4), complete=False)

    def test_what_is_learned_late_does_not_hide_what_is_newer(self) -> None:
        watch = FakeWatch()
        watch._settle(Listing((put("a", 5),), token(5)))
        watch.learn(put("a", 3))
        assert watch._settle(Listing((put("a", 5),), token(6), complete=False)) is None
        newer = Listing((put("a", 7),), token(7), complete=False)
        assert watch._settle(newer) == newer

    def test_a_watch_that_resumes_gets_a_complete_listing_in_full(self) -> None:
        listing = Listing((put("a", 1), put("b", 9)), token(9))
        assert FakeWatch(token(5))._settle(listing) == listing

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
        watch = FakeWatch()
        view: dict[str, bytes | None] = {}
        newest = -1
        for _ in range(data.draw(st.integers(1, 10))):
            revision = data.draw(st.integers(0, len(states) - 1))
            listing = complete[revision]
            if newest >= 0 and revision > 0 and data.draw(st.booleans()):
                listing = changes[revision - 1][data.draw(st.integers(0, min(newest, revision - 1)))]
            settled = watch._settle(listing)
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


class Recorder(Backend):
    """A backend that only writes down what it is asked to commit."""

    name = "recorder"
    max_writes = 4
    max_bytes = 100

    def __init__(self) -> None:
        super().__init__("a run/é", "/ns/")
        self.commits: list[tuple[tuple[Write, ...], tuple[Condition, ...]]] = []

    async def _commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        self.commits.append((writes, when))
        return Commit(False, token(1), (Entry(self.prefix + "a", b"1", token(1)),))

    async def _get(self, key: str) -> Entry | None:
        return Entry(key, b"value", token(1))

    async def _list(self, name: str) -> Listing:
        return Listing((Entry(name + "x", b"", token(1)),), token(1))

    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch:
        raise NotImplementedError

    async def open_session(self, ttl: float) -> Session:
        raise NotImplementedError

    async def end_session(self, session: str) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


class TestBackend:
    async def test_keys_are_relative_to_the_run(self) -> None:
        backend = Recorder()
        assert backend.prefix == "ns/a%20run%2F%C3%A9/"
        commit = await backend.commit(Put("a", b"1"), Delete("b/"), Delete("c"), when=[Condition("d", None)])
        prefix = backend.prefix
        assert backend.commits == [
            ((Put(prefix + "a", b"1"), Delete(prefix + "b/"), Delete(prefix + "c")), (Condition(prefix + "d", None),))
        ]
        assert commit.entry("a") == Entry("a", b"1", token(1))
        assert commit.entry("b") is None
        assert await backend.get("a/b") == Entry("a/b", b"value", token(1))
        assert (await backend.list("a/")).entries == (Entry("a/x", b"", token(1)),)
        assert (await backend.list("")).entries == (Entry("x", b"", token(1)),)
        assert repr(backend) == "<Recorder run='a run/é'>"

    async def test_sizes_count_all_keys_and_values_in_bytes(self) -> None:
        backend = Recorder()
        room = backend.max_bytes - len(backend.prefix)
        await backend.commit(Put("a", b"x" * (room - 1)))
        await backend.commit(Put("é", b"x" * (room - 2)))
        await backend.commit(Put("a", b"x" * (room - 2 - len(backend.prefix))), when=[Condition("b", None)])
        for commit in (
            backend.commit(Put("a", b"x" * room)),
            backend.commit(Put("é", b"x" * (room - 1))),
            backend.commit(Put("a", b"x" * (room - 1)), when=[Condition("b", None)]),
            backend.commit(Put("a", b""), Delete("b" * room)),
        ):
            with pytest.raises(ValueError, match="a commit to recorder has at most 100 bytes, not 1"):
                await commit
        assert len(backend.commits) == 3

    async def test_a_commit_may_not_write_a_key_twice(self) -> None:
        backend = Recorder()
        for writes in (
            [Put("a", b""), Put("a", b"")],
            [Put("a", b""), Delete("a")],
            [Delete("a/"), Put("a/b/c", b"")],
            [Put("a", b""), Delete("")],
        ):
            with pytest.raises(ValueError, match="must not write a key twice"):
                await backend.commit(*writes)
        await backend.commit(Put("a", b""), Delete("a/"), Delete("ab"), Delete("a/b"))

    async def test_too_many_writes_or_conditions(self) -> None:
        backend = Recorder()
        backend.max_bytes = 10_000
        writes = [Put(f"{number}", b"") for number in range(5)]
        conditions = [Condition(put.key, None) for put in writes]
        await backend.commit(*writes[:4], when=conditions[:4])
        with pytest.raises(ValueError, match="at most 4 writes and as many conditions, not 5 and 4; split it"):
            await backend.commit(*writes, when=conditions[:4])
        with pytest.raises(ValueError, match="not 0 and 5"):
            await backend.commit(when=conditions)

    def test_a_watch_needs_a_name(self) -> None:
        with pytest.raises(ValueError, match="at least one name"):
            Recorder().watch()

    @pytest.mark.parametrize("run_id", ["", "  ", None, 7, "x" * 257])
    def test_a_run_needs_an_id(self, run_id: object) -> None:
        with pytest.raises(ValueError, match="run_id must"):
            Backend.__init__(Recorder(), run_id)  # type: ignore[arg-type]


class FakeSession(Session):
    """A session whose keep-alives take two seconds, until they are refused."""

    alive = True

    async def _refresh(self) -> None:
        await anyio.sleep(2)
        if not self.alive:
            self.lost.set()
            raise RendezvousSessionError("gone")

    async def aclose(self) -> None:
        pass


class TestSession:
    def test_the_deadline_counts_from_the_sending(self) -> None:
        async def main() -> None:
            session = FakeSession("s", 8.0, sent_at=0.0)
            assert session.deadline == 6
            await session.keep_alive()
            assert (anyio.current_time(), session.deadline) == (2, 6), "sent at 0, answered at 2"
            await session.keep_alive()
            assert session.deadline == 8
            assert repr(session) == "<FakeSession s ttl=8>"
            session.alive = False
            with pytest.raises(RendezvousSessionError):
                await session.keep_alive()
            assert session.deadline == 8
            assert repr(session) == "<FakeSession s ttl=8 lost>"

        run(main)

    def test_a_keep_alive_that_is_overtaken_does_not_move_the_deadline_back(self) -> None:
        async def main() -> None:
            session = FakeSession("s", 8.0, sent_at=0.0)
            session.deadline = 100.0
            await session.keep_alive()
            assert session.deadline == 100

        run(main)


def test_tokens_say_what_they_are() -> None:
    assert str(Token("epoch", 7)) == "epoch:7"
    assert Token("a", 1) != Token("b", 1)
    assert len({Token("a", 1), Token("a", 1)}) == 1
