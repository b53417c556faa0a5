"""The revisioned table against a naive model: a dict of entries and a list of everything that ever happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rendezvous_async.backends.base import Commit, Condition, Delete, Entry, Listing, Put, Token, Write
from rendezvous_async.backends.names import covers
from rendezvous_async.backends.table import graves as graves_module
from rendezvous_async.backends.table import usage as usage_module
from rendezvous_async.backends.table.table import CommitId, Snapshot, Table
from rendezvous_async.backends.table.usage import cost_of_key
from rendezvous_async.errors import RendezvousSessionError

KEYS = ["a", "a/b", "a/b/c", "a/c", "ab", "b", "b/x"]
NAMES = [*KEYS, "a/", "a/b/", "b/", "none", "none/"]
EPOCH = "epoch"

keys = st.sampled_from(KEYS)
names = st.sampled_from(NAMES)
values = st.binary(max_size=3)
times = st.integers(0, 20).map(float)


def token(revision: int) -> Token:
    return Token(EPOCH, revision)


class Model:
    """What a table is, without regard to speed: the whole state at every revision."""

    def __init__(self) -> None:
        self.states: list[dict[str, Entry]] = [{}]
        self.sessions: dict[str, tuple[float, float]] = {}

    @property
    def revision(self) -> int:
        return len(self.states) - 1

    @property
    def now(self) -> dict[str, Entry]:
        return self.states[-1]

    def commit(self, writes: Sequence[Write], when: Sequence[Condition]) -> Commit:
        current = {condition.key: self.now.get(condition.key) for condition in when}
        for condition in when:
            entry = current[condition.key]
            if (entry is None) != (condition.token is None) or (entry is not None and entry.token != condition.token):
                there = tuple(entry for c in when if (entry := self.now.get(c.key)) is not None)
                return Commit(False, token(self.revision), there)
        if any(isinstance(write, Put) and write.session not in (None, *self.sessions) for write in writes):
            raise RendezvousSessionError
        state = dict(self.now)
        for write in writes:
            if isinstance(write, Put):
                state[write.key] = Entry(write.key, write.value, token(self.revision + 1), write.session)
            else:
                state = {key: entry for key, entry in state.items() if not covers(write.name, key)}
        if state != self.now:
            self.states.append(state)
        return Commit(True, token(self.revision))

    def end(self, session: str) -> None:
        del self.sessions[session]
        state = {key: entry for key, entry in self.now.items() if entry.session != session}
        if state != self.now:
            self.states.append(state)

    def under(self, name: str) -> list[Entry]:
        return [self.now[key] for key in sorted(self.now) if covers(name, key)]

    def deletions(self) -> int:
        return sum(len(old.keys() - new.keys()) for old, new in pairwise(self.states))

    def touched_since(self, revision: int) -> set[str]:
        return {
            key
            for old, new in pairwise(self.states[revision:])
            for key in old.keys() | new.keys()
            if old.get(key) != new.get(key)
        }

    def changed_since(self, watched: Sequence[str], revision: int) -> list[tuple[str, bytes | None]]:
        """The newest value of every key under some names that was touched after a revision."""
        return [
            (key, self.now[key].value if key in self.now else None)
            for key in sorted(self.touched_since(revision))
            if any(covers(name, key) for name in watched)
        ]


class TableMachine(RuleBasedStateMachine):
    """Random calls on a table and on the model; whatever can be seen of both must be the same."""

    sessions: Bundle[str] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(EPOCH)
        self.model = Model()
        self.clock = 0.0
        self.changed: list[str] = []

    @initialize()
    def begin(self) -> None:
        assert (len(self.table), self.table.sessions, self.table.token) == (0, 0, token(0))

    def token_of(self, data: st.DataObject, key: str) -> Token | None:
        entry = self.model.now.get(key)
        current = None if entry is None else entry.token
        old = token(data.draw(st.integers(0, self.model.revision + 1)))
        foreign = Token("other", old.revision if current is None else current.revision)
        return data.draw(st.sampled_from([current, current, current, None, old, foreign]))

    @rule(data=st.data(), puts=st.dictionaries(keys, values, max_size=3), deletes=st.lists(names, max_size=2))
    def commit(self, data: st.DataObject, puts: dict[str, bytes], deletes: list[str]) -> None:
        puts = {key: value for key, value in puts.items() if not any(covers(name, key) for name in deletes)}
        owners = st.sampled_from([None, None, *self.model.sessions])
        writes: list[Write] = [Put(key, value, data.draw(owners)) for key, value in puts.items()]
        writes += [Delete(name) for name in deletes]
        writes = data.draw(st.permutations(writes))
        when = [Condition(key, self.token_of(data, key)) for key in data.draw(st.lists(keys, max_size=2, unique=True))]
        before = self.model.revision
        assert self.table.commit(writes, when) == self.model.commit(writes, when)
        self.note_changes(before)

    def note_changes(self, before: int) -> None:
        """Check that ``take_changed`` names exactly the keys that were put or deleted."""
        taken = self.table.take_changed()
        assert self.table.take_changed() == []
        assert set(taken) == self.model.touched_since(before)

    @rule(target=sessions, ttl=st.sampled_from([1.0, 3.0, 10.0]))
    def open_session(self, ttl: float) -> str:
        session = self.table.open_session(ttl, self.clock)
        assert session not in self.model.sessions
        self.model.sessions[session] = (ttl, self.clock + ttl)
        return session

    @rule(session=sessions)
    def keep_alive(self, session: str) -> None:
        alive = session in self.model.sessions
        assert self.table.keep_alive(session, self.clock) == alive
        if alive:
            ttl = self.model.sessions[session][0]
            self.model.sessions[session] = (ttl, self.clock + ttl)

    @rule(session=sessions, delay=st.sampled_from([0.0, 0.5, 2.0, 50.0]))
    def hasten(self, session: str, delay: float) -> None:
        self.table.hasten(session, self.clock + delay)
        if session in self.model.sessions:
            ttl, expires_at = self.model.sessions[session]
            self.model.sessions[session] = (ttl, min(expires_at, self.clock + delay))

    @rule(session=consumes(sessions))
    def end_session(self, session: str) -> None:
        before = self.model.revision
        alive = session in self.model.sessions
        assert self.table.end_session(session) == alive
        assert not self.table.end_session(session)
        if alive:
            self.model.end(session)
        self.note_changes(before)

    @rule(session=sessions)
    def put_under_a_session(self, session: str) -> None:
        """A session that has ended refuses the whole commit."""
        writes = [Put("a", b"x"), Put("b", b"y", session)]
        before = self.model.revision
        if session in self.model.sessions:
            assert self.table.commit(writes) == self.model.commit(writes, [])
        else:
            with pytest.raises(RendezvousSessionError, match="nothing was written"):
                self.table.commit(writes)
        self.note_changes(before)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock += seconds
        due_at = self.table.next_due()
        before = self.model.revision
        due = list(self.table.due(self.clock))
        expired = {session for session, (_, expires_at) in self.model.sessions.items() if expires_at <= self.clock}
        assert sorted(due) == sorted(expired)
        if expired:
            assert due_at is not None and due_at <= self.clock
        for session in due:
            assert self.table.end_session(session)
            self.model.end(session)
        self.note_changes(before)

    @rule()
    def restart(self) -> None:
        """A snapshot, through msgspec and back, is the same table; sessions get their full TTL."""
        snapshot = self.table.snapshot()
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Snapshot)
        assert decoded == snapshot
        self.table = Table.restore(decoded, self.clock)
        assert self.table.snapshot() == snapshot
        assert self.table.take_changed() == []
        self.model.sessions = {session: (ttl, self.clock + ttl) for session, (ttl, _) in self.model.sessions.items()}

    @rule(data=st.data(), watched=st.lists(names, min_size=1, max_size=3))
    def look_for_changes(self, data: st.DataObject, watched: list[str]) -> None:
        after = data.draw(st.integers(0, self.model.revision))
        listing = self.table.changes(watched, token(after))
        wanted = self.model.changed_since(watched, after)
        if listing is None:
            assert wanted == []
            return
        assert listing.token == token(self.model.revision)
        if listing.complete:
            assert self.model.deletions() > graves_module.MAX_GRAVES, "it started over though it remembers enough"
            assert listing.entries == tuple(self.everything(watched))
            return
        assert [(entry.key, entry.value) for entry in listing.entries] == wanted
        for entry in listing.entries:
            assert after < entry.token.revision <= self.model.revision
            if entry.value is not None:
                assert entry == self.model.now[entry.key]

    def everything(self, watched: Sequence[str]) -> Iterator[Entry]:
        for key in sorted(self.model.now):
            if any(covers(name, key) for name in watched):
                yield self.model.now[key]

    @rule(watched=st.lists(names, min_size=1, max_size=3), foreign=st.booleans())
    def look_anew(self, watched: list[str], foreign: bool) -> None:
        listing = self.table.changes(watched, Token("other", self.model.revision) if foreign else None)
        assert listing == Listing(tuple(self.everything(watched)), token(self.model.revision), complete=True)

    @rule(name=names, key=keys)
    def read(self, name: str, key: str) -> None:
        assert self.table.list(name) == Listing(tuple(self.model.under(name)), token(self.model.revision))
        assert self.table.get(key) == self.model.now.get(key)

    @precondition(lambda self: self.model.revision > 0)
    @rule()
    def nothing_is_new(self) -> None:
        assert self.table.changes(["a/", "a", "b"], self.table.token) is None

    @invariant()
    def same(self) -> None:
        assert self.table.token == token(self.model.revision)
        assert len(self.table) == len(self.model.now)
        assert self.table.sessions == len(self.model.sessions)
        next_due = self.table.next_due()
        if self.model.sessions:
            assert next_due is not None
            assert next_due <= min(expires_at for _, expires_at in self.model.sessions.values())
        else:
            assert next_due is None


def test_a_key_belongs_to_the_session_of_its_last_put() -> None:
    table = Table("epoch")
    old, new = table.open_session(5.0, 0.0), table.open_session(5.0, 0.0)
    table.commit([Put("key", b"old", old)])
    table.commit([Put("key", b"new", new)])
    table.end_session(old)
    entry = table.get("key")
    assert entry is not None
    assert entry.value == b"new"
    table.end_session(new)
    assert table.get("key") is None


@pytest.mark.parametrize("graves", [graves_module.MAX_GRAVES, 3, 1])
def test_a_table_is_what_the_model_is(graves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for few graves, watches must often start over."""
    monkeypatch.setattr(graves_module, "MAX_GRAVES", graves)
    run_state_machine_as_test(TableMachine, settings=settings(max_examples=50, stateful_step_count=40))


