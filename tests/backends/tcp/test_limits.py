"""What a server does to those who ask too much, talk nonsense or do not listen; and that others do not notice."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import re
import resource
import socket
import warnings
from contextlib import suppress
from typing import Any

import anyio
import pytest

from rendezvous_async.backends.base import OWN, Condition, Delete, Opening, Put
from rendezvous_async.backends.table.frames import MAX_FRAME
from rendezvous_async.backends.tcp import Limits, serve, wire
from rendezvous_async.backends.tcp.auth import new_nonce
from rendezvous_async.backends.tcp.server import requests
from rendezvous_async.backends.tcp.server.limits import MAX_REQUEST
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.backends.values import FIRST_WRITES
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.settings import parse_endpoint
from rendezvous_async.testing.conformance.check import Pushed
from rendezvous_async.texts import quoted
from tests.backends.tcp.support import RawClient, connected


async def refusal(peer: RawClient) -> str:
    """The reason that a peer is given before it is cut off."""
    while not isinstance(answer := await peer.read(), wire.Refused):
        pass
    await peer.read_end()
    return answer.code


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="keys"):
        Limits(keys=0)


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_every_limit_is_checked_by_its_name(name: str) -> None:
    is_count = isinstance(getattr(Limits(), name), int)
    wrong: list[Any] = [0, -1, True, None, "5", math.nan, math.inf, *([2.0, 0.5] if is_count else [10**400])]
    text = "a whole number above 0" if is_count else "a positive, finite number"
    for value in wrong:
        with pytest.raises(ValueError, match=re.escape(f"the limit {name} must be {text}, not {quoted(value)}")):
            Limits(**{name: value})


def test_the_shortest_ttl_is_not_above_the_longest() -> None:
    with pytest.raises(ValueError, match=r"shortest_ttl \(30 s\) must not be above longest_ttl \(20 s\)"):
        Limits(shortest_ttl=30, longest_ttl=20)
    assert Limits(shortest_ttl=20, longest_ttl=20).shortest_ttl == 20


def test_what_a_server_allows_when_nothing_is_said() -> None:
    """People plan by these; the largest commit fits into a frame, and the store of a round into an answer."""
    assert Limits() == Limits(
        connections=16_384,
        handshake=5,
        frame=16 * 2**20,
        client_id=128,
        keys=1_000_000,
        bytes=256 * 2**20,
        run_share=0.5,
        reserve=0.125,
        watches=4096,
        watched=2**20,
        names=4096,
        sessions=100_000,
        writes=16_384,
        listed=65_536,
        in_flight=1024,
        unsent=2**18,
        shortest_ttl=0.05,
        longest_ttl=86_400,
    )
    with pytest.raises(AttributeError):
        Limits().keys = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        Limits(5)  # type: ignore[call-arg]


def test_limits_may_be_as_large_as_their_bounds() -> None:
    limits = Limits(run_share=1, reserve=0.999, frame=MAX_REQUEST, shortest_ttl=1e-9)
    assert (limits.run_share, limits.reserve, limits.frame, limits.shortest_ttl) == (1, 0.999, MAX_REQUEST, 1e-9)
    for wrong in ({"run_share": 1.001}, {"reserve": 1}):
        with pytest.raises(ValueError, match="at most 1, and less than 1"):
            Limits(**wrong)
    with pytest.raises(ValueError, match=f"the limit frame is at most {MAX_REQUEST} bytes, not {MAX_REQUEST + 1}"):
        Limits(frame=MAX_REQUEST + 1)
    assert MAX_FRAME - MAX_REQUEST == 1024 * 1024, "room for what the log adds to a request"


@pytest.mark.parametrize(
    ("files", "expected"),
    [(resource.RLIM_INFINITY, 1000), (10_000, 1000), (1256, 1000), (1255, 999), (512, 256), (400, 200), (2, 1)],
)
def test_a_process_leaves_files_for_other_things(monkeypatch: pytest.MonkeyPatch, files: int, expected: int) -> None:
    """At least 256, or half of them where there are few."""
    monkeypatch.setattr(resource, "getrlimit", lambda what: (files, resource.RLIM_INFINITY))
    assert Limits(connections=1000).connections_now == expected


async def test_connections_are_limited() -> None:
    async with serve(port=0, limits=Limits(connections=2)) as server, connected(server.endpoint) as first:
        async with connected(server.endpoint):
            with pytest.raises(RendezvousConnectionError, match="has its 2 connections") as raised:
                async with connected(server.endpoint):
                    pass
            assert not raised.value.final  # there may be room later
            await first.commit(Put("key", b"still served"))
        with anyio.fail_after(10):
            while True:  # the place is free again as soon as the server has seen the end of the second
                try:
                    async with connected(server.endpoint):
                        break
                except RendezvousConnectionError:
                    await anyio.lowlevel.checkpoint()


async def test_a_process_that_may_open_few_files_says_so_before_it_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    files = 2  # half of them for connections
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    async with serve(port=0) as server, connected(server.endpoint):
        with pytest.raises(RendezvousConnectionError, match="its limit of open files allows no more"):
            async with connected(server.endpoint):
                pass


async def test_names_that_are_too_long_are_refused() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.Get(1, "x" * (requests.MAX_NAME + 1)))
        failed = await peer.read()
        assert isinstance(failed, wire.Failed)
        assert failed.code == wire.FAILED_INVALID


async def test_a_peer_that_never_greets_is_cut_off() -> None:
    async with serve(port=0, limits=Limits(handshake=0.1)) as server, connected(server.endpoint) as other:
        async with RawClient.connect(server.endpoint) as peer:
            assert await refusal(peer) == wire.REFUSED_LATE
        async with RawClient.connect(server.endpoint) as peer:
            peer.writer.write(b"\0")
            assert await refusal(peer) == wire.REFUSED_LATE
        await other.commit(Put("key", b"still served"))


async def test_another_version_is_refused_and_says_so() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        peer.send(wire.Hello((98, 99), "client", 1, 0, new_nonce()))
        refused = await peer.read()
        assert refused == wire.Refused(
            wire.REFUSED_VERSION,
            "the client speaks versions 98, 99 of the protocol, the server version 1; "
            "upgrade rendezvous_async on the server's side",
        )
        await peer.read_end()


async def test_a_frame_that_is_too_long_ends_the_connection_unread() -> None:
    async with serve(port=0, limits=Limits(frame=10_000)) as server, connected(server.endpoint) as other:
        async with RawClient.connect(server.endpoint) as peer:
            peer.writer.write((5000).to_bytes(4, "big"))  # too long for a greeting
            assert await refusal(peer) == wire.REFUSED_PROTOCOL
        async with RawClient.connect(server.endpoint) as peer:
            await peer.greet()
            peer.writer.write((10_001).to_bytes(4, "big") + b"x" * 1_000_000)
            assert await refusal(peer) == wire.REFUSED_PROTOCOL
        with pytest.raises(RendezvousConnectionError, match="10000 are allowed"):
            await other.commit(Put("key", b"x" * 20_000))
        await other.commit(Put("key", b"still served"))


async def test_a_full_table_takes_no_more_and_serves_on() -> None:
    limits = Limits(keys=2, run_share=1)
    async with serve(port=0, limits=limits) as server, connected(server.endpoint) as backend:
        await backend.commit(Put("a", b"1"), Put("b", b"2"))
        with pytest.raises(RendezvousError, match="the server is full: 2 keys"):
            await backend.commit(Put("c", b"3"))
        assert (await backend.get("c")) is None
        await backend.commit(Put("b", b"another value"))
        await backend.commit(Delete("a"))
        await backend.commit(Put("c", b"3"))
    async with serve(port=0, limits=Limits(bytes=10_000)) as server, connected(server.endpoint) as backend:
        with pytest.raises(RendezvousError, match="the server is full"):
            await backend.commit(Put("a", b"x" * 10_000))
        await backend.commit(Put("a", b"x" * 100))


async def test_watches_and_sessions_are_limited() -> None:
    limits = Limits(watches=2, sessions=1)
    async with serve(port=0, limits=limits) as server, connected(server.endpoint) as backend:
        async with backend.watch("a") as first, backend.watch("b") as second, backend.watch("c") as third:
            await anext(first)
            await anext(second)
            with pytest.raises(RendezvousError, match="2 watches"):
                await anext(third)
            await second.aclose()
            with anyio.fail_after(10):
                assert (await anext(third)).entries == ()  # it asks again, and there is room now
        session = await backend.open_session(10)
        with pytest.raises(RendezvousError, match="1 sessions"):
            await backend.open_session(10)
        await session.aclose()
        await backend.open_session(10)


async def test_the_names_of_all_watches_are_limited() -> None:
    """The limits of watches and of names in each, multiplied, are more than anybody's memory."""
    name = "run/" + "x" * 1000
    limits = Limits(watched=3 * (len(name) + requests.NAME_COST))
    async with serve(port=0, limits=limits) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.Follow(1, (name + "/",), None))  # one character too many for three
        peer.send(*(wire.Follow(id, (name,), None) for id in (2, 3)))
        assert [type(await peer.read()) for _ in range(3)] == [wire.Changed, wire.Changed, wire.Failed]
        peer.send(wire.Unfollow(1), wire.Follow(4, (name, name[:-1]), None), wire.Follow(5, ("x",), None))
        assert isinstance(await peer.read(), wire.Changed)
        failed = await peer.read()
        assert isinstance(failed, wire.Failed)
        assert failed.code == wire.FAILED_LIMIT
        assert f"may have {limits.watched} characters" in failed.message
        assert len(server.fanout) == 3


