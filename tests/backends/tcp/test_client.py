"""What a client keeps when connections break: calls, sessions, watches; and what it says when it cannot."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio
import pytest

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import OUT_AFTER, OWN, Backend, Condition, Delete, Listing, Opening, Put
from rendezvous_async.backends.tcp import TcpServer, serve, wire
from rendezvous_async.backends.tcp.client import dialing
from rendezvous_async.backends.tcp.client.channel import Channel
from rendezvous_async.backends.tcp.client.dialing import Attempts, Backoff
from rendezvous_async.backends.tcp.client.link import Link
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.errors import RendezvousConnectionError, RendezvousSessionError
from rendezvous_async.settings import parse_endpoint
from rendezvous_async.testing.conformance.check import Pushed
from rendezvous_async.testing.proxy import Proxy
from tests.backends.tcp.support import ServerProcess, connected, driver_of, eventually, through_proxy
from tests.ports import free_port

WAIT = 10.0


@asynccontextmanager
async def behind_proxy(**options: Any) -> AsyncIterator[tuple[TcpServer, Proxy, Backend]]:
    async with (
        serve(port=0) as server,
        through_proxy(server) as proxy,
        connected(f"tcp://127.0.0.1:{proxy.port}", **options) as backend,
    ):
        yield server, proxy, backend


async def read(watch: AsyncIterator[Listing]) -> dict[str, bytes | None]:
    with anyio.fail_after(WAIT):
        return {entry.key: entry.value for entry in (await anext(watch)).entries}


def test_pauses_grow_and_differ() -> None:
    backoff = Backoff(random.Random(1), first=0.1, longest=1.0)
    pauses = [backoff.next() for _ in range(6)]
    for pause, full in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert full / 2 <= pause <= full
    backoff.reset()
    assert backoff.next() <= 0.1
    assert pauses != [Backoff(random.Random(2), first=0.1, longest=1.0).next() for _ in range(6)]


def test_attempts_are_counted_not_repeated() -> None:
    attempts = Attempts()
    for number in range(1000):
        attempts.add("a: refused")
        attempts.add(f"b: {number}")
    assert len(attempts.lines()) <= 16
    assert attempts.lines()[-2:] == ("a: refused (1000 times)", "b: 999")


# Calls


async def test_a_call_waits_for_the_next_connection() -> None:
    async with behind_proxy() as (_, proxy, backend):
        await backend.commit(Put("key", b"1"))
        for number in range(5):
            proxy.cut()
            with anyio.fail_after(WAIT):
                await backend.commit(Put("key", b"%d" % number))
        entry = await backend.get("key")
        assert entry is not None
        assert entry.value == b"4"


async def test_a_commit_whose_answer_was_lost_is_not_done_again() -> None:
    async with behind_proxy() as (server, proxy, backend):
        first = await backend.commit(Put("key", b"1"))
        for number in range(5):
            revision = server.table.revision
            proxy.lose_next("to_client")
            with anyio.fail_after(WAIT):
                commit = await backend.commit(Put("key", b"x%d" % number))
            assert commit.won
            assert commit.revision == server.table.revision == revision + 1
        proxy.lose_next("to_client")
        with anyio.fail_after(WAIT):  # a creation that won, though the key exists by the time it is sent again
            assert (await backend.commit(Put("new", b""), when=[Condition("new", None)])).won
            assert not (await backend.commit(Put("key", b""), when=[Condition("key", first.token)])).won


async def test_many_calls_at_once_through_cuts_are_each_done_once() -> None:
    async with behind_proxy() as (server, proxy, backend):
        before = server.table.revision
        done = 0

        rng = random.Random(3)
        faults = (proxy.cut, lambda: proxy.lose_next("to_client"), lambda: proxy.lose_next("to_server"))

        async def work(number: int) -> None:
            nonlocal done
            for turn in range(20):
                commit = await backend.commit(Put(f"{number}/{turn}", b""), when=[Condition(f"{number}/{turn}", None)])
                assert commit.won
                done += 1
                if done % 20 == 0:
                    rng.choice(faults)()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for number in range(16):
                    group.start_soon(work, number)
        assert server.table.revision == before + 320
        assert proxy.accepted > 3


async def test_answers_that_were_settled_are_forgotten() -> None:
    async with serve(port=0) as server, connected(server.endpoint) as backend:
        for number in range(100):
            await backend.commit(Put("key", b"%d" % number))
        (answers,) = server.table.snapshot().answers.values()
        assert len(answers) <= 2  # the last one, and up to where they are settled
        await backend.aclose()
        await eventually(lambda: server.connections == 0)
        assert server.table.snapshot().answers == {}


async def test_a_call_that_is_given_up_leaves_nothing_behind() -> None:
    async with behind_proxy() as (_, proxy, backend):
        proxy.stall()
        with anyio.move_on_after(0.05) as scope:
            await backend.get("key")
        assert scope.cancelled_caught
        proxy.resume()
        assert await backend.get("key") is None
        proxy.refusing = True
        proxy.cut()
        with anyio.move_on_after(0.05) as scope:
            await backend.commit(Put("key", b"given up"))
        assert scope.cancelled_caught
        proxy.refusing = False
        with anyio.fail_after(WAIT):
            assert await backend.get("key") is None
        assert not driver_of(backend)._channel._calls


async def test_patience_ends_a_call_and_nothing_else() -> None:
    async with behind_proxy() as (server, proxy, backend):
        session = await backend.open_session(60)
        await backend.commit(Put("key", b"first"))
        proxy.stall()
        deadline = session.deadline
        with pytest.raises(RendezvousConnectionError, match=r"arrive: the backend did not answer within 0\.05 s"):
            await backend.commit(Put("key", b"given up"), deadline=Deadline.after(0.05, "arrive"))
        with pytest.raises(RendezvousConnectionError, match="keep-alive: the backend did not answer"):
            await session.keep_alive(Deadline.after(0.01, "keep-alive"))
        with pytest.raises(RendezvousConnectionError, match="open: the backend did not answer"):
            await backend.open(Opening(60), Deadline.after(0.01, "open"))
        assert session.deadline == deadline
        assert not session.lost.is_set()
        proxy.resume()
        await session.keep_alive(Deadline.after(WAIT, "keep-alive"))
        commit = await backend.commit(Put("key", b"second"), deadline=Deadline.after(WAIT, "arrive"))
        assert commit.won
        assert server.table.get(f"{backend.prefix}key") == Put(f"{backend.prefix}key", b"second").entry(commit.token)
        assert not driver_of(backend)._channel._calls


async def test_a_session_that_is_given_up_ends_as_soon_as_it_is_open() -> None:
    async with behind_proxy() as (server, proxy, backend):
        await backend.get("key")
        proxy.stall()
        with pytest.raises(RendezvousConnectionError):
            await backend.open(Opening(60, (Put("key", b"", OWN),)), Deadline.after(0.01, "open"))
        changed: list[str] = []
        server.listeners.append(changed.extend)
        proxy.resume()
        await eventually(lambda: changed == [f"{backend.prefix}key"] * 2)  # It came, and went.
        assert server.table.sessions == 0
        assert await backend.get("key") is None
        assert not driver_of(backend)._channel._errands


async def test_a_session_that_is_given_up_at_any_moment_ends() -> None:
    async with behind_proxy() as (server, _, backend):
        for turns in range(30):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(backend.open, Opening(60, (Put("key", b"", OWN),)), Deadline.after(WAIT, "open"))
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            if driver_of(backend)._channel._sessions:  # It was in time.
                (session,) = driver_of(backend)._channel._sessions.values()
                await session.aclose()
            await backend.get("key")  # It is answered after the opening of a session that was given up.
            await eventually(lambda: not server.table.sessions and not driver_of(backend)._channel._errands)


@pytest.mark.parametrize("way", ["to_client", "to_server"])
async def test_a_watch_that_starts_with_a_session_survives_a_lost_connection(
    way: Literal["to_client", "to_server"],
) -> None:
    async with behind_proxy() as (server, proxy, backend), connected(server.endpoint) as other:
        await other.commit(Put("key", b"before"))
        proxy.lose_next(way)
        sink = Pushed()
        opening = Opening(60, (Put("mine", b"", OWN),), names=("key", "mine"), sink=sink)
        with anyio.fail_after(WAIT):
            session, commit, following = await backend.open(opening, Deadline.after(WAIT, "open"))
        assert commit is not None
        assert commit.won
        assert following is not None
        assert await read(sink) == {"key": b"before", "mine": b""}
        await eventually(lambda: len(server.fanout) == 2)  # the names of one watch, on the connection that is left
        proxy.cut()
        await other.commit(Put("key", b"after"))
        assert await read(sink) == {"key": b"after"}
        await session.aclose()
        assert await read(sink) == {"mine": None}
        following.close()
        await eventually(lambda: len(server.fanout) == 0)


async def test_a_watch_of_a_session_that_is_given_up_is_none_of_the_servers() -> None:
    async with behind_proxy() as (server, proxy, backend):
        await backend.get("key")
        proxy.stall()
        given_up, kept = Pushed(), Pushed()
        with pytest.raises(RendezvousConnectionError):
            await backend.open(Opening(60, names=("key",), sink=given_up), Deadline.after(0.01, "open"))
        proxy.resume()
        await backend.get("key")
        assert len(server.fanout) == 0
        await backend.commit(Put("key", b"1"))
        opened = await backend.open(Opening(60, names=("key",), sink=kept), Deadline.after(WAIT, "open"))
        assert len(server.fanout) == 1
        assert await read(kept) == {"key": b"1"}
        assert not len(given_up)
        assert opened.following is not None
        opened.following.close()
        assert not driver_of(backend)._channel._followers


async def test_a_call_that_is_impatient_does_not_wait_for_the_patient() -> None:
    """One timer serves all calls of a connection: each must end at its own time, whatever came before it."""
    async with behind_proxy() as (_, proxy, backend):
        await backend.get("key")
        proxy.stall()
        ended: list[float] = []

        async def call(seconds: float) -> None:
            with pytest.raises(RendezvousConnectionError):
                await backend.commit(Put("key", b""), deadline=Deadline.after(seconds, "call"))
            ended.append(seconds)

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                for seconds in (2 * WAIT, 0.1, 0.05, 0.2):
                    group.start_soon(call, seconds)
                    await anyio.lowlevel.checkpoint()
                await eventually(lambda: len(ended) == 3)
                group.cancel_scope.cancel()
        assert ended == [0.05, 0.1, 0.2]
        proxy.resume()


async def test_a_session_whose_answer_comes_with_the_cancellation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    on_answer = Channel._on_answer

    def cancel_too(channel: Channel, answer: wire.Answer) -> None:
        on_answer(channel, answer)
        if isinstance(answer, wire.SessionOpened):
            assert server.table.sessions == 1
            opening.cancel()

    monkeypatch.setattr(Channel, "_on_answer", cancel_too)
    async with serve(port=0) as server, connected(server.endpoint) as backend:
        opening = asyncio.ensure_future(backend.open_session(60))  # noqa: TID251
        with pytest.raises(asyncio.CancelledError):
            await opening
        await eventually(lambda: not server.table.sessions)


async def test_what_is_open_when_a_client_says_goodbye_ends_at_once() -> None:
    async with serve(port=0, disconnect_grace=60) as server:
        async with connected(server.endpoint) as backend:
            await backend.open(Opening(60, (Put("key", b"", OWN),)), Deadline.after(WAIT, "open"))
            assert server.table.sessions == 1
        await eventually(lambda: not server.table.sessions)


async def test_closing_while_there_is_no_connection_is_quick() -> None:
    async with behind_proxy() as (_, proxy, backend):
        proxy.refusing = True
        proxy.cut()
        async with anyio.create_task_group() as group:

            async def call() -> None:
                with pytest.raises(RendezvousConnectionError, match="closed"):
                    await backend.get("key")

            group.start_soon(call)
            await anyio.sleep(0.05)
            with anyio.fail_after(1):
                await backend.aclose()


async def test_a_frozen_connection_is_given_up_for_a_new_one() -> None:
    """Nothing is closed, nothing comes: after the stall timeout the call goes over another connection."""
    async with behind_proxy(stall_timeout=0.3) as (server, proxy, backend):
        await backend.commit(Put("key", b"1"))
        proxy.stall()
        driver_of(backend)._channel.dialer.port = parse_endpoint(server.endpoint).hosts[0][1]
        with anyio.fail_after(WAIT):
            entry = await backend.get("key")
        assert entry is not None


async def test_a_frozen_connection_is_given_up_by_a_loop_that_stands_still_again_and_again() -> None:
    async with behind_proxy(stall_timeout=0.3) as (server, proxy, backend):
        await backend.commit(Put("key", b"1"))
        proxy.stall()
        driver_of(backend)._channel.dialer.port = parse_endpoint(server.endpoint).hosts[0][1]
        async with anyio.create_task_group() as group:
            group.start_soon(backend.get, "key")
            with anyio.fail_after(WAIT):
                while driver_of(backend)._channel.connections == 1:
                    time.sleep(0.2)  # noqa: TID251, ASYNC251 - blocks the loop, on purpose
                    await anyio.sleep(0.001)


async def test_who_gave_up_on_a_silent_server_gives_it_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that greets thousands is slow; if all gave up and came again at once, it would never get through."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with monkeypatch.context() as patch:  # Not for the attempts too: a busy machine may need longer to connect.
            patch.setattr(dialing, "ATTEMPT_SECONDS", 0.01)
            dialer = dialing.Dialer("127.0.0.1", silent.getsockname()[1], None)
        waited = [dialer._patience]
        for _ in range(4):
            with pytest.raises(dialing.DialError):
                await dialer.dial(lambda: Link(wire.Hello(PROTOCOLS, "c", 1, 0, b""), None, lambda _: None))
            waited.append(dialer._patience)
    assert waited == [0.01, 0.02, 0.04, 0.08, 0.16]


async def test_a_loop_that_stood_still_does_not_blame_the_connection() -> None:
    """After a stall of this process the answers wait to be read: the connection is good."""
    async with (
        ServerProcess() as server,
        connected(server.endpoint, stall_timeout=0.2) as backend,
        backend.watch("key") as watch,
    ):
        assert await read(watch) == {}
        for _ in range(3):
            with socket.socket() as silent:  # blocks the loop, on purpose
                silent.settimeout(0.5)
                silent.bind(("127.0.0.1", 0))
                silent.listen()
                with pytest.raises(TimeoutError):
                    silent.accept()
            await backend.commit(Put("key", b""))
        assert driver_of(backend)._channel.connections == 1


# What cannot be helped


async def test_a_server_that_is_not_up_yet_is_waited_for() -> None:
    port = free_port()
    async with anyio.create_task_group() as group:
        opened: list[Backend] = []

        async def open_early() -> None:
            async with connected(f"tcp://127.0.0.1:{port}") as backend:
                await backend.commit(Put("key", b""))
                opened.append(backend)  # Only now: the server goes as soon as this is seen.

        group.start_soon(open_early)
        await anyio.sleep(0.1)
        assert not opened
        async with serve("127.0.0.1", port):
            await eventually(lambda: bool(opened))


async def test_the_error_lists_every_attempt() -> None:
    port = free_port()
    with pytest.raises(RendezvousConnectionError, match=r"within 0\.3 s") as raised:
        async with connected(f"tcp://localhost:{port}", connect_timeout=0.3):
            pass
    assert any(f"127.0.0.1:{port}: connection refused" in line for line in raised.value.attempts)
    assert all(line in str(raised.value) for line in raised.value.attempts)


async def test_an_unknown_name_is_reported() -> None:
    with pytest.raises(RendezvousConnectionError, match="cannot look up no-such-host"):
        async with connected("tcp://no-such-host.invalid:29400", connect_timeout=0.2):
            pass


async def test_all_addresses_of_a_name_are_tried() -> None:
    """localhost may be ::1 and 127.0.0.1; the server has only one of them."""
    async with serve("127.0.0.1", 0) as server:
        port = parse_endpoint(server.endpoint).hosts[0][1]
        async with connected(f"tcp://localhost:{port}") as backend:
            await backend.commit(Put("key", b""))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<!DOCTYPE html>", b"<html>"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a whole request"])
async def test_an_http_server_listens_there(answer: bytes, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked again and again, and then: "is it running?"."""
    monkeypatch.setattr("rendezvous_async.backends.tcp.client.dialing.ATTEMPT_SECONDS", 0.1)

    async def serve_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if waits:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve_http, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(RendezvousConnectionError, match="an HTTP server answers there") as raised:
            async with connected(f"tcp://127.0.0.1:{port}"):
                pass
    assert raised.value.final


