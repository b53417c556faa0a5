"""The task over one value, in virtual time: who is ended when, what is folded, and a store that misbehaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends import Backend
from rendezvous_async.backends.base import Condition, Delete, Put, Session
from rendezvous_async.backends.cas import CasDriver, FencedValue
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rendezvous_async.testing.conformance.check import WatchReader, increment
from rendezvous_async.testing.loop.clock import run
from tests.backends.cas.values import Faults, FaultyValue, MemoryValue

TTL = 5.0


def client(value: FencedValue, seed: int = 1, **options: Any) -> Backend:
    return Backend(CasDriver(value, rng=Random(seed), **options), "run")


def slow(value: MemoryValue, latency: float = 0.005) -> FaultyValue:
    return FaultyValue(value, Random(2), 0.0, latency)


async def keep(session: Session) -> None:
    while True:
        await session.keep_alive()
        await anyio.sleep(1.0)


@asynccontextmanager
async def meanwhile(*tasks: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(partial(_same, task))
        yield
        group.cancel_scope.cancel()


async def _same(task: Coroutine[Any, Any, None]) -> None:
    await task


# Liveness


def test_a_silent_session_ends_after_its_ttl_and_little_more() -> None:
    async def main() -> None:
        value = MemoryValue()
        async with client(slow(value)) as owner, client(slow(value), 2) as other:
            session = await owner.open_session(TTL)
            await owner.commit(Put("node", b"", session.id))
            async with other.watch("node") as watch:
                reader = WatchReader(watch, "node")
                async with meanwhile(keep(session)):
                    await anyio.sleep(60)
                await reader.until("the node", lambda view: "node" in view)
                last = session.deadline - 0.75 * TTL
                await reader.until("its end", lambda view: not view)
                assert TTL <= clock.now() - last <= 1.5 * TTL
            assert session.lost.is_set(), "its owner is told"

    run(main, seed=3)


def test_a_process_alone_is_not_ended_by_itself_while_it_cannot_reach_the_store() -> None:
    """It was not seen to be silent: nobody looked."""

    async def main() -> None:
        value = MemoryValue()
        way = Switch(value)
        async with client(way) as owner:
            session = await owner.open_session(TTL)
            await session.keep_alive()
            way.is_broken = True
            await anyio.sleep(3600)
            way.is_broken = False
            await session.keep_alive()
            assert not session.lost.is_set()

    run(main, seed=3)


def test_only_those_with_reason_look_at_the_value() -> None:
    """At rest, with a watch: twice a second. With nothing to look after: not at all."""

    async def main() -> None:
        value = MemoryValue()
        async with client(value) as backend:
            await backend.commit(Put("a", b""))
            calls = value.calls
            await anyio.sleep(3600)
            assert value.calls == calls
            async with backend.watch("a") as watch:
                await anext(watch)
                await anyio.sleep(60)
                calls = value.calls
                await anyio.sleep(60)
                assert 100 <= value.calls - calls <= 130

    run(main, seed=3)


def test_news_comes_soon_after_news_and_within_half_a_second_at_rest() -> None:
    async def main() -> None:
        value = MemoryValue()
        async with client(value) as writer, client(value, 2) as backend, backend.watch("a") as watch:
            reader = WatchReader(watch, "a")
            await reader.read()
            for rest, most in ((60.0, 0.51), (0.02, 0.02), (0.02, 0.02), (1.0, 0.12)):
                await anyio.sleep(rest)
                began = clock.now()
                await writer.commit(Put("a", b"%f" % began))
                await reader.until_value("a", b"%f" % began)
                assert clock.now() - began <= most

    run(main, seed=3)


# Folding


def test_what_comes_at_the_same_time_is_one_write() -> None:
    async def main() -> None:
        value = MemoryValue()
        async with client(slow(value)) as backend:
            await backend.commit(Put("a", b""))
            before = value.writes
            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(backend.commit, Put(f"key{number}", b""))
            assert value.writes - before <= 2
            assert len((await backend.list("")).entries) == 101

    run(main, seed=3)


def test_the_keep_alives_of_a_process_are_folded() -> None:
    """Forty sessions with an interval of a second, each at its own moment: at most four writes a second."""

    async def main() -> None:
        value = MemoryValue()
        async with client(slow(value)) as backend, anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(keep, await backend.open_session(TTL))
                await anyio.sleep(0.025)
            before = value.writes
            await anyio.sleep(60)
            assert value.writes - before <= 60 * 4.1
            group.cancel_scope.cancel()

    run(main, seed=3)


def test_many_contend_and_nobody_starves() -> None:
    """Sixteen clients of a store that takes some milliseconds: all increments are made, in bounded time."""

    async def main() -> None:
        value = MemoryValue()
        async with client(slow(value, 0.004)) as first:
            async with anyio.create_task_group() as group:
                for number in range(16):
                    group.start_soon(one_of_many, slow(value, 0.004), number)
            entry = await first.get("counter")
            assert entry is not None
            assert entry.value == b"64"
            assert clock.now() < 10

    async def one_of_many(value: FaultyValue, number: int) -> None:
        async with client(value, number) as backend:
            for _ in range(4):
                await increment(backend, "counter")

    run(main, seed=3)


# A store that misbehaves


class Switch(MemoryValue):
    """A way to a value that can be broken, for reads, for writes, or for the answers to writes."""

    name = "switch"

    def __init__(self, value: MemoryValue) -> None:
        super().__init__()
        self.inner = value
        self.is_broken = False
        self.is_deaf = False

    async def read(self) -> tuple[bytes, int] | None:
        if self.is_broken:
            raise Faults("it is broken")
        return await self.inner.read()

    async def write(self, data: bytes, token: int | None) -> Any:
        if self.is_broken:
            raise Faults("it is broken")
        answer = await self.inner.write(data, token)
        if self.is_deaf:
            raise Faults("the answer is lost")
        return answer


def test_a_write_whose_answers_are_lost_is_made_once() -> None:
    async def main() -> None:
        value = MemoryValue()
        way = Switch(value)
        async with client(way) as backend, client(value, 2) as other:
            await other.commit(Put("counter", b"0"))
            way.is_deaf = True
            async with anyio.create_task_group() as group:
                group.start_soon(increment, backend, "counter")
                await anyio.sleep(0.5)
                for _ in range(5):
                    await increment(other, "counter")
                way.is_deaf = False
            entry = await other.get("counter")
            assert entry is not None
            assert entry.value == b"6"

    run(main, seed=3)


def test_after_too_many_other_writes_nobody_knows() -> None:
    async def main() -> None:
        value = MemoryValue()
        way = Switch(value)
        async with client(way) as backend, client(value, 2) as other:
            await other.commit(Put("a", b""))
            await backend.get("a")
            way.is_deaf = True
            async with anyio.create_task_group() as group:
                group.start_soon(expect_doubt, backend)
                await anyio.sleep(0.5)
                for number in range(70):
                    await other.commit(Put("b", b"%d" % number))
                way.is_deaf = False

    async def expect_doubt(backend: Backend) -> None:
        with pytest.raises(RendezvousConnectionError, match="nobody knows"):
            await backend.commit(Put("a", b"1"))

    run(main, seed=3)


def test_a_store_that_is_away_is_named_in_the_error() -> None:
    async def main() -> None:
        way = Switch(MemoryValue())
        way.is_broken = True
        async with client(way, timeout=3.0) as backend:
            for call in (
                partial(backend.get, "a"),
                partial(backend.commit, Put("a", b"")),
                lambda: backend.open_session(5),
            ):
                began = clock.now()
                with pytest.raises(RendezvousConnectionError, match=r"no answer from switch in 3 s: .*it is broken"):
                    await call()
                assert clock.now() - began == pytest.approx(3.0)
            assert "it is broken" in (backend.trouble or "")
            way.is_broken = False
            await backend.commit(Put("a", b""))
            assert backend.trouble is None

    run(main, seed=3)


def test_a_session_that_was_opened_for_nobody_is_ended() -> None:
    """Its opening was made, the answer was lost, and its owner has given up."""

    async def main() -> None:
        value = MemoryValue()
        way = Switch(value)
        async with client(way, timeout=1.0) as backend, client(value, 2) as other:
            await other.commit(Put("a", b""))
            way.is_deaf = True
            with pytest.raises(RendezvousConnectionError):
                await backend.open_session(3600)
            way.is_deaf = False
            await anyio.sleep(5)
            assert await sessions_in(other) == 0

    run(main, seed=3)


def test_a_session_whose_opening_was_given_up_before_its_answer_is_ended() -> None:
    """However far the write was: not begun, made, or answered."""

    async def main() -> None:
        value = MemoryValue()
        async with client(slow(value, latency=1.0)) as backend, client(value, 2) as other:
            await backend.commit(Put("a", b""))
            opened = 0
            for moment in range(1, 60):
                with anyio.move_on_after(0.05 * moment):
                    await backend.open_session(3600)
                    opened += 1
            assert 0 < opened < 50, "some were given up, and some were not"
            await anyio.sleep(10)
            assert await sessions_in(other) == opened

    run(main, seed=3)


async def sessions_in(backend: Backend) -> int:
    assert isinstance(backend.driver, CasDriver)
    await backend.list("")
    return backend.driver.sessions


def test_what_is_too_much_is_refused_and_the_rest_goes_on() -> None:
    async def main() -> None:
        value = MemoryValue()
        async with client(slow(value), limit=20_000) as backend:
            session = await backend.open_session(TTL)
            await backend.commit(Put("a", b"x" * 9_000))
            outcomes: list[str] = []

            async def put(key: str, size: int) -> None:
                try:
                    await backend.commit(Put(key, b"x" * size))
                    outcomes.append(key)
                except RendezvousError as error:
                    assert "is full" in str(error)
                    assert "at most 20000" in str(error)

            async with anyio.create_task_group() as group:
                for key, size in (("small", 10), ("large", 9_900), ("large too", 9_900), ("small too", 10)):
                    group.start_soon(put, key, size)
            assert "small" in outcomes
            assert "small too" in outcomes
            assert len(outcomes) == 3
            await session.keep_alive()
            await backend.commit(Delete(""))
            await put("large again", 9_900)
            assert "large again" in outcomes
            with pytest.raises(ValueError, match="at most 10000 bytes"):
                await backend.commit(Put("huge", b"x" * 10_001))

    run(main, seed=3)


def test_a_value_that_others_wrote_is_an_error_until_it_is_gone() -> None:
    async def main() -> None:
        value = MemoryValue()
        async with client(value) as backend:
            await backend.commit(Put("a", b""))
            watch = backend.watch("a")
            await anext(watch)
            value.swap(b"something else", value.writes)
            with pytest.raises(RendezvousStateError, match="not written by rendezvous_async"):
                await backend.commit(Put("a", b"1"))
            with pytest.raises(RendezvousStateError):
                await anext(watch)
            assert value.data == b"something else", "it is left as it is"
            value.data = None
            await backend.commit(Put("a", b"2"))
            assert [entry.value for entry in (await anext(watch)).entries] == [b"2"]

    run(main, seed=3)


def test_a_value_that_was_deleted_begins_another_history() -> None:
    async def main() -> None:
        value = MemoryValue()
        async with client(value) as backend, client(value, 2) as other:
            session = await backend.open_session(TTL)
            old = await backend.commit(Put("a", b"1"))
            value.data = None
            new = await other.commit(Put("a", b"1"))
            assert new.token.epoch != old.token.epoch
            lost = await backend.commit(Put("a", b"2"), when=[Condition("a", old.token)])
            assert not lost.won
            assert session.lost.is_set()

    run(main, seed=3)


def test_a_store_that_went_back_begins_another_history() -> None:
    """Whoever saw what was lost notices, and no token of the lost writes ever counts again."""

    async def main() -> None:
        value = MemoryValue()
        async with client(value) as backend:
            await backend.commit(Put("kept", b"1"))
            backup = value.data
            lost = await backend.commit(Put("lost", b"1"))
            value.data = backup
            value.writes += 1
            assert await backend.get("lost") is None
            commit = await backend.commit(Put("new", b"1"))
            assert commit.token.epoch != lost.token.epoch
            assert {entry.key for entry in (await backend.list("")).entries} == {"kept", "new"}

    run(main, seed=3)


def test_an_old_copy_that_is_read_changes_nothing() -> None:
    """The write that would begin another history loses, and brings what really stands there."""

    async def main() -> None:
        value = MemoryValue()
        way = Stale(value)
        async with client(way) as backend:
            await backend.commit(Put("a", b"1"))
            way.copy = await value.read()
            commit = await backend.commit(Put("a", b"2"))
            entry = await backend.get("a")
            assert way.copy is None, "the old copy was read"
            assert entry is not None
            assert (entry.value, entry.token) == (b"2", commit.token)

    run(main, seed=3)


class Stale(Switch):
    """A way to a value that reads an old copy once."""

    def __init__(self, value: MemoryValue) -> None:
        super().__init__(value)
        self.copy: tuple[bytes, int] | None = None

    async def read(self) -> tuple[bytes, int] | None:
        copy, self.copy = self.copy, None
        return copy or await super().read()