class TestCommitIds:
    """A commit that is sent again is answered, and not done again."""

    def test_a_won_commit_is_answered_once_done(self) -> None:
        table = Table(EPOCH)
        first = table.commit([Put("a", b"1")], [Condition("a", None)], CommitId("me", 1))
        table.commit([Put("a", b"2")])
        again = table.commit([Put("a", b"1")], [Condition("a", None)], CommitId("me", 1))
        assert again == first == Commit(True, token(1))
        assert table.get("a") == Entry("a", b"2", token(2))

    def test_clients_and_numbers_are_told_apart(self) -> None:
        table = Table(EPOCH)
        for number, client in ((1, "me"), (2, "me"), (1, "you")):
            table.commit([Put(f"{client}{number}", b"")], (), CommitId(client, number))
        assert len(table) == 3

    def test_a_lost_commit_may_win_when_it_is_sent_again(self) -> None:
        table = Table(EPOCH)
        table.commit([Put("a", b"")])
        assert not table.commit([Put("a", b"1")], [Condition("a", None)], CommitId("me", 1)).won
        table.commit([Delete("a")])
        assert table.commit([Put("a", b"1")], [Condition("a", None)], CommitId("me", 1)).won

    def test_a_commit_that_changed_nothing_at_the_very_beginning_is_known_again(self) -> None:
        table = Table(EPOCH)
        first = table.commit([Delete("a")], (), CommitId("me", 1))
        assert first == Commit(True, token(0))
        assert table.commit([Delete("a")], (), CommitId("me", 1)) == first
        assert table.snapshot().answers == {}, "it may be done again"

    def test_settled_answers_are_forgotten(self) -> None:
        table = Table(EPOCH)
        for number in range(1, 1000):
            table.commit([Put("a", b"")], (), CommitId("me", number, settled=max(0, number - 3)))
        assert len(table.snapshot().answers["me"]) <= 5

    def test_a_late_copy_of_a_settled_commit_does_nothing(self) -> None:
        """A connection that broke may still hold a commit that was answered over the next one."""
        table = Table(EPOCH)
        table.commit([Put("node", b"here")], (), CommitId("me", 1))
        table.commit([Delete("node")], (), CommitId("me", 2, settled=1))
        late = table.commit([Put("node", b"here")], (), CommitId("me", 1))
        assert (late.won, table.get("node")) == (False, None)
        table.commit([Put("other", b"")], (), CommitId("me", 4, settled=2))
        table = Table.restore(table.snapshot(), now=0)
        assert not table.commit([Put("node", b"here")], (), CommitId("me", 2)).won
        assert table.commit([Put("node", b"here")], (), CommitId("me", 3, settled=2)).won, "3 is not settled yet"

    def test_answers_survive_a_restart_and_end_with_forget(self) -> None:
        table = Table(EPOCH)
        first = table.commit([Put("a", b"1")], (), CommitId("me", 1))
        table = Table.restore(table.snapshot(), now=0)
        assert table.commit([Put("a", b"2")], (), CommitId("me", 1)) == first
        table.forget("me")
        table.forget("nobody")
        assert table.commit([Put("a", b"2")], (), CommitId("me", 1)).token == token(2)

    def test_only_what_has_won_is_remembered(self) -> None:
        table = Table(EPOCH)
        for number in (1, 2):
            table.commit([Put("a", b"")], (), CommitId("me", number))
        assert table.snapshot().answers == {"me": {1: 1, 2: 2}}
        assert not table.has_answer(CommitId("me", 3))
        assert table.has_answer(CommitId("me", 2))

    def test_a_client_may_claim_that_any_number_is_settled(self) -> None:
        """That costs what is remembered, not what is claimed."""
        table = Table(EPOCH)
        table.commit([Put("a", b"")], (), CommitId("me", 1))
        table.commit([Put("a", b"")], (), CommitId("me", 2, settled=10**12))
        assert table.snapshot().answers == {"me": {0: 10**12}}

    def test_what_is_remembered_counts(self) -> None:
        table = Table(EPOCH)
        table.commit([Put("a", b"")])
        sizes = [table.size]
        for number in range(1, 5):
            table.commit([Put("a", b"")], (), CommitId("me", number))
            sizes.append(table.size)
        steps = [after - before for before, after in pairwise(sizes)]
        assert steps[0] > steps[1] == steps[2] == steps[3] > 0, "a client costs, and each of its answers"
        assert Table.restore(table.snapshot(), now=0).size == table.size
        table.commit([Put("a", b"")], (), CommitId("me", 5, settled=4))
        assert table.size == sizes[2], "the last answer, and up to where all are settled"
        table.forget("me")
        table.forget("nobody")
        assert table.size == sizes[0]
        table.commit([Put("a", b"")], (), CommitId("somebody", 1))
        assert table.size == sizes[1] + len("somebody") - len("me")