async def test_a_slow_server_is_not_given_up_for_what_it_says_to_a_provoked_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host was frozen for longer than an attempt, and then refused what is meant for HTTP servers, for good."""
    monkeypatch.setattr("rendezvous_async.backends.tcp.client.dialing.ATTEMPT_SECONDS", 0.2)
    async with ServerProcess() as server:
        server.signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.4, server.signal, signal.SIGCONT)  # While the first answer is provoked.
        async with connected(server.endpoint) as backend:
            await backend.commit(Put("key", b""))


async def test_attempts_can_be_read_while_a_call_waits() -> None:
    async with ServerProcess() as server, connected(server.endpoint) as backend:
        assert driver_of(backend).attempts == ()
        assert driver_of(backend).is_connected
        await server.kill()
        with anyio.move_on_after(0.2):
            await backend.get("key")
        assert not driver_of(backend).is_connected
        assert any("connection refused" in line for line in driver_of(backend).attempts)


async def test_a_refusal_on_the_way_fails_the_calls_and_the_backend_lives_on() -> None:
    port = free_port()
    async with (
        serve("127.0.0.1", port, secret="right") as first,
        connected(first.endpoint, secret="right") as backend,
        backend.watch("key") as watch,
    ):
        assert await read(watch) == {}
        await first.aclose()
        async with serve("127.0.0.1", port, secret="changed"):
            for _ in range(2):
                with anyio.fail_after(WAIT), pytest.raises(RendezvousConnectionError, match="does not know"):
                    await backend.get("key")
            with anyio.fail_after(WAIT), pytest.raises(RendezvousConnectionError, match="does not know"):
                await anext(watch)
        async with serve("127.0.0.1", port, secret="right"):
            with anyio.fail_after(WAIT):
                await commit_in_the_end(backend, Put("key", b"again"))
                while await read(watch) != {"key": b"again"}:
                    pass


async def commit_in_the_end(backend: Backend, *writes: Put) -> None:
    while True:
        try:
            await backend.commit(*writes)
            return
        except RendezvousConnectionError:
            pass


# Watches


async def test_a_watch_goes_on_after_a_cut_without_a_gap_or_a_repeat() -> None:
    async with behind_proxy() as (server, proxy, backend), connected(server.endpoint) as other:
        await other.commit(Put("a/1", b"1"), Put("a/2", b"2"))
        async with backend.watch("a/") as watch:
            assert await read(watch) == {"a/1": b"1", "a/2": b"2"}
            proxy.refusing = True
            proxy.cut()
            await other.commit(Put("a/1", b"changed"), Delete("a/2"), Put("a/3", b"new"))
            await other.commit(Put("a/4", b"fleeting"))
            await other.commit(Delete("a/4"))
            proxy.refusing = False
            seen: dict[str, bytes | None] = {}
            while seen != {"a/1": b"changed", "a/2": None, "a/3": b"new", "a/4": None}:
                news = await read(watch)
                assert not news.keys() & seen.keys()
                seen.update(news)


async def test_current_at_stands_still_while_nothing_is_heard() -> None:
    async with behind_proxy(stall_timeout=0.4) as (_, proxy, backend), backend.watch("key") as watch:
        await read(watch)
        begin = watch.current_at
        await eventually(lambda: watch.current_at >= begin + 0.3)  # nobody calls: pings show that the server is there
        proxy.stall()
        await anyio.sleep(0.1)
        stalled = watch.current_at
        assert anyio.current_time() - stalled >= 0.1
        await anyio.sleep(0.3)
        assert watch.current_at == stalled
        proxy.resume()
        await eventually(lambda: watch.current_at > stalled)


async def test_a_reader_that_does_not_come_costs_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous_async.backends.watch.MAX_UNREAD", 50)
    async with serve(port=0) as server, connected(server.endpoint) as backend, connected(server.endpoint) as other:
        await other.commit(Put("a/kept", b"1"), Put("a/gone", b"1"))
        async with backend.watch("a/") as watch:
            assert await read(watch) == {"a/gone": b"1", "a/kept": b"1"}
            await other.commit(Delete("a/gone"))
            for number in range(500):
                await other.commit(Put(f"a/{number}", b""))
                await other.commit(Delete(f"a/{number}"))
            await other.commit(Put("a/kept", b"2"))
            await backend.get("a/kept")
            assert len(server.fanout) == 0  # it was let go
            news: dict[str, bytes | None] = {}
            while news.get("a/kept") != b"2":
                news.update(await read(watch))
            assert news["a/gone"] is None
            assert all(value is None for key, value in news.items() if key != "a/kept")
            await other.commit(Put("a/kept", b"3"))
            assert await read(watch) == {"a/kept": b"3"}


# Sessions


async def test_a_session_survives_a_cut() -> None:
    async with behind_proxy() as (server, proxy, backend), connected(server.endpoint) as other:
        session = await backend.open_session(30)
        await backend.commit(Put("bound", b"", session.id))
        for _ in range(3):
            proxy.cut()
            with anyio.fail_after(WAIT):
                await session.keep_alive()
        await anyio.sleep(1.2)  # longer than the grace
        assert await other.get("bound") is not None
        assert not session.lost.is_set()


async def test_many_sessions_of_one_connection_go_and_come_back_together() -> None:
    async with behind_proxy() as (server, proxy, backend), connected(server.endpoint) as other:
        sessions = [await backend.open_session(30) for _ in range(10)]
        await backend.commit(*(Put(f"bound/{number}", b"", each.id) for number, each in enumerate(sessions)))
        proxy.cut()
        with anyio.fail_after(WAIT):
            await backend.get("x")  # resumed before this was answered
        assert len((await other.list("bound/")).entries) == 10
        proxy.refusing = True
        async with other.watch("bound/") as watch:
            assert len(await read(watch)) == 10
            cut_at = anyio.current_time()
            proxy.cut()
            gone: dict[str, bytes | None] = {}
            while len(gone) < 10:
                gone.update(await read(watch))
            assert 0.9 <= anyio.current_time() - cut_at <= 3
        proxy.refusing = False
        with anyio.fail_after(WAIT):
            for session in sessions:
                await session.lost.wait()
            with pytest.raises(RendezvousSessionError):
                await sessions[0].keep_alive()


async def test_an_old_connection_that_ends_late_does_not_harm_the_session() -> None:
    """The session is the new connection's by then."""
    async with (
        serve(port=0, disconnect_grace=0.1) as server,
        through_proxy(server) as proxy,
        connected(f"tcp://127.0.0.1:{proxy.port}") as backend,
    ):
        session = await backend.open_session(30)
        await backend.commit(Put("bound", b"", session.id))
        (owner,) = server._connections
        proxy.half_close("to_client")  # only the client sees it; then the server cuts the old one itself
        with anyio.fail_after(WAIT):
            await session.keep_alive()
        await eventually(lambda: owner not in server._connections)
        await anyio.sleep(0.3)
        assert await backend.get("bound") is not None


