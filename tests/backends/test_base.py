"""What all backends share: names, sizes, the classic envelope, and what sessions and deadlines are made of."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import (
    Backend,
    Commit,
    Condition,
    Delete,
    Driver,
    Entry,
    Granted,
    Listing,
    Opening,
    Put,
    Session,
    Sink,
    Subscription,
    Token,
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
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.testing.loop.clock import run

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


class Recorder(Driver):
    """A driver that only writes down what it is asked to commit."""

    name = "recorder"
    max_writes = 4
    max_bytes = 100

    def __init__(self) -> None:
        self.commits: list[tuple[tuple[Write, ...], tuple[Condition, ...]]] = []
        self.deadlines: list[Deadline | None] = []

    def __repr__(self) -> str:
        return "<Recorder>"

    async def get(self, key: str) -> Entry | None:
        return Entry(key, b"value", token(1))

    async def list(self, name: str) -> Listing:
        return Listing((Entry(name + "x", b"", token(1)),), token(1))

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        self.commits.append((writes, when))
        self.deadlines.append(deadline)
        return Commit(False, token(1), (Entry(PREFIX + "a", b"1", token(1)),))

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        raise NotImplementedError

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        raise NotImplementedError

    async def end_session(self, session: str, cause: str = "") -> None:
        raise NotImplementedError

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


PREFIX = "ns/a%20run%2F%C3%A9/"


def recorded() -> tuple[Backend, Recorder]:
    driver = Recorder()
    return Backend(driver, "a run/é", "/ns/"), driver


class TestBackend:
    async def test_keys_are_relative_to_the_run(self) -> None:
        backend, driver = recorded()
        assert backend.prefix == PREFIX
        commit = await backend.commit(Put("a", b"1"), Delete("b/"), Delete("c"), when=[Condition("d", None)])
        prefix = backend.prefix
        assert driver.commits == [
            ((Put(prefix + "a", b"1"), Delete(prefix + "b/"), Delete(prefix + "c")), (Condition(prefix + "d", None),))
        ]
        assert commit.entry("a") == Entry("a", b"1", token(1))
        assert commit.entry("b") is None
        assert await backend.get("a/b") == Entry("a/b", b"value", token(1))
        assert (await backend.list("a/")).entries == (Entry("a/x", b"", token(1)),)
        assert (await backend.list("")).entries == (Entry("x", b"", token(1)),)
        assert repr(backend) == "<Backend run='a run/é' on <Recorder>>"

    async def test_sizes_count_all_keys_and_values_in_bytes(self) -> None:
        backend, driver = recorded()
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
        assert len(driver.commits) == 3

    async def test_a_commit_may_not_write_a_key_twice(self) -> None:
        backend, _ = recorded()
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
        backend, driver = recorded()
        driver.max_bytes = 10_000
        writes = [Put(f"{number}", b"") for number in range(5)]
        conditions = [Condition(put.key, None) for put in writes]
        await backend.commit(*writes[:4], when=conditions[:4])
        with pytest.raises(ValueError, match="at most 4 writes and as many conditions, not 5 and 4; split it"):
            await backend.commit(*writes, when=conditions[:4])
        with pytest.raises(ValueError, match="not 0 and 5"):
            await backend.commit(when=conditions)

    def test_a_watch_needs_a_name(self) -> None:
        with pytest.raises(ValueError, match="at least one name"):
            recorded()[0].watch()

    @pytest.mark.parametrize("run_id", ["", "  ", None, 7, "x" * 257])
    def test_a_run_needs_an_id(self, run_id: object) -> None:
        with pytest.raises(ValueError, match="run_id must"):
            Backend(Recorder(), run_id)  # type: ignore[arg-type]


class Slow(Recorder):
    """A driver whose calls take two seconds; its sessions live until it says otherwise."""

    alive = True

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        await anyio.sleep(2)
        if not self.alive:
            raise RendezvousSessionError("gone")

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        await anyio.sleep(2)
        return await super().commit(writes, when, deadline)


class TestSession:
    def test_the_deadline_counts_from_the_sending(self) -> None:
        async def main() -> None:
            driver = Slow()
            session = Session(driver, "s", 8.0, sent_at=0.0)
            assert session.deadline == 6
            await session.keep_alive()
            assert (anyio.current_time(), session.deadline) == (2, 6), "sent at 0, answered at 2"
            await session.keep_alive()
            assert session.deadline == 8
            assert repr(session) == "<Session s ttl=8>"
            driver.alive = False
            with pytest.raises(RendezvousSessionError):
                await session.keep_alive()
            assert session.deadline == 8
            assert repr(session) == "<Session s ttl=8 lost>"

        run(main)

    def test_a_keep_alive_that_is_overtaken_does_not_move_the_deadline_back(self) -> None:
        async def main() -> None:
            session = Session(Slow(), "s", 8.0, sent_at=0.0)
            session.deadline = 100.0
            await session.keep_alive()
            assert session.deadline == 100

        run(main)


class TestDeadlines:
    """A driver that does not keep deadlines itself is kept to them."""

    def test_a_call_ends_at_its_deadline(self) -> None:
        async def main() -> None:
            driver = Slow()
            session, backend = Session(driver, "s", 8.0, sent_at=0.0), Backend(driver, "run")
            with pytest.raises(RendezvousConnectionError, match="ask: the backend did not answer within 1 s"):
                await backend.commit(Put("a", b""), deadline=Deadline.after(1, "ask"))
            with pytest.raises(RendezvousConnectionError, match="beat: the backend did not answer within 1 s"):
                await session.keep_alive(Deadline.after(1, "beat"))
            assert (anyio.current_time(), session.deadline, session.lost.is_set()) == (2, 6, False)
            assert not driver.commits

        run(main)

    def test_one_that_keeps_them_is_handed_them(self) -> None:
        async def main() -> None:
            driver = Slow()
            driver.keeps_deadlines = True
            deadline = Deadline.after(1, "ask")
            await Backend(driver, "run").commit(Put("a", b""), deadline=deadline)
            assert (anyio.current_time(), driver.deadlines) == (2, [deadline])

        run(main)


def test_tokens_say_what_they_are() -> None:
    assert str(Token("epoch", 7)) == "epoch:7"
    assert Token("a", 1) != Token("b", 1)
    assert len({Token("a", 1), Token("a", 1)}) == 1