class TestSessions:
    def test_ids_are_never_used_twice(self) -> None:
        table = Table(EPOCH)
        seen = {table.open_session(1, 0)}
        table.end_session(next(iter(seen)))
        table = Table.restore(table.snapshot(), now=0)
        assert table.open_session(1, 0) not in seen
        assert Table("another").open_session(1, 0) not in seen

    def test_who_is_not_looked_at_yet_can_be_kept_alive(self) -> None:
        table = Table(EPOCH)
        first, second, third = (table.open_session(5, now) for now in (0, 1, 2))
        assert list(table.due(10, 1)) == [first]
        assert table.keep_alive(second, 10)
        assert list(table.due(10, 5)) == [third]

    def test_a_session_that_is_hastened_again_is_due_once(self) -> None:
        table = Table(EPOCH)
        session = table.open_session(10, now=0)
        table.hasten(session, 5)
        table.keep_alive(session, 1)
        table.hasten(session, 5)
        assert list(table.due(5)) == [session]

    def test_only_a_hastened_end_can_be_put_off_and_only_within_the_ttl(self) -> None:
        table = Table(EPOCH)
        session, other = table.open_session(10, now=0), table.open_session(10, now=0)
        table.hasten(session, 2)
        assert not table.put_off(other, 11, 0)
        assert list(table.due(2)) == [session]
        assert table.put_off(session, 3, 7)
        assert list(table.due(2.9)) == []
        assert list(table.due(3)) == [session]
        assert not table.put_off(session, 4, 6.1)

    def test_no_more_sessions_are_looked_at_than_asked_for(self) -> None:
        table = Table(EPOCH)
        sessions = [table.open_session(5, now) for now in range(5)]
        assert list(table.due(10, 2)) == sessions[:2]
        assert list(table.due(10, 0)) == []
        assert list(table.due(10)) == sessions[2:]

    def test_haste_never_gives_more_time(self) -> None:
        table = Table(EPOCH)
        session = table.open_session(10, now=0)
        table.hasten(session, 11)
        table.hasten(session, 10)
        assert not table.put_off(session, 10, 0), "it is not hastened"
        assert list(table.due(10)) == [session]

    def test_a_hastened_session_can_be_resumed_and_has_what_it_had(self) -> None:
        table = Table(EPOCH)
        session = table.open_session(10, now=0)
        table.hasten(session, 3)
        table.hasten(session, 2)
        assert table.refreshed_at(session) == 0, "its owner has done nothing since"
        assert table.resume(session) is True
        assert list(table.due(9.9)) == []
        assert table.resume(session) is True, "there is nothing to undo"
        assert list(table.due(10)) == [session]
        table.end_session(session)
        assert table.resume(session) is False

    def test_a_sign_of_life_ends_the_haste(self) -> None:
        table = Table(EPOCH)
        session = table.open_session(10, now=0)
        table.hasten(session, 2)
        assert table.keep_alive(session, 1) is True
        assert table.refreshed_at(session) == 1
        assert not table.put_off(session, 3, 0), "it is no longer hastened"
        assert list(table.due(10.9)) == []
        assert list(table.due(11)) == [session]
        table.end_session(session)
        assert table.keep_alive(session, 12) is False
        assert table.refreshed_at(session) is None

    def test_a_session_can_be_put_off_to_the_last_moment_of_its_ttl(self) -> None:
        table = Table(EPOCH)
        session = table.open_session(10, now=0)
        table.hasten(session, 2)
        assert table.put_off(session, 4, 6) is True
        assert table.put_off(session, 4, 6.5) is False
        table.hasten(session, 3)
        assert list(table.due(3)) == [session]

    def test_what_is_open_and_what_it_holds(self) -> None:
        table = Table(EPOCH)
        session, other = table.open_session(10, now=0), table.open_session(5, now=0, owner="team")
        assert other.endswith("@team")
        assert table.open_sessions() == [(session, 10), (other, 5)]
        table.commit([Put("a", b"", session), Put("b", b"", session), Put("c", b"", other)])
        assert (table.keys_of(session), table.keys_of(other), table.keys_of("none")) == (2, 1, 0)
        table.commit([Put("a", b""), Delete("b"), Put("c", b"again", other)])
        assert (table.keys_of(session), table.keys_of(other)) == (0, 1)
        assert table.has_session(session) is True
        assert table.end_session(session) is True
        assert table.has_session(session) is False
        assert table.end_session(session) is False

    def test_keep_alives_do_not_fill_the_queue_of_expiries(self) -> None:
        table = Table(EPOCH)
        sessions = [table.open_session(5, now=0) for _ in range(10)]
        for now in range(1, 1000):
            for session in sessions:
                table.keep_alive(session, now)
            assert not table.due(now)
            assert len(table._expiries) <= 20

    def test_all_keys_of_a_session_go_under_one_revision(self) -> None:
        table = Table(EPOCH)
        session = table.open_session(5, now=0)
        table.commit([Put("a", b"", session), Put("b/c", b"", session), Put("d", b"")])
        table.end_session(session)
        listing = table.changes(["a", "b/", "d"], token(1))
        assert listing is not None
        assert listing.entries == (Entry("a", None, token(2)), Entry("b/c", None, token(2)))

    def test_a_session_without_keys_ends_without_a_revision(self) -> None:
        table = Table(EPOCH)
        table.end_session(table.open_session(5, now=0))
        assert table.revision == 0