async def test_a_reconnect_gives_a_session_no_more_time() -> None:
    async with behind_proxy() as (server, proxy, backend), connected(server.endpoint) as other:
        session = await backend.open_session(1.5)
        await backend.commit(Put("bound", b"", session.id))
        deadline = session.deadline
        async with other.watch("bound") as watch:
            assert await read(watch) == {"bound": b""}
            with anyio.fail_after(WAIT):
                while (await other.get("bound")) is not None:
                    proxy.cut()
                    await backend.get("bound")
                    await anyio.sleep(0.05)
            assert await read(watch) == {"bound": None}
        assert session.deadline == deadline
        assert anyio.current_time() >= deadline
        with anyio.fail_after(WAIT):
            await session.lost.wait()


async def test_an_owner_who_counted_itself_out_stays_out() -> None:
    """It comes back after its own deadline but before the server's: the session is ended, not revived."""
    async with behind_proxy() as (_, proxy, backend):
        session = await backend.open_session(1.0)
        await backend.commit(Put("bound", b"", session.id))
        proxy.stall()
        await anyio.sleep(OUT_AFTER * session.ttl + 0.05)
        proxy.cut()
        proxy.resume()
        with anyio.fail_after(WAIT):
            await session.lost.wait()
            assert await backend.get("bound") is None


