"""The conformance kit catches what it is there for: each backend here breaks one promise, and the kit names it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.aio.signal import Latch
from rendezvous_async.backends.base import (
    Backend,
    Commit,
    Condition,
    Delete,
    Driver,
    Entry,
    Granted,
    Listing,
    Opened,
    Opening,
    Put,
    Session,
    Sink,
    Subscription,
    Token,
    Watch,
    Write,
    owned,
)
from rendezvous_async.backends.classic import close_envelope
from rendezvous_async.backends.memory import MemoryDriver, MemoryServer
from rendezvous_async.backends.table.table import Table
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check, Make, check_backend
from rendezvous_async.testing.loop.clock import run

BY_NAME = {check.__name__: check for check in BACKEND_CHECKS}


def maker(
    driver: type[MemoryDriver] = MemoryDriver, table: type[Table] = Table, backend: type[Backend] = Backend
) -> Make:
    """Return a ``make`` for one store that is made of these classes."""
    server = MemoryServer()
    server.table = table("memory")

    @asynccontextmanager
    async def make(run_id: str) -> AsyncIterator[Backend]:
        async with backend(driver(server), run_id) as client:
            yield client

    return make


def test_a_good_backend_passes() -> None:
    run(check_backend, maker(), seed=1)


def test_checks_are_named_and_say_what_they_promise() -> None:
    assert len(BACKEND_CHECKS) == len(BY_NAME) >= 40
    for check in BACKEND_CHECKS:
        assert re.fullmatch(r"[a-z_]+", check.__name__)
        assert check.promise.endswith("."), check
        assert repr(check) == f"<Check {check.__name__}>"


def test_the_error_names_the_check_the_promise_and_what_was_seen() -> None:
    class Forgetful(MemoryDriver):
        async def get(self, key: str) -> Entry | None:
            return None

    with pytest.raises(AssertionError) as caught:
        run(check_backend, maker(Forgetful))
    assert str(caught.value).startswith("a_put_is_read_back failed: get() and list() return value, token and session")
    assert "get() of a key that was put" in str(caught.value)


def test_an_error_of_the_backend_is_a_broken_promise() -> None:
    class Broken(MemoryDriver):
        async def list(self, name: str) -> Listing:
            raise LookupError("out of order")

    with pytest.raises(AssertionError, match="LookupError: out of order") as caught:
        run(check_backend, maker(Broken))
    assert isinstance(caught.value.__cause__, LookupError)


def test_nothing_is_left_behind() -> None:
    server = MemoryServer()

    @asynccontextmanager
    async def make(run_id: str) -> AsyncIterator[Backend]:
        async with Backend(MemoryDriver(server), run_id) as client:
            yield client

    run(check_backend, make)
    assert len(server.table) == 0


class IgnoresConditions(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        return await super().commit(writes, ())


class ChecksOnlyTheFirstCondition(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        return await super().commit(writes, when[:1])


class ForgetsEpochs(Table):
    def _holds(self, condition: Condition) -> bool:
        entry = self._entries.get(condition.key)
        if condition.token is None or entry is None:
            return super()._holds(condition)
        return entry.token.revision == condition.token.revision


class ComparesAfterAPause(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        table = await self.table()
        commit = table.commit((), when)
        await checkpoint()
        return await super().commit(writes, ()) if commit.won else commit


class OneWriteAtATime(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        commit = await super().commit(writes[:1], when)
        for write in writes[1:] if commit.won else ():
            commit = await super().commit((write,), ())
        return commit


class DoesNotSayWhatIsThere(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        commit = await super().commit(writes, when)
        return Commit(commit.won, commit.token)


class ReusesRevisions(Table):
    def commit(self, writes: Sequence[Write], when: object = (), id: object = None) -> Commit:
        commit = super().commit(writes, when, id)  # type: ignore[arg-type]
        if commit.won and writes and all(isinstance(write, Put) for write in writes):
            self.revision -= self.revision % 2
        return commit


class ReadsFromACache(MemoryDriver):
    async def get(self, key: str) -> Entry | None:
        cache = self.__dict__.setdefault("cache", {})
        if key not in cache:
            cache[key] = await super().get(key)
        entry: Entry | None = cache[key]
        return entry


class ListsSiblings(Table):
    def _keys(self, name: str) -> list[str]:
        return sorted(key for key in self._entries if key.startswith(name.rstrip("/")))


class DeletesOneKeyOnly(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        return await super().commit(tuple(w for w in writes if not isinstance(w, Delete) or w.name[-1] != "/"), when)


class DoesNotEncodeRuns(Backend):
    def __init__(self, driver: Driver, run_id: str) -> None:
        super().__init__(driver, run_id)
        self.prefix = f"{run_id}/"


class PercentDecodesKeys(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        writes = tuple(
            Put(write.key.replace("%2F", "/"), write.value, write.session) if isinstance(write, Put) else write
            for write in writes
        )
        return await super().commit(writes, when)


class PromisesTooMuch(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        if len(writes) > 128:
            raise ValueError("no more than 128")
        return await super().commit(writes, when)


class ChecksNoSizes(Backend):
    def _check_size(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> None:
        pass


class KeepsKeysOfTheFirstSession(Table):
    def _put(self, entry: Entry) -> None:
        old = self._entries.get(entry.key)
        super()._put(entry)
        if old is not None and old.session is not None:
            self._sessions[old.session].keys.add(entry.key)

    def _delete(self, key: str, cause: str = "") -> None:
        if key in self._entries:
            super()._delete(key, cause)


class NeverExpires(Table):
    def due(self, now: float, most: int = 0) -> Sequence[str]:
        super().due(now)
        return []


class ExpiresEarly(MemoryDriver):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        granted = await super().open(msgspec.structs.replace(opening, ttl=opening.ttl / 2), deadline)
        granted.session.ttl = opening.ttl
        granted.session.deadline += 0.75 * opening.ttl / 2
        return granted


class IgnoresKeepAlives(Table):
    def keep_alive(self, session: str, now: float) -> bool:
        return session in self._sessions


class AnswersDeadSessions(Table):
    def keep_alive(self, session: str, now: float) -> bool:
        super().keep_alive(session, now)
        return True


class LosesQuietly(MemoryDriver):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        granted = await super().open(opening, deadline)

        class Deaf(Session):
            async def keep_alive(self, deadline: Deadline | None = None) -> None:
                try:
                    await super().keep_alive(deadline)
                except RendezvousSessionError:
                    self.lost = Latch()
                    raise

        granted.session.__class__ = Deaf
        return granted


class WritesForDeadSessions(Table):
    def commit(self, writes: Sequence[Write], when: object = (), id: object = None) -> Commit:
        alive = [
            Put(write.key, write.value) if isinstance(write, Put) and write.session not in self._sessions else write
            for write in writes
        ]
        return super().commit(alive, when, id)  # type: ignore[arg-type]


class DeadlineFromTheAnswer(MemoryDriver):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        granted = await super().open(opening, deadline)
        granted.session.deadline += 0.25 * opening.ttl
        return granted


class HidesDeletions(Table):
    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        listing = super().changes(names, after)
        if listing is None or listing.complete:
            return listing
        entries = tuple(entry for entry in listing.entries if entry.value is not None)
        return Listing(entries, listing.token, complete=False) if entries else None


class AlwaysStartsOver(Table):
    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        listing = super().changes(names, after)
        return None if listing is None else super().changes(names, None)


class StartsAtNow(Table):
    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        return super().changes(names, self.token if after is None else after)


class ForgetsToStopWaiting(MemoryDriver):
    async def aclose(self) -> None:
        self._closed = True


class CountsFromTheCommit(Table):
    """A listing that says it is as of its newest entry's token, which hides later deletions of a resumed watch."""

    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        listing = super().changes(names, after)
        if listing is None or listing.complete or not listing.entries:
            return listing
        return Listing(listing.entries[:1], listing.token, complete=False)