def test_a_snapshot_is_a_value_and_plain_lists_when_it_is_written() -> None:
    """Logs on disk are read by later versions."""
    table = Table(EPOCH)
    session = table.open_session(5, now=0)
    table.commit([Put("a", b"1", session), Put("b", b"")], (), CommitId("me", 1))
    table.commit([Delete("b")])
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(table.snapshot()), strict=False)
    assert isinstance(written, list)
    assert written[:4] == [EPOCH, 2, 0, 1]
    assert written[5:] == [[["b", 2]], [[session, 5]], {"me": {1: 1}}, {}]
    assert msgspec.to_builtins(CommitId("me", 2, 1)) == ["me", 2, 1]
    for value in (table.snapshot(), CommitId("me", 1)):
        with pytest.raises(AttributeError):
            setattr(value, value.__struct_fields__[0], "other")


class TestUsage:
    """Who has how much: accounts of runs, and sums for the scopes of restricted secrets."""

    def filled(self) -> Table:
        table = Table(EPOCH)
        table.commit([Put("ns/a-1/nodes/n", b"xx"), Put("ns/a-1/rounds/1/kv/k", b"xxx"), Put("ns/b/nodes/n", b"")])
        table.open_session(5, now=0, owner="ns/a-")
        return table

    def test_a_run_has_records_and_data(self) -> None:
        has = self.filled().usage.of("ns/a-1")
        assert (has.keys, has.data_keys, has.sessions) == (2, 1, 0)
        assert 0 < has.data_bytes < has.bytes

    def test_a_scope_has_its_runs_and_its_sessions_from_when_it_is_asked_for(self) -> None:
        table = self.filled()
        scope, run = table.usage.of_scope("ns/a-"), table.usage.of("ns/a-1")
        assert (scope.keys, scope.data_keys, scope.data_bytes, scope.sessions) == (2, 1, run.data_bytes, 1)
        assert scope.bytes == run.bytes + table.usage.of("@ns/a-").bytes
        before = scope.bytes
        table.commit([Put("ns/a-2/nodes/n", b""), Put("ns/a-1/nodes/m", b"")])
        table.open_session(5, now=0, owner="ns/a-")
        assert (scope.keys, scope.sessions) == (4, 2)
        assert scope.bytes > before
        table.commit([Delete("ns/b/")])
        assert scope.keys == 4
        assert table.usage.of_scope("ns/a-") is scope

    def test_sums_of_many_scopes_are_made_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(usage_module, "MAX_SCOPES", 2)
        table = self.filled()
        old = table.usage.of_scope("ns/a-")
        for scope in ("ns/b", "ns/c"):
            table.usage.of_scope(scope)
        new = table.usage.of_scope("ns/a-")
        assert new is not old
        table.commit([Put("ns/a-1/nodes/m", b"")])
        assert (old.keys, new.keys) == (2, 3), "nobody counts for the old one"

    def test_who_has_nothing_left_has_no_account(self) -> None:
        table = self.filled()
        assert table.usage.largest()[0] == "ns/a-1"
        table.commit([Delete("ns/")])
        assert table.usage.largest()[0] == "@ns/a-"
        assert table.end_session(table.open_sessions()[0][0])
        assert table.usage.largest()[0] == ""

    def test_longer_names_cost_more_once_for_each_segment(self) -> None:
        assert cost_of_key("ab") == cost_of_key("a") + 1
        assert cost_of_key("a/bc") == cost_of_key("a/b") + 2
        table = Table(EPOCH)
        sizes = [0]
        for owner in ("a", "abc"):
            table.open_session(5, now=0, owner=owner)
            sizes.append(table.size)
        assert sizes[2] - sizes[1] == sizes[1] + 2