async def test_short_names_are_not_watched_for_nothing() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        kinds = []
        for id in range(5):
            peer.send(wire.Follow(id, tuple(f"{id}{number}" for number in range(4096)), None))
            kinds.append(type(await peer.read()))
        assert kinds == [wire.Changed] * 3 + [wire.Failed] * 2


async def failure(peer: RawClient, request: wire.Request) -> str:
    """What a request is answered that must be refused."""
    peer.send(request)
    failed = await peer.read()
    assert isinstance(failed, wire.Failed), failed
    assert failed.code == wire.FAILED_LIMIT
    return failed.message


async def test_the_store_of_a_round_can_always_be_listed_watched_and_deleted() -> None:
    """It has no more keys than that: what would make it larger is refused, what replaces a key is not.

    The run's own records have room all the same: a full store never keeps a node from joining, or a round from forming.
    """
    async with serve(port=0, limits=Limits(listed=10)) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()

        def put(id: int, *keys: str) -> wire.Transact:
            return wire.Transact(id, id, id - 1, tuple(Put(key, b"") for key in keys), ())

        for id, run in ((1, "a"), (2, "b")):
            peer.send(put(id, *(f"runs/{run}/rounds/1/{number % 3}/{number}" for number in range(10))))
            assert isinstance(await peer.read(), wire.Transacted)
        assert "runs/a/rounds/1/ may have 10 keys" in await failure(peer, put(3, "runs/a/rounds/1/0/new"))
        store = "runs/a/rounds/1/"
        peer.send(put(4, f"{store}0/0"), wire.List(5, store), wire.Follow(6, (store, f"{store}0/"), None))
        assert isinstance(await peer.read(), wire.Transacted)
        for kind in (wire.Listed, wire.Changed):
            answer = await peer.read()
            assert isinstance(answer, kind)
            assert answer.listing is not None
            assert len(answer.listing.entries) == 10
        for too_much in (wire.List(7, "runs/"), wire.Follow(8, ("runs/",), None)):
            assert "more than 10 keys" in await failure(peer, too_much)
        both = wire.Transact(9, 9, 8, (Delete(store), Delete("runs/b/rounds/1/")), ())
        assert "may delete 10 keys" in await failure(peer, both)
        assert "may delete 10 keys" in await failure(peer, wire.Transact(10, 10, 9, (Delete("runs/"),), ()))
        peer.send(put(11, "runs/a/state", "runs/a/nodes/x", "runs/a/seats/x", "runs/a/rounds/2"))
        assert isinstance(await peer.read(), wire.Transacted)
        peer.send(wire.Transact(12, 12, 11, (Delete(store),), ()))
        assert isinstance(await peer.read(), wire.Transacted)
        assert len(server.table) == 14