class Queue:
    """A sink that hands on what it is given one by one, however much there is."""

    def __init__(self, sink: Sink) -> None:
        self.fail = sink.fail
        self._sink = sink
        self._free_at = 0.0

    def take(self, listing: Listing) -> None:
        self._free_at = max(self._free_at, anyio.current_time()) + 0.01
        asyncio.get_running_loop().call_at(self._free_at, self._sink.take, listing)


class Queues(MemoryDriver):
    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        return super().watch(names, after, Queue(sink))


class HastyWatch(Watch):
    async def __anext__(self) -> Listing:
        listing = await super().__anext__()
        await checkpoint()
        return listing


class LosesWhatACancelledReadHad(Backend):
    def watch(self, *names: str, after: Token | None = None) -> Watch:
        watch = super().watch(*names, after=after)
        watch.__class__ = HastyWatch
        return watch


class CannotBeCancelled(MemoryDriver):
    async def get(self, key: str) -> Entry | None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(100)
        return await super().get(key)


class BreaksWhenCancelled(MemoryDriver):
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        try:
            return await super().commit(writes, when)
        except anyio.get_cancelled_exc_class():
            self._closed = True
            raise


class LeaksCancellation(MemoryDriver):
    async def list(self, name: str) -> Listing:
        """As grpc does: a cancellation that no longer says which scope it is of."""
        listing = None
        with contextlib.suppress(anyio.get_cancelled_exc_class()):
            listing = await super().list(name)
        if listing is None:
            raise anyio.get_cancelled_exc_class()
        return listing