# Epochs


async def test_a_server_without_memory_starts_a_new_epoch_and_clients_know_it() -> None:
    async with ServerProcess() as server, connected(server.endpoint) as backend:
        session = await backend.open_session(30)
        old = await backend.commit(Put("a/bound", b"", session.id), Put("a/kept", b"old"))
        async with backend.watch("a/") as watch:
            assert await read(watch) == {"a/bound": b"", "a/kept": b"old"}
            await server.kill()
            await server.start()
            with anyio.fail_after(WAIT):
                listing = await anext(watch)
                await session.lost.wait()
            assert listing.complete
            assert listing.token.epoch != old.token.epoch
            assert {entry.key: entry.value for entry in listing.entries} == {"a/bound": None, "a/kept": None}
            assert not (await backend.commit(Put("a/kept", b""), when=[Condition("a/kept", old.token)])).won
            with pytest.raises(RendezvousSessionError):
                await backend.commit(Put("a/bound", b"", session.id))
            new = await backend.commit(Put("a/kept", b"new"))
            assert new.revision > old.revision  # the server learnt from the client how far the old one was
            assert await read(watch) == {"a/kept": b"new"}


async def test_hello_carries_the_highest_revision() -> None:
    async with (
        ServerProcess() as server,
        connected(server.endpoint) as writer,
        connected(server.endpoint) as watcher,
        watcher.watch("key") as watch,
    ):
        await read(watch)
        for _ in range(20):
            last = await writer.commit(Put("key", b"x"))
        while (await anext(watch)).revision < last.revision:
            pass
        await writer.aclose()
        await server.kill()
        await server.start()
        with anyio.fail_after(WAIT):
            assert (await watcher.commit(Put("key", b"y"))).revision > last.revision


async def test_wire_errors_from_a_server_are_not_believed() -> None:
    """A server that talks nonsense after its welcome is left, and tried again."""
    connections = 0

    class Nonsense(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal connections
            connections += 1
            cast(asyncio.Transport, transport).write(wire.frame(wire.Welcome(PROTOCOLS[-1], "epoch", 0)) + b"\xff" * 20)

    listener = await asyncio.get_running_loop().create_server(Nonsense, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with connected(f"tcp://127.0.0.1:{port}") as backend:
        with anyio.move_on_after(0.5):
            await backend.get("key")
        assert 2 <= connections < 50
        assert any("the server sent invalid data (a frame of" in line for line in driver_of(backend).attempts)
    listener.close()