async def test_a_watch_that_has_become_too_large_ends_with_an_error() -> None:
    async with serve(port=0, limits=Limits(listed=10)) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.Follow(1, ("runs/a/", "runs/b/"), None))
        assert isinstance(await peer.read(), wire.Changed)
        for id, run in ((2, "a"), (3, "b")):
            puts = tuple(Put(f"runs/{run}/{number}", b"") for number in range(6))
            peer.send(wire.Transact(id, id, id - 1, puts, ()))
            assert isinstance(await peer.read(), wire.Transacted)
            told = await peer.read()
            assert isinstance(told, wire.Changed if run == "a" else wire.Failed)
        assert isinstance(told, wire.Failed)
        assert (told.id, told.code) == (1, wire.FAILED_LIMIT)
        assert len(server.fanout) == 0


async def test_a_session_has_no_more_keys_than_may_end_at_once() -> None:
    async with serve(port=0, limits=Limits(writes=4)) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.OpenSession(1, 20.0, (Put("run/0", b"", OWN),)))
        opened = await peer.read()
        assert isinstance(opened, wire.SessionOpened)
        puts = tuple(Put(f"run/{number}", b"", opened.session) for number in range(1, 5))
        assert "may have 4 keys" in await failure(peer, wire.Transact(2, 1, 0, puts, ()))
        peer.send(wire.Transact(3, 2, 1, puts[:3], ()))
        assert isinstance(await peer.read(), wire.Transacted)
        assert "may have 4 keys" in await failure(peer, wire.Transact(4, 3, 2, puts[3:], ()))