class TestRevisions:
    def test_a_table_can_start_later(self) -> None:
        table = Table(EPOCH, revision=7)
        assert table.commit([Put("a", b"")]).revision == 8
        assert table.changes(["a"], token(3)) == table.changes(["a"], None), "it cannot tell what was before"

    def test_raising_the_revision(self) -> None:
        table = Table(EPOCH)
        table.raise_revision(100)
        table.raise_revision(50)
        assert table.commit([Put("a", b"")]).revision == 101

    def test_what_changes_nothing_has_no_revision(self) -> None:
        table = Table(EPOCH)
        for writes in ([], [Delete("a")], [Delete("a/"), Delete("b")]):
            assert table.commit(writes) == Commit(True, token(0))

    def test_a_put_of_the_same_value_is_a_change(self) -> None:
        table = Table(EPOCH)
        assert table.commit([Put("a", b"")]).token != table.commit([Put("a", b"")]).token

    def test_a_put_makes_a_key_the_newest_of_its_subtree(self) -> None:
        table = Table(EPOCH)
        for key in ("a/1", "a/2", "a/3", "a/1"):
            table.commit([Put(key, b"")])
        newest = Listing((Entry("a/1", b"", token(4)),), token(4), complete=False)
        assert table.changes(["a/"], token(3)) == newest
        assert Table.restore(table.snapshot(), now=0).changes(["a/"], token(3)) == newest
        everything = table.changes(["a/"], None)
        assert everything is not None
        assert [entry.key for entry in everything.entries] == ["a/1", "a/2", "a/3"]

    def test_what_is_put_again_was_not_deleted(self) -> None:
        table = Table(EPOCH)
        for write in (Put("a/1", b""), Delete("a/1"), Put("a/1", b"again")):
            table.commit([write])
        assert table.changes(["a/"], token(0)) == Listing((Entry("a/1", b"again", token(3)),), token(3), complete=False)
        assert table.snapshot().graves == ()

    def test_what_is_kept_counts_until_it_is_gone(self) -> None:
        table = Table(EPOCH)
        session = table.open_session(5, now=0)
        sizes = [0, table.size]
        for write in (Put("a", b""), Put("a", b"longer"), Put("a", b"longer", session), Put("b/c", b"")):
            table.commit([write])
            sizes.append(table.size)
        assert sizes == sorted(set(sizes)), "each of these takes more"
        assert (table.usage.all.sessions, table.usage.all.keys) == (1, 2)
        assert Table.restore(table.snapshot(), now=0).size == table.size
        table.commit([Delete("b/")])
        assert table.size == sizes[-2]
        table.end_session(session)
        assert (table.size, table.usage.all.sessions, table.usage.all.keys) == (0, 0, 0)

    def test_whether_something_has_changed(self) -> None:
        table = Table(EPOCH)
        assert table.has_changed is False
        table.commit([Put("a", b"")])
        assert table.has_changed is True
        table.take_changed()
        assert table.has_changed is False

    def test_whether_there_may_be_more_than_so_many(self) -> None:
        table = Table(EPOCH)
        table.commit([Put(key, b"") for key in ("a/1", "a/2", "a/3", "b", "c")])
        assert table.has_more(2, ["a/"])
        assert not table.has_more(3, ["a/"])
        assert table.has_more(3, ["a/", "b"])
        assert not table.has_more(4, ["a/", "b"])
        assert not table.has_more(2, ["b", "c"])
        assert table.has_more(5, ["a/", "a/", "b"]) is False, "there are no more than that"

    def test_graves_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(graves_module, "MAX_GRAVES", 10)
        table = Table(EPOCH)
        for number in range(100):
            table.commit([Put(f"a/{number}", b"")])
        table.commit([Delete(f"a/{number}") for number in range(20)])
        assert (len(table.snapshot().graves), table.snapshot().horizon) == (10, 101)
        table.commit([Delete("a/")])
        assert (len(table.snapshot().graves), table.snapshot().horizon) == (0, 102), "none of them would be looked at"
        listing: Any = table.changes(["a/"], token(100))
        assert listing == Listing((), token(102), complete=True), "the deletions are no longer known"
        table.commit([Put("a/new", b"")])
        assert table.changes(["a/"], token(102)) == Listing(
            (Entry("a/new", b"", token(103)),), token(103), complete=False
        )

    def test_a_restored_table_remembers_its_deletions(self) -> None:
        table = Table(EPOCH)
        table.commit([Put("a/1", b""), Put("a/2", b"")])
        table.commit([Delete("a/1")])
        table.commit([Delete("a/2")])
        table = Table.restore(table.snapshot(), now=0)
        assert table.changes(["a/"], token(1)) == Listing(
            (Entry("a/1", None, token(2)), Entry("a/2", None, token(3))), token(3), complete=False
        )
        assert table.changes(["a/"], token(2)) == Listing((Entry("a/2", None, token(3)),), token(3), complete=False)

    @pytest.mark.parametrize("restored", [False, True])
    def test_graves_are_bounded_by_what_they_cost(self, restored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many as fit exactly, also after all were dropped at once, and after a restart."""
        monkeypatch.setattr(graves_module, "MAX_GRAVES", 4)
        monkeypatch.setattr(graves_module, "MAX_BYTES", 3 * cost_of_key("a/0"))
        table = Table(EPOCH)
        for number in range(9):
            table.commit([Put(f"a/{number}", b""), Put(f"b/{number}", b"")])
        table.commit([Delete(f"a/{number}") for number in range(2)])
        table.commit([Delete("b/")])
        assert table.snapshot().graves == (), "none of so many is remembered"
        table.commit([Put("a/2", b"")])
        table.commit([Delete("a/2")])
        if restored:
            table = Table.restore(table.snapshot(), now=0)
        table.commit([Delete("a/7"), Delete("a/8")])
        assert [key for key, _ in table.snapshot().graves] == ["a/2", "a/7", "a/8"]
        table.commit([Put("a/9", b"")])
        table.commit([Delete("a/9")])
        assert [key for key, _ in table.snapshot().graves] == ["a/7", "a/8", "a/9"]

    def test_repr(self) -> None:
        table = Table(EPOCH)
        table.commit([Put("a", b"")])
        table.open_session(1, 0)
        assert repr(table) == "<Table epoch:1 keys=1 sessions=1>"


def test_a_session_that_has_ended_is_not_due() -> None:
    table = Table("epoch")
    ended, due = table.open_session(5.0, 0.0), table.open_session(5.0, 0.0)
    assert table.end_session(ended)
    assert table.due(5.0) == [due]