class TrustsItsState(Backend):
    async def get_state(self) -> tuple[bytes, Token] | None:
        entry = await self.get("classic")
        return None if entry is None or entry.value is None else (entry.value[9:], entry.token)


class CreatesWithAnyToken(Backend):
    async def set_state(self, state: bytes, token: object = None) -> tuple[bytes, Token, bool] | None:
        return await super().set_state(state, token if isinstance(token, Token) else None)


class SetsStateInTwoSteps(Backend):
    async def set_state(self, state: bytes, token: object = None) -> tuple[bytes, Token, bool] | None:
        current = await self.get_state()
        if (None if current is None else current[1]) == token:
            await self.commit(Put("classic", close_envelope(state)))
            current = await self.get_state()
            assert current is not None
            return (*current, True)
        return None if current is None else (*current, False)


class OpensWithNobodysKeys(MemoryDriver):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        writes = owned(opening.writes, "nobody's")
        return await super().open(msgspec.structs.replace(opening, writes=writes), deadline)


class OpensUnconditionally(MemoryDriver):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        return await super().open(msgspec.structs.replace(opening, when=()), deadline)


class ForgetsWhatWasGivenUp(MemoryDriver):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        granted = await super().open(opening, deadline)
        await checkpoint()
        return granted


class WatchesTheFutureOnly(MemoryDriver):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        token = self.server.table.token
        granted = await super().open(opening, deadline)
        if opening.sink is None:
            return granted
        return Granted(granted.session, granted.commit, self.watch(opening.names, token, opening.sink))


class GoesOnWithTheWatchThatWasGivenUp(MemoryDriver):
    """It takes the next opening for the same one again, and believes that what was pushed before was read."""

    given_up: Token | None = None

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        if opening.sink is None:
            return await super().open(opening, deadline)
        subscription = self.watch(opening.names, self.given_up, opening.sink)
        self.given_up = self.server.table.token
        granted = await super().open(opening, deadline)
        self.given_up = None
        return Granted(granted.session, granted.commit, subscription)


class NeverForgetsAWatch(Backend):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Opened:
        """The watch is this driver's own affair, and nobody closes it."""
        if opening.sink is not None:
            self.driver.watch(self._absolute_names(opening.names), None, Stripped(opening.sink, self.prefix))
        return await super().open(opening, deadline)


class Stripped:
    """Pushes on with the prefix taken off."""

    def __init__(self, sink: Sink, prefix: str) -> None:
        self.fail = sink.fail
        self._sink = sink
        self._prefix = prefix

    def take(self, listing: Listing) -> None:
        self._sink.take(listing.relative_to(self._prefix))


class LearnsNothing(Backend):
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Opened:
        opened = await super().open(opening, deadline)
        if opened.following is not None:
            opened.following.learn = lambda entries: None  # type: ignore[method-assign]
        return opened


Broken: TypeAlias = type[MemoryDriver] | type[Table] | type[Backend]