async def test_names_have_no_more_segments_than_the_index_bears() -> None:
    """Each slash of a key is an index of its own: a key of 4,096 characters cost eight megabytes."""
    deep = "a/" * requests.MAX_DEPTH
    async with serve(port=0, limits=Limits(writes=8)) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.Get(1, f"{deep}a"), wire.Get(2, f"a/{deep}a"))
        assert isinstance(await peer.read(), wire.Found)
        failed = await peer.read()
        assert isinstance(failed, wire.Failed)
        assert failed.code == wire.FAILED_INVALID
        puts = tuple(Put(f"{deep}{number}", b"") for number in range(3))
        assert "64 slashes" in await failure(peer, wire.Transact(3, 1, 0, puts, ()))
        peer.send(wire.Transact(4, 2, 1, puts[:2], ()))
        assert isinstance(await peer.read(), wire.Transacted)


async def test_what_is_too_much_for_any_limit_is_not_decoded() -> None:
    many = tuple(["a"] * (wire.MAX_ITEMS + 1))
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.Follow(1, many, None))
        assert await refusal(peer) == wire.REFUSED_PROTOCOL


def test_who_is_refused_does_not_outlive_the_server() -> None:
    """A peer that was told why has a second to read it; the server's loop may be closed before that is over."""

    async def main() -> socket.socket:
        async with serve(port=0, limits=Limits(connections=1)) as server, RawClient.connect(server.endpoint) as first:
            await first.greet()
            late = socket.create_connection(parse_endpoint(server.endpoint).hosts[0])
            late.setblocking(False)
            loop = asyncio.get_running_loop()
            while await loop.sock_recv(late, 1000):  # it is told, and does not go
                pass
        return late

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with asyncio.run(main()):
            gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


async def test_there_is_an_end_to_telling_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.server.TURNED_AWAY_AT_ONCE", 1)
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.connection._LAST_WORDS", 60.0)
    async with (
        serve(port=0, limits=Limits(connections=1)) as server,
        connected(server.endpoint) as other,
        RawClient.connect(server.endpoint) as second,
        RawClient.connect(server.endpoint) as third,
    ):
        assert await refusal(second) == wire.REFUSED_LIMIT
        await third.read_end()
        await other.commit(Put("key", b"still served"))


