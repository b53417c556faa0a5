"""Who has which session for how long, whom a server remembers and for how long, and what is left when it stops."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import OWN, Put
from rendezvous_async.backends.tcp import Limits, TcpServer, wire
from rendezvous_async.backends.tcp.server import server as module
from rendezvous_async.backends.tcp.server.limits import DISCONNECT_GRACE
from rendezvous_async.backends.tcp.server.server import CLAIM, SCOPED_CLAIM
from tests.backends.tcp.server.peer import Peer, welcome
from tests.meeting import in_virtual_time


class Scene:
    """A server, and when its sessions end, as seconds from the beginning."""

    def __init__(self, **options: Any) -> None:
        self.server = TcpServer(**options)
        self.began = clock.now()
        self.ended: dict[str, float] = {}
        self.server.listeners.append(lambda keys: self.note(*keys))

    def note(self, *keys: str) -> None:
        self.ended.update((key, clock.now() - self.began) for key in keys if self.server.table.get(key) is None)

    def peer(self, client: str = "client", connection: int = 1, scope: str = "") -> Peer:
        peer = Peer(self.server)
        assert peer.greets(client, connection, scope=scope) == [welcome(self.server)]
        return peer

    def open(self, peer: Peer, key: str, ttl: float = 20.0) -> str:
        """Open a session with a key that goes with it."""
        [opened] = peer.says(wire.OpenSession(1, ttl, (Put(key, b"", OWN),)))
        assert isinstance(opened, wire.SessionOpened)
        return opened.session

    async def at(self, second: float) -> None:
        await anyio.sleep(self.began + second - clock.now())


# Sessions


@in_virtual_time
async def test_a_silent_session_has_its_ttl_and_a_sign_of_life_gives_it_another() -> None:
    scene = Scene()
    peer = scene.peer()
    first = scene.open(peer, "first", 5)
    scene.open(peer, "second", 8)
    await scene.at(4)
    assert peer.says(wire.Renew(1, first)) == [wire.Done(1)]
    await scene.at(30)
    assert scene.ended == {"first": 9, "second": 8}
    assert peer.says(wire.Renew(1, first))[0].code == wire.FAILED_SESSION
    assert not scene.server._owners
    await scene.server.aclose()


@in_virtual_time
async def test_a_lost_connection_leaves_its_sessions_the_grace_unless_their_ttl_is_over_before() -> None:
    scene = Scene(disconnect_grace=2)
    peer = scene.peer()
    for key, ttl in (("long", 20), ("short", 5.5)):
        scene.open(peer, key, ttl)
    await scene.at(4)
    peer.loses()
    await scene.at(30)
    assert scene.ended == {"short": 5.5, "long": 6}
    assert not scene.server._owners
    await scene.server.aclose()


@pytest.mark.parametrize(("request_", "ends"), [(wire.Renew, 25), (wire.Resume, 20), (None, 6)])
@in_virtual_time
async def test_a_client_that_comes_back_in_time_has_its_session(request_: Any, ends: float) -> None:
    """To resume is to have the time that was left, and a keep-alive is a sign of life."""
    scene = Scene(disconnect_grace=2)
    peer = scene.peer()
    session = scene.open(peer, "key")
    await scene.at(4)
    peer.loses()
    await scene.at(5)
    back = scene.peer(connection=2)
    if request_ is not None:
        assert back.says(request_(1, session)) == [wire.Done(1)]
    await scene.at(60)
    assert scene.ended == {"key": ends}
    await scene.server.aclose()


@in_virtual_time
async def test_a_session_belongs_to_the_connection_that_used_it_last() -> None:
    scene = Scene()
    first, second = scene.peer("first"), scene.peer("second")
    session = scene.open(first, "key")
    assert second.says(wire.Renew(1, session)) == [wire.Done(1)]
    assert (first.connection.sessions, second.connection.sessions) == (set(), {session})
    await scene.at(1)
    first.loses()
    await scene.at(5)
    assert scene.ended == {}
    second.loses()
    await scene.at(30)
    assert scene.ended == {"key": 6}
    await scene.server.aclose()


@in_virtual_time
async def test_who_ends_a_session_takes_it_from_its_owner() -> None:
    scene = Scene()
    owner, other = scene.peer("owner"), scene.peer("other")
    session = scene.open(owner, "key")
    assert other.says(wire.EndSession(1, session), wire.EndSession(2, session)) == [wire.Done(1), wire.Done(2)]
    assert (owner.connection.sessions, scene.server._owners) == (set(), {})
    owner.loses()
    await scene.at(30)
    assert scene.ended == {"key": 0}
    await scene.server.aclose()


@in_virtual_time
async def test_goodbye_ends_what_is_a_clients_own_at_once() -> None:
    scene = Scene()
    leaver, other = scene.peer("leaver"), scene.peer("other")
    for peer, keys in ((leaver, "abc"), (other, "d")):
        for key in keys:
            scene.open(peer, key)
    await scene.at(1)
    leaver.says(wire.Goodbye())
    await scene.at(10)
    assert scene.ended == {"a": 1, "b": 1, "c": 1}
    await scene.server.aclose()


@in_virtual_time
async def test_who_waits_for_the_last_session_is_told_when_it_has_ended() -> None:
    scene = Scene()
    with anyio.fail_after(1):
        await scene.server.without_sessions()
    peer = scene.peer()
    for key, ttl in (("a", 5), ("b", 8)):
        scene.open(peer, key, ttl)
    await scene.server.without_sessions()
    assert clock.now() - scene.began == 8
    await scene.server.aclose()


@in_virtual_time
async def test_who_waits_for_the_last_session_does_not_outwait_the_server() -> None:
    scene = Scene()
    scene.open(scene.peer(), "key")
    await scene.server.aclose()
    with anyio.fail_after(1):
        await scene.server.without_sessions()


# Clients


@in_virtual_time
async def test_the_answers_of_a_client_that_is_gone_are_kept_for_a_while() -> None:
    scene = Scene()
    for name, at in (("first", 0.0), ("second", 100.0)):
        await scene.at(at)
        peer = scene.peer(name)
        peer.says(wire.Transact(1, 1, 0, (Put(f"run/{name}", b""),), ()))
        peer.loses()
    last = scene.peer("last")

    async def known_at(second: float) -> list[str]:
        await scene.at(second)
        passer_by = scene.peer(f"passer-by {second}")
        passer_by.loses()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        return sorted(scene.server.table.snapshot().answers)

    last.says(wire.Transact(1, 1, 0, (Put("run/last", b""),), ()))
    assert await known_at(599) == ["first", "last", "second"]
    assert await known_at(601) == ["last", "second"]
    back = scene.peer("second", 2)
    assert await known_at(800) == ["last", "second"], "it is here again"
    back.loses()
    assert await known_at(1399) == ["last", "second"]
    assert await known_at(1401) == ["last"]
    await scene.server.aclose()


@in_virtual_time
async def test_no_more_clients_are_remembered_than_the_bound_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_CLIENTS", 3)
    scene = Scene()
    for number in range(6):
        peer = scene.peer(f"{number}")
        peer.says(wire.Transact(1, 1, 0, (Put("run/key", b""),), ()))
        peer.loses()
        await anyio.sleep(0.1)
    assert sorted(scene.server.table.snapshot().answers) == ["3", "4", "5"]
    assert sorted(scene.server._numbers) == ["3", "4", "5"]
    await scene.server.aclose()


@in_virtual_time
async def test_a_client_that_says_goodbye_is_forgotten_at_once() -> None:
    scene = Scene()
    peer = scene.peer(connection=7)
    peer.says(wire.Transact(1, 1, 0, (Put("run/key", b""),), ()))
    peer.says(wire.Goodbye())
    await anyio.sleep(0.1)
    assert scene.server.table.snapshot().answers == {}
    assert scene.peer(connection=1).connection.client == "client", "its connections count from the beginning again"
    await scene.server.aclose()


@in_virtual_time
async def test_an_old_connection_that_ends_late_does_not_end_what_is_the_new_ones() -> None:
    scene = Scene()
    old = scene.peer(connection=1)
    session = scene.open(old, "key")
    new = scene.peer(connection=2)
    assert new.says(wire.Resume(1, session)) == [wire.Done(1)]
    await scene.at(1)
    assert old.is_cut
    assert scene.server._clients == {"client": new.connection}
    assert not scene.server._gone
    await scene.at(10)
    assert scene.ended == {}
    await scene.server.aclose()


@in_virtual_time
async def test_clients_of_different_scopes_may_have_one_name() -> None:
    scene = Scene()
    one, other, third = scene.peer("c", 5), scene.peer("c", 1, scope="ns/a"), scene.peer("c", 1, scope="ns/b")
    assert [peer.connection.client for peer in (one, other, third)] == ["c", "ns/a|c", "ns/b|c"]
    assert not any(peer.is_cut for peer in (one, other, third))
    await scene.server.aclose()


@pytest.mark.parametrize(
    ("scope", "claims", "believed"),
    [("", 5, 5), ("", CLAIM, CLAIM), ("", CLAIM + 1, CLAIM), ("ns/a", SCOPED_CLAIM + 1, SCOPED_CLAIM)],
)
@in_virtual_time
async def test_a_hello_is_believed_up_to_a_bound(scope: str, claims: int, believed: int) -> None:
    scene = Scene()
    peer = Peer(scene.server)
    [told] = peer.greets(revision=claims, scope=scope)
    assert isinstance(told, wire.Welcome)
    assert told.revision == scene.server.table.revision == believed
    Peer(scene.server).greets("other", revision=3)
    assert scene.server.table.revision == believed
    await scene.server.aclose()


# Places


@in_virtual_time
async def test_those_who_are_told_why_not_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURNED_AWAY_AT_ONCE", 2)
    scene = Scene(limits=Limits(connections=1))
    peers = [Peer(scene.server) for _ in range(4)]
    assert [len(peer.hears()) for peer in peers] == [0, 1, 1, 0]
    assert [peer.is_cut for peer in peers] == [False, False, False, True]
    assert scene.server.connections == 1
    await anyio.sleep(2)
    assert not scene.server._turned_away
    late = Peer(scene.server)
    assert len(late.hears()) == 1
    await scene.server.aclose()


@in_virtual_time
async def test_a_process_with_few_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda what: (2, 2))
    scene = Scene(limits=Limits(connections=5))
    Peer(scene.server)
    [told] = Peer(scene.server).hears()
    why = "the server has its 1 connections (its limit of open files allows no more); try again later"
    assert told == wire.Refused(wire.REFUSED_LIMIT, why)
    await scene.server.aclose()


@in_virtual_time
async def test_a_server_that_closes_says_so_to_all_and_does_nothing_more() -> None:
    scene = Scene()
    peer, silent = scene.peer(), Peer(scene.server)
    scene.open(peer, "key", 5)
    async with anyio.create_task_group() as group:
        group.start_soon(scene.server.aclose)
        await anyio.lowlevel.checkpoint()
    closing = wire.Refused(wire.REFUSED_CLOSING, "the server is closing")
    assert peer.hears() == silent.hears() == [closing]
    assert peer.is_cut
    late = Peer(scene.server)
    assert late.hears() == [closing]
    await scene.at(30)
    assert (scene.ended, scene.server.table.sessions) == ({}, 1), "sessions outlive it, in a log"
    await scene.server.aclose()
    assert repr(scene.server).startswith("<TcpServer  connections=0 ")


def test_bounds_of_a_server() -> None:
    assert (DISCONNECT_GRACE, module.REMEMBER_CLIENT, module.REMEMBERED_CLIENTS) == (1.0, 600.0, 65_536)
    assert (CLAIM, SCOPED_CLAIM) == (2**62, 2**48)