BROKEN: list[tuple[str, Broken]] = [
    ("create_if_absent", IgnoresConditions),
    ("a_commit_is_all_or_nothing", ChecksOnlyTheFirstCondition),
    ("only_the_current_token_wins", ForgetsEpochs),
    ("concurrent_increments_add_up", ComparesAfterAPause),
    ("no_reader_sees_half_a_commit", OneWriteAtATime),
    ("revisions_grow", OneWriteAtATime),
    ("create_if_absent", DoesNotSayWhatIsThere),
    ("revisions_grow", ReusesRevisions),
    ("reads_see_every_acknowledged_commit", ReadsFromACache),
    ("a_name_is_one_key_or_a_subtree", ListsSiblings),
    ("deleting_nothing_is_allowed", DeletesOneKeyOnly),
    ("runs_do_not_see_each_other", DoesNotEncodeRuns),
    ("odd_characters_are_just_characters", PercentDecodesKeys),
    ("the_limits_are_what_they_say", PromisesTooMuch),
    ("what_is_too_much_is_refused", ChecksNoSizes),
    ("a_key_belongs_to_the_session_of_its_last_put", KeepsKeysOfTheFirstSession),
    ("a_silent_session_expires", KeepsKeysOfTheFirstSession),
    ("a_silent_session_expires", NeverExpires),
    ("a_silent_session_expires", ExpiresEarly),
    ("keep_alives_hold_a_session", IgnoresKeepAlives),
    ("a_closed_session_takes_its_keys_along", AnswersDeadSessions),
    ("anyone_can_end_a_session", LosesQuietly),
    ("a_closed_session_takes_its_keys_along", WritesForDeadSessions),
    ("a_deadline_is_that_of_the_last_answered_keep_alive", DeadlineFromTheAnswer),
    ("a_watch_shows_changes_and_deletions", HidesDeletions),
    ("after_resumes_without_a_gap", AlwaysStartsOver),
    ("a_watch_begins_with_what_is_there", StartsAtNow),
    ("a_closed_backend_says_so", ForgetsToStopWaiting),
    ("after_resumes_without_a_gap", CountsFromTheCommit),
    ("no_reader_sees_half_a_commit", CountsFromTheCommit),
    ("a_slow_reader_gets_the_newest", Queues),
    ("a_cancelled_read_loses_nothing", LosesWhatACancelledReadHad),
    ("calls_can_be_cancelled", CannotBeCancelled),
    ("a_cancelled_commit_happened_or_not", BreaksWhenCancelled),
    ("calls_can_be_cancelled", LeaksCancellation),
    ("a_damaged_state_is_an_error", TrustsItsState),
    ("no_state_is_none", CreatesWithAnyToken),
    ("one_of_many_set_states_wins", SetsStateInTwoSteps),
    ("a_session_begins_with_its_first_commit", OpensWithNobodysKeys),
    ("a_session_begins_with_its_first_commit", OpensUnconditionally),
    ("a_session_that_is_given_up_leaves_nothing", ForgetsWhatWasGivenUp),
    ("a_session_begins_with_its_watch", WatchesTheFutureOnly),
    ("a_session_begins_with_its_watch", NeverForgetsAWatch),
    ("what_a_commit_tells_is_pushed_once", LearnsNothing),
    ("a_session_that_is_given_up_takes_its_watch_along", GoesOnWithTheWatchThatWasGivenUp),
    ("a_session_that_is_given_up_takes_its_watch_along", NeverForgetsAWatch),
]


@pytest.mark.parametrize(("name", "broken"), BROKEN, ids=[f"{broken.__name__}-{name}" for name, broken in BROKEN])
def test_a_broken_promise_is_caught(name: str, broken: Broken) -> None:
    if issubclass(broken, MemoryDriver):
        make = maker(driver=broken)
    else:
        make = maker(backend=broken) if issubclass(broken, Backend) else maker(table=broken)

    async def attempt(check: Check) -> None:
        await check(make)

    with pytest.raises(AssertionError, match=f"^{name} failed: "):
        run(attempt, BY_NAME[name], grace=0.1)


async def test_a_check_can_be_run_alone() -> None:
    await BY_NAME["create_if_absent"](maker())