async def test_a_session_is_given_what_the_server_allows() -> None:
    limits = Limits(shortest_ttl=2, longest_ttl=20)
    async with serve(port=0, limits=limits) as server, connected(server.endpoint) as backend:
        assert (await backend.open_session(0.5)).ttl == 2
        for wrong in (21.0, 0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="at most 20 s"):
                await backend.driver.open(Opening(wrong))


async def test_names_of_others_making_are_checked_again() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        for number, name in enumerate(("", "/a", "a//b", "a\n", "x" * 5000)):
            peer.send(wire.Get(number, name))
            failed = await peer.read()
            assert isinstance(failed, wire.Failed)
            assert (failed.id, failed.code) == (number, wire.FAILED_INVALID)
        peer.send(wire.Transact(9, 1, 0, (Put("run/a/", b""),), ()))
        assert isinstance(await peer.read(), wire.Failed)


async def test_a_flood_of_requests_is_answered_in_order() -> None:
    """More than may be in flight, in one write: the rest waits, nothing is lost."""
    async with serve(port=0, limits=Limits(in_flight=3)) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(*(wire.Ping(number) for number in range(2000)))
        assert [await peer.read() for _ in range(2000)] == [wire.Done(number) for number in range(2000)]


async def test_a_newer_connection_of_a_client_ends_the_older_one() -> None:
    """What was not read yet on the old one must not be done later: the client sends it again on the new one."""
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as old:
        await old.greet("client", 1)
        async with RawClient.connect(server.endpoint) as new:
            await new.greet("client", 2)
            await old.read_end()
            async with RawClient.connect(server.endpoint) as late:
                late.send(wire.Hello(PROTOCOLS, "client", 1, 0, new_nonce()))
                assert await refusal(late) == wire.REFUSED_STALE
            new.send(wire.Ping(1))
            assert await new.read() == wire.Done(1)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (wire.OpenSession(1, 5.0, (Put("run/a", b"", "somebody's"),)), wire.FAILED_INVALID),
        (wire.OpenSession(1, 5.0, (Put("run//a", b"", OWN),)), wire.FAILED_INVALID),
        (wire.OpenSession(1, 5.0, (Put("run/a", b"", OWN),), (Condition("/a", None),)), wire.FAILED_INVALID),
        (wire.OpenSession(1, 5.0, (Put("run/a", b"", OWN),) * (FIRST_WRITES + 1)), wire.FAILED_LIMIT),
        (wire.OpenSession(1, 5.0, (), (Condition("run/a", None),) * (FIRST_WRITES + 1)), wire.FAILED_LIMIT),
        (wire.OpenSession(1, 5.0, (Put("run/a", b"", OWN),), (), ("run//a",)), wire.FAILED_INVALID),
        (wire.OpenSession(1, 5.0, (Put("run/a", b"", OWN),), (), ("run/a",) * 100), wire.FAILED_LIMIT),
        (wire.OpenSession(1, 5.0, (Put("run/a", b"", OWN),), (), ("run/" + "a" * 2000,)), wire.FAILED_LIMIT),
        (wire.Transact(1, 1, 0, (Put("run/a", b"", OWN),), ()), wire.FAILED_SESSION),
    ],
)
async def test_a_session_begins_as_it_should_or_not_at_all(request_: wire.Request, code: str) -> None:
    limits = Limits(writes=2 * FIRST_WRITES - 30, names=99, watched=2000)
    async with serve(port=0, limits=limits) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(request_)
        failed = await peer.read()
        assert isinstance(failed, wire.Failed)
        assert failed.code == code
        assert (server.table.sessions, len(server.table), len(server.fanout)) == (0, 0, 0)


