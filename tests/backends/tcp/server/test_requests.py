"""What is answered and what is refused, at each bound: as much as is allowed is done, one more is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import OWN, Condition, Delete, Entry, Listing, Put
from rendezvous_async.backends.tcp import Limits, TcpServer, serve, wire
from rendezvous_async.backends.tcp.auth import Secret, new_nonce, prove
from rendezvous_async.backends.tcp.server import requests
from rendezvous_async.backends.tcp.server.requests import MAX_DEPTH, MAX_NAME, MAX_UNSETTLED, NAME_COST
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.backends.values import FIRST_WRITES
from tests.backends.tcp.support import RawClient

SECRET = "a secret for the tests of requests"


class Asking(RawClient):
    """A peer that asks one thing at a time."""

    server: TcpServer

    async def ask(self, request: wire.Request) -> wire.FromServer:
        self.send(request)
        return await self.read()

    async def refusal(self, request: wire.Request) -> tuple[str, str]:
        """Return the code and the message with which a request is refused; nothing must have changed."""
        before = self.server.table.snapshot()
        watched = len(self.server.fanout)
        failed = await self.ask(request)
        assert isinstance(failed, wire.Failed), failed
        assert self.server.table.snapshot() == before
        assert len(self.server.fanout) == watched
        return failed.code, failed.message

    async def commit(self, id: int, *writes: Put | Delete, when: tuple[Condition, ...] = ()) -> bool:
        committed = await self.ask(wire.Transact(id, id, id - 1, writes, when))
        assert isinstance(committed, wire.Transacted), committed
        return committed.commit.won

    async def open(self, id: int, *writes: Put, names: tuple[str, ...] = ()) -> wire.SessionOpened:
        opened = await self.ask(wire.OpenSession(id, 20.0, writes, (), names))
        assert isinstance(opened, wire.SessionOpened), opened
        return opened


@asynccontextmanager
async def asking(secret: str | None = None, scope: str = "", **limits: Any) -> AsyncIterator[Asking]:
    """A peer that has been let in to a server with these limits; with a scope, by a secret that opens that only."""
    async with serve(port=0, secret=secret, limits=Limits(**limits)) as server, Asking.connect(server.endpoint) as peer:
        assert isinstance(peer, Asking)
        peer.server = server
        if secret is None:
            await peer.greet()
        else:
            hello = wire.Hello(PROTOCOLS, "raw", 1, 0, new_nonce(), scope)
            peer.send(hello)
            challenge = await peer.read_body()
            key = Secret.parse(secret).key_for(scope)
            assert key is not None
            peer.send(wire.Proof(prove(key, "client", wire.frame(hello)[4:], challenge)))
            assert isinstance(await peer.read(), wire.Welcome)
        yield peer


def keys(listing: Listing | None) -> list[str] | None:
    return None if listing is None else [each.key for each in listing.entries]


async def test_reading() -> None:
    async with asking() as peer:
        assert await peer.ask(wire.Get(1, "run/a")) == wire.Found(1, None)
        assert await peer.commit(2, Put("run/a", b"1"), Put("run/b", b"2"), Put("other", b"3"))
        found = await peer.ask(wire.Get(3, "run/a"))
        assert isinstance(found, wire.Found)
        assert found == wire.Found(3, Entry("run/a", b"1", peer.server.table.token))
        listed = await peer.ask(wire.List(4, "run/"))
        assert isinstance(listed, wire.Listed)
        assert (listed.id, keys(listed.listing)) == (4, ["run/a", "run/b"])


# Names


BAD_NAMES = ["", "/", "/a", "a//b", "a\n", "a" * (MAX_NAME + 1), "a/" * MAX_DEPTH + "a/a"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
async def test_names_that_no_client_sends(name: str) -> None:
    async with asking() as peer:
        for request in (
            wire.Get(1, name),
            wire.List(1, name),
            wire.Follow(1, ("run/a", name), None),
            wire.Transact(1, 1, 0, (Delete(name),), ()),
            wire.Transact(1, 1, 0, (), (Condition(name, None),)),
            wire.OpenSession(1, 5.0, (), (), ("run/a", name)),
        ):
            assert await peer.refusal(request) == (wire.FAILED_INVALID, f"not a name: {name[:64]!r}")


async def test_names_may_be_as_long_and_deep_as_the_bounds_say() -> None:
    long, deep = "a" * MAX_NAME, "a/" * MAX_DEPTH + "a"
    short_and_deep = "a/" * (MAX_DEPTH // 2) + "a"
    async with asking() as peer:
        for id, name in enumerate((long, deep, short_and_deep, deep[:-1])):
            if not name.endswith("/"):
                assert await peer.ask(wire.Get(id, name)) == wire.Found(id, None)
            assert isinstance(await peer.ask(wire.List(id, name)), wire.Listed)


async def test_all_names_of_a_request_have_a_depth_together() -> None:
    """As many slashes as eight for each write that is allowed."""
    async with asking(writes=8) as peer:
        deep, deeper = "a/" * 31 + "a", "a/" * 32 + "a"
        assert isinstance(await peer.ask(wire.Follow(1, (deep, deep, "a/a", "a/a"), None)), wire.Changed)
        refused = (wire.FAILED_LIMIT, "the names in a request have at most 64 slashes; split it")
        assert await peer.refusal(wire.Follow(2, (deep, deep, "a/a", "a/a", "a/a"), None)) == refused
        assert isinstance(await peer.ask(wire.Follow(2, (deeper, deeper, "a"), None)), wire.Changed)
        assert await peer.refusal(wire.Follow(3, (deeper, deeper, "a/a"), None)) == refused


async def test_a_key_does_not_end_in_a_slash() -> None:
    async with asking() as peer:
        refused = await peer.refusal(wire.Transact(1, 1, 0, (Put("run/" + "a" * 70 + "/", b""),), ()))
        assert refused == (wire.FAILED_INVALID, f"a key must not end in a slash: {'run/' + 'a' * 60!r}")


# Commits


async def test_a_commit_has_as_many_writes_and_conditions_as_allowed() -> None:
    refused = (wire.FAILED_LIMIT, "a commit has at most 3 writes and conditions")
    async with asking(writes=3) as peer:
        puts = tuple(Put(f"run/{number}", b"") for number in range(4))
        when = tuple(Condition(f"run/{number}", None) for number in range(4))
        assert await peer.refusal(wire.Transact(1, 1, 0, puts, ())) == refused
        assert await peer.refusal(wire.Transact(1, 1, 0, (), when)) == refused
        assert await peer.commit(1, *puts[:3], when=when[:3])


async def test_as_many_answers_are_remembered_as_a_client_may_leave_unsettled() -> None:
    async with asking() as peer:
        peer.send(wire.Transact(1, MAX_UNSETTLED, 0, (Put("run/a", b""),), ()))
        assert isinstance(await peer.read(), wire.Transacted)
        peer.send(wire.Transact(2, MAX_UNSETTLED + 1, 0, (Put("run/a", b""),), ()))
        refused = await peer.read()
        assert isinstance(refused, wire.Refused)
        assert refused.code == wire.REFUSED_PROTOCOL
        assert f"more than {MAX_UNSETTLED} commits whose answers must be remembered" in refused.message


async def test_a_commit_under_a_session_that_has_ended_changes_nothing() -> None:
    async with asking() as peer:
        refused = await peer.refusal(wire.Transact(1, 1, 0, (Put("run/a", b"", "gone"),), ()))
        assert refused == (wire.FAILED_SESSION, "session gone has ended; nothing was written")


async def test_a_session_has_as_many_keys_as_one_commit_may_write() -> None:
    refused = "session {} may have 3 keys"
    async with asking(writes=3) as peer:
        session = (await peer.open(1, Put("run/0", b"", OWN))).session
        mine = [Put(f"run/{number}", b"", session) for number in range(5)]
        limit = wire.FAILED_LIMIT, refused.format(session)
        assert await peer.refusal(wire.Transact(2, 2, 1, (mine[1], mine[2], mine[3]), ())) == limit
        assert await peer.commit(3, mine[0], mine[1], mine[2]), "the first is known already"
        assert await peer.commit(4, mine[0], mine[1], mine[2])
        assert await peer.refusal(wire.Transact(5, 5, 4, (mine[3],), ())) == limit
        assert await peer.refusal(wire.Transact(5, 5, 4, (mine[0], mine[3]), ())) == limit
        other = (await peer.open(6)).session
        assert await peer.commit(7, mine[0], Put("run/9", b"", other), Put("run/8", b""))
        assert await peer.commit(8, Put("run/0", b"", other), Put("run/7", b"", other))
        assert await peer.commit(9, mine[3]), "one has gone to the other session"
        three = (Put("run/5", b"", other), Put("run/6", b""), mine[4])
        assert await peer.refusal(wire.Transact(10, 10, 9, three, ())) == (wire.FAILED_LIMIT, refused.format(other))


async def test_a_commit_deletes_as_many_keys_as_may_be_listed() -> None:
    async with asking(listed=4) as peer:
        assert await peer.commit(1, *(Put(f"ns/run/{side}/{number}", b"") for side in "ab" for number in range(2)))
        assert await peer.commit(2, Put("ns/other", b""))
        refused = (wire.FAILED_LIMIT, "a commit may delete 4 keys; delete smaller subtrees")
        assert await peer.refusal(wire.Transact(3, 3, 2, (Delete("ns/"),), ())) == refused
        two = (Delete("ns/run/"), Delete("ns/run/a/"))
        assert await peer.refusal(wire.Transact(3, 3, 2, two, ())) == refused
        singles = tuple(Delete(f"ns/run/{side}/{number}") for side in "ab" for number in range(2))
        assert await peer.commit(4, *singles, Delete("ns/other"))
        assert await peer.commit(5, *(Put(f"ns/run/a/{number}", b"") for number in range(4)), Put("x", b""))
        assert await peer.commit(6, Delete("ns/run/"))
        assert len(peer.server.table) == 1


async def test_the_store_of_a_round_has_as_many_keys_as_may_be_listed() -> None:
    store = "ns/run/rounds/1/"
    crowded = (wire.FAILED_LIMIT, f"{store} may have 4 keys; delete some")
    async with asking(listed=4) as peer:
        assert await peer.commit(1, *(Put(f"{store}a/{number}", b"") for number in range(3)))
        two = tuple(Put(f"{store}b/{number}", b"") for number in range(2))
        assert await peer.refusal(wire.Transact(2, 2, 1, two, ())) == crowded
        both = (Put(f"{store}b/0", b""), Put(f"{store}c/0", b""))
        assert await peer.refusal(wire.Transact(2, 2, 1, both, ())) == crowded
        assert await peer.commit(3, two[0], Put(f"{store}a/0", b"again"))
        assert await peer.refusal(wire.Transact(4, 4, 3, (two[1],), ())) == crowded
        assert await peer.commit(5, *(Put(f"ns/run/nodes/{number}", b"") for number in range(5)), two[0])
        assert await peer.commit(6, Put("ns/run/rounds/2/x", b""), Put("ns/run/rounds/2", b""))
        assert await peer.commit(7, Delete(f"{store}a/1"))
        assert await peer.commit(8, two[1])


async def test_an_answer_has_as_many_keys_as_may_be_listed() -> None:
    too_many = (wire.FAILED_LIMIT, f"the answer has more than 3 keys or {wire.MAX_ANSWER} bytes; ask for less")
    async with asking(listed=3) as peer:
        assert await peer.commit(1, *(Put(f"run/{number}", b"") for number in range(3)), Put("other/1", b""))
        listed = await peer.ask(wire.List(2, "run/"))
        assert isinstance(listed, wire.Listed)
        assert len(listed.listing.entries) == 3
        followed = await peer.ask(wire.Follow(3, ("run/",), None))
        assert isinstance(followed, wire.Changed)
        assert keys(followed.listing) == ["run/0", "run/1", "run/2"]
        assert await peer.refusal(wire.Follow(4, ("run/", "other/1"), None)) == too_many
        assert await peer.refusal(wire.OpenSession(4, 5.0, (), (), ("run/", "other/1"))) == too_many
        assert await peer.commit(5, Put("run/9", b""))
        assert isinstance(await peer.read(), wire.Failed), "the watch has become too large"
        assert await peer.refusal(wire.List(6, "run/")) == too_many


# Watches


async def test_a_connection_has_as_many_watches_of_as_many_names_as_allowed() -> None:
    refused = (wire.FAILED_LIMIT, "a connection may have 2 watches, of 1 to 3 names each")
    async with asking(watches=2, names=3) as peer:
        assert await peer.refusal(wire.Follow(1, (), None)) == refused
        assert await peer.refusal(wire.Follow(1, ("a", "b", "c", "d"), None)) == refused
        assert isinstance(await peer.ask(wire.Follow(1, ("a", "b", "c"), None)), wire.Changed)
        assert isinstance(await peer.ask(wire.Follow(2, ("a",), None)), wire.Changed)
        assert await peer.refusal(wire.Follow(3, ("a",), None)) == refused
        peer.send(wire.Unfollow(7))
        assert await peer.refusal(wire.Follow(3, ("a",), None)) == refused
        peer.send(wire.Unfollow(1))
        assert isinstance(await peer.ask(wire.Follow(3, ("a",), None)), wire.Changed)
        assert len(peer.server.fanout) == 2


async def test_the_names_that_a_connection_watches_have_a_length_together() -> None:
    message = f"the names that a connection watches may have 300 characters, with {NAME_COST} more for each"
    async with asking(watched=300) as peer:
        first = ("a" * 50, "b" * 50)  # 228
        assert isinstance(await peer.ask(wire.Follow(1, first, None)), wire.Changed)
        assert await peer.refusal(wire.Follow(2, ("c" * 9,), None)) == (wire.FAILED_LIMIT, message)
        assert isinstance(await peer.ask(wire.Follow(2, ("c" * 8,), None)), wire.Changed)
        peer.send(wire.Unfollow(2))
        assert isinstance(await peer.ask(wire.Follow(3, ("c" * 8,), None)), wire.Changed)
        peer.send(wire.Unfollow(1), wire.Unfollow(3), wire.Unfollow(3))
        assert isinstance(await peer.ask(wire.Follow(4, ("d" * (300 - NAME_COST),), None)), wire.Changed)
        assert len(peer.server.fanout) == 1


async def test_a_name_that_another_one_covers_is_not_watched_for_itself() -> None:
    async with asking() as peer:
        followed = await peer.ask(wire.Follow(1, ("run/a/b", "run/", "run/a/"), None))
        assert followed == wire.Changed(1, Listing((), peer.server.table.token))
        assert len(peer.server.fanout) == 1
        assert await peer.commit(2, Put("run/a/b", b""))
        told = await peer.read()
        assert isinstance(told, wire.Changed)
        assert keys(told.listing) == ["run/a/b"]


async def test_a_watch_that_resumes_is_told_what_is_new_if_anything_is() -> None:
    async with asking() as peer:
        assert await peer.commit(1, Put("run/a", b""))
        before = peer.server.table.token
        assert await peer.ask(wire.Follow(2, ("run/",), before)) == wire.Changed(2, None)
        assert await peer.commit(3, Put("run/b", b""))
        told = await peer.read()
        assert isinstance(told, wire.Changed)
        assert (told.id, keys(told.listing)) == (2, ["run/b"])
        followed = await peer.ask(wire.Follow(4, ("run/",), before))
        assert isinstance(followed, wire.Changed)
        assert keys(followed.listing) == ["run/b"]


@pytest.mark.parametrize("opens", [True, False])
async def test_a_second_watch_with_the_same_id_ends_the_connection(opens: bool) -> None:
    async with asking() as peer:
        assert isinstance(await peer.ask(wire.Follow(1, ("a",), None)), wire.Changed)
        peer.send(wire.OpenSession(1, 5.0, (), (), ("b",)) if opens else wire.Follow(1, ("b",), None))
        refused = await peer.read()
        assert isinstance(refused, wire.Refused)
        assert (refused.code, refused.message) == (wire.REFUSED_PROTOCOL, "a second watch with the id 1")


# Sessions


@pytest.mark.parametrize(("ttl", "granted"), [(0.01, 2.0), (2.0, 2.0), (2.5, 2.5), (20.0, 20.0)])
async def test_a_session_has_the_ttl_that_it_asks_for_within_bounds(ttl: float, granted: float) -> None:
    async with asking(shortest_ttl=2, longest_ttl=20) as peer:
        opened = await peer.ask(wire.OpenSession(1, ttl))
        assert isinstance(opened, wire.SessionOpened)
        assert (opened.ttl, opened.commit, opened.listing) == (granted, None, None)
        assert peer.server.table.open_sessions() == [(opened.session, granted)]


@pytest.mark.parametrize("ttl", [0.0, -1.0, 20.1])
async def test_a_session_with_another_ttl_is_refused(ttl: float) -> None:
    async with asking(shortest_ttl=2, longest_ttl=20) as peer:
        refused = await peer.refusal(wire.OpenSession(1, ttl))
        assert refused == (wire.FAILED_INVALID, f"a session's ttl is at most 20 s, not {ttl:g}")


async def test_the_first_commit_of_a_session_is_small_and_under_no_other_session() -> None:
    async with asking() as peer:
        puts = tuple(Put(f"run/{number}", b"", OWN) for number in range(FIRST_WRITES + 1))
        when = tuple(Condition(f"run/{number}", None) for number in range(FIRST_WRITES + 1))
        large = (wire.FAILED_LIMIT, f"a session's first commit has at most {FIRST_WRITES} writes")
        assert await peer.refusal(wire.OpenSession(1, 5.0, puts)) == large
        assert await peer.refusal(wire.OpenSession(1, 5.0, (), when)) == large
        other = (await peer.open(2)).session
        foreign = await peer.refusal(wire.OpenSession(3, 5.0, (Put("run/x", b"", other),)))
        assert foreign == (wire.FAILED_INVALID, "the first commit of a session puts nothing under another one")
        opened = await peer.ask(wire.OpenSession(4, 5.0, puts[:-1], when[:-1]))
        assert isinstance(opened, wire.SessionOpened)
        assert opened.commit is not None
        assert opened.commit.won
        assert peer.server.table.keys_of(opened.session) == FIRST_WRITES


async def test_a_session_its_commit_and_its_watch_come_in_one_answer() -> None:
    async with asking() as peer:
        opened = await peer.ask(wire.OpenSession(1, 5.0, (Put("run/a", b"", OWN),), (), ("run/",)))
        assert isinstance(opened, wire.SessionOpened)
        assert opened.commit is not None
        assert (opened.commit.won, keys(opened.listing)) == (True, ["run/a"])
        assert await peer.commit(2, Put("run/b", b""))
        told = await peer.read()
        assert isinstance(told, wire.Changed)
        assert (told.id, keys(told.listing)) == (1, ["run/b"])


async def test_signs_of_life() -> None:
    async with asking() as peer:
        session = (await peer.open(1)).session
        assert await peer.ask(wire.Renew(2, session)) == wire.Done(2)
        assert await peer.ask(wire.Resume(3, session)) == wire.Done(3)
        assert await peer.ask(wire.Ping(4)) == wire.Done(4)
        assert await peer.ask(wire.EndSession(5, session)) == wire.Done(5)
        assert await peer.ask(wire.EndSession(6, session)) == wire.Done(6), "it has ended"
        for request in (wire.Renew(7, session), wire.Resume(7, session)):
            assert await peer.refusal(request) == (wire.FAILED_SESSION, f"session {session} has ended")


async def test_who_has_the_whole_secret_may_use_the_sessions_of_all() -> None:
    async with asking() as peer:
        theirs = peer.server.table.open_session(20.0, clock.now(), "ns/team-")
        assert await peer.ask(wire.Renew(1, theirs)) == wire.Done(1)
        assert await peer.commit(2, Put("ns/team-1/a", b"", theirs))
        assert await peer.ask(wire.EndSession(3, theirs)) == wire.Done(3)


async def test_goodbye_ends_all_sessions_and_the_connection() -> None:
    async with asking() as peer:
        for id in (1, 2):
            await peer.open(id, Put(f"run/{id}", b"", OWN))
        assert await peer.commit(3, Put("run/3", b""))
        peer.send(wire.Goodbye())
        await peer.read_end()
        assert [each.key for each in peer.server.table.snapshot().entries] == ["run/3"]
        assert peer.server.table.snapshot().answers == {}


# Restricted secrets


async def test_a_restricted_secret_opens_names_and_sessions_of_its_scope_only() -> None:
    async with asking(SECRET, "ns/team-") as peer:
        assert await peer.ask(wire.Get(1, "ns/team-1/a")) == wire.Found(1, None)
        denied = (wire.FAILED_DENIED, "this client's secret opens ns/team-* only, not ns/other/a")
        for request in (
            wire.Get(2, "ns/other/a"),
            wire.Follow(2, ("ns/team-1/a", "ns/other/a"), None),
            wire.Transact(2, 1, 0, (), (Condition("ns/other/a", None),)),
            wire.Transact(2, 1, 0, (Put("ns/team-1/a", b""), Delete("ns/other/a")), ()),
        ):
            assert await peer.refusal(request) == denied
        mine = (await peer.open(3)).session
        assert mine.endswith("@ns/team-")
        theirs = peer.server.table.open_session(20.0, 0.0)
        denied = (wire.FAILED_DENIED, f"session {theirs} is not one of those that ns/team-* opened")
        for foreign in (
            wire.Renew(4, theirs),
            wire.Resume(4, theirs),
            wire.EndSession(4, theirs),
            wire.Transact(4, 1, 0, (Put("ns/team-1/a", b"", theirs),), ()),
            wire.Transact(4, 1, 0, (Put("ns/team-1/b", b"", mine), Put("ns/team-1/a", b"", theirs)), ()),
        ):
            assert await peer.refusal(foreign) == denied
        assert await peer.ask(wire.Renew(5, mine)) == wire.Done(5)


def test_bounds_that_no_limit_sets() -> None:
    assert (MAX_NAME, MAX_DEPTH, requests.DEPTH, MAX_UNSETTLED, NAME_COST) == (4096, 32, 8, 65_536, 64)