async def test_a_watch_that_starts_with_a_session_counts_as_any_other() -> None:
    async with serve(port=0, limits=Limits(watches=1)) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.OpenSession(1, 5.0, names=("run/a",)), wire.Follow(2, ("run/b",), None))
        assert isinstance(await peer.read(), wire.SessionOpened)
        assert isinstance(await peer.read(), wire.Failed)
        peer.send(wire.Unfollow(1), wire.OpenSession(3, 5.0, names=("run/b",)))
        assert isinstance(await peer.read(), wire.SessionOpened)
        peer.send(wire.OpenSession(3, 5.0, names=("run/c",)))
        assert await refusal(peer) == wire.REFUSED_PROTOCOL  # a second watch with this id
        assert server.table.sessions == 2


async def test_a_commit_that_loses_is_told_of_each_key_once() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(wire.Transact(1, 1, 0, (Put("run/a", b"x" * 1000),), ()), wire.Ping(2))
        assert [type(await peer.read()) for _ in range(2)] == [wire.Transacted, wire.Done]
        peer.send(wire.Transact(3, 2, 1, (), (Condition("run/a", None),) * 1000))
        lost = await peer.read()
        assert isinstance(lost, wire.Transacted)
        assert [entry.key for entry in lost.commit.entries] == ["run/a"]


async def test_a_watch_whose_first_listing_is_too_long_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_ANSWER", 500)
    async with serve(port=0) as server, connected(server.endpoint) as backend:
        await backend.commit(Put("a", b"x" * 1000))
        sink = Pushed()
        _, commit, _ = await backend.open(Opening(20, (Put("b", b""),), names=("a",), sink=sink))
        assert commit is not None
        assert commit.won
        with pytest.raises(RendezvousError, match="ask for less"):
            await anext(sink)
        assert len(server.fanout) == 0


@pytest.mark.parametrize("begins", [False, True])
async def test_an_answer_to_a_commit_that_is_too_long_is_an_error(
    monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    monkeypatch.setattr(wire, "MAX_ANSWER", 500)
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        when = (Condition("run/a", None),)
        peer.send(wire.Transact(1, 1, 0, (Put("run/a", b"x" * 1000),), ()))
        assert isinstance(await peer.read(), wire.Transacted)
        begin, commit = wire.OpenSession(2, 5.0, (Put("run/b", b"", OWN),), when), wire.Transact(2, 2, 1, (), when)
        peer.send(begin if begins else commit)
        failed = await peer.read()
        assert isinstance(failed, wire.Failed)
        assert failed.code == wire.FAILED_LIMIT
        assert (server.table.sessions, len(server.fanout)) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
async def test_random_bytes_harm_nobody_else(seed: int) -> None:
    """Nonsense before and after the greeting, also in sound frames: its connection ends, the server goes on."""
    rng = random.Random(seed)
    good = [
        wire.frame(message)
        for message in (
            wire.Get(1, "run/a"),
            wire.Transact(2, 1, 0, (Put("run/a", b"v", None),), ()),
            wire.Follow(3, ("run/",), None),
            wire.OpenSession(4, 5.0, (Put("run/b", b"v", OWN),), (Condition("run/b", None),), ("run/",)),
            wire.Renew(5, "none"),
        )
    ]
    async with serve(port=0, limits=Limits(handshake=0.2)) as server, connected(server.endpoint) as other:
        for number in range(60):
            async with RawClient.connect(server.endpoint) as peer:
                if number % 3:
                    await peer.greet(f"fuzz-{number}")
                for _ in range(rng.randrange(1, 6)):
                    data = bytearray(rng.choice(good))
                    match rng.randrange(4):
                        case 0:
                            data = bytearray(rng.randbytes(rng.randrange(1, 200)))
                        case 1:
                            data[rng.randrange(len(data))] = rng.randrange(256)
                        case 2:
                            body = rng.randbytes(rng.randrange(1, 50))
                            data = bytearray(len(body).to_bytes(4, "big") + body)
                        case _:
                            pass
                    peer.writer.write(data)
                peer.writer.write_eof()
                with anyio.fail_after(10):
                    with suppress(ConnectionResetError):
                        await peer.reader.read()
            if number % 10 == 0:
                await other.commit(Put("key", b"%d" % number))
        assert server.connections == 1
        assert len(server.fanout) == 0
        assert (await other.get("key")) is not None
