"""One connection, byte by byte and in virtual time: greeting, answering in order, holding back, and the end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import anyio
import pytest

from rendezvous_async.backends.base import Listing, Put, Token
from rendezvous_async.backends.tcp import Limits, TcpServer, restrict, serve, wire
from rendezvous_async.backends.tcp.auth import Secret, prove, verify
from rendezvous_async.backends.tcp.server import connection as module
from rendezvous_async.backends.tcp.server import unfinished
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.server.handshake import MAX_REVISION
from rendezvous_async.backends.tcp.versions import PROTOCOLS, no_common_version
from tests.backends.tcp.server.peer import Peer, welcome
from tests.backends.tcp.support import connected
from tests.meeting import in_virtual_time

SLOW = 64 * 1024
"""So many bytes may wait for a peer before it counts as one that does not read."""


def refused(code: str, message: str) -> list[wire.AnyMessage]:
    return [wire.Refused(code, message)]


def make(secret: str | None = None, **limits: Any) -> TcpServer:
    return TcpServer(secret=None if secret is None else Secret.parse(secret), limits=Limits(**limits))


# The greeting


@in_virtual_time
async def test_who_says_hello_is_welcome() -> None:
    server = make()
    peer = Peer(server)
    assert peer.greets() == [welcome(server)]
    assert (peer.connection.client, peer.connection.scope) == ("client", "")
    assert peer.says(wire.Ping(1), wire.Ping(2)) == [wire.Done(1), wire.Done(2)]
    await anyio.sleep(3600)
    assert not peer.is_cut, "the time for the handshake is over when it is"
    await server.aclose()


@in_virtual_time
async def test_a_hello_and_the_first_request_may_come_together_and_in_pieces() -> None:
    server = make()
    data = wire.frame(wire.Hello(PROTOCOLS, "client", 1, 0, b"")) + wire.frame(wire.Ping(1))
    for piece in (1, 3, len(data)):
        peer = Peer(server)
        told = [each for at in range(0, len(data), piece) for each in peer.sends(data[at : at + piece])]
        assert told == [welcome(server), wire.Done(1)]
        peer.loses()
        await anyio.sleep(1)
        server._numbers.clear()
    await server.aclose()


@pytest.mark.parametrize("since", [None, -3.0])
@in_virtual_time
async def test_who_does_not_is_told_that_it_took_too_long(since: float | None) -> None:
    """The time began when the connection was accepted, which may be before."""
    server = make(handshake=5)
    peer = Peer(server, since=None if since is None else anyio.current_time() + since)
    await anyio.sleep(4.9 + (since or 0))
    assert peer.hears() == []
    await anyio.sleep(0.2)
    assert peer.hears() == refused(wire.REFUSED_LATE, "the handshake took more than 5 s")
    assert peer.greets() == [], "nothing is listened to any more"
    await server.aclose()


@in_virtual_time
async def test_another_version_is_told_both() -> None:
    server = make()
    for offered in ((), (PROTOCOLS[0] - 1,), (PROTOCOLS[-1] + 1,)):
        told = Peer(server).says(wire.Hello(offered, "client", 1, 0, b""))
        assert told == refused(wire.REFUSED_VERSION, no_common_version(offered))
    await server.aclose()


@pytest.mark.parametrize(
    ("client", "revision", "is_good"),
    [
        ("c", 0, True),
        ("c" * 10, MAX_REVISION, True),
        ("", 0, False),
        ("c" * 11, 0, False),
        ("c", -1, False),
    ],
)
@in_virtual_time
async def test_a_hello_has_a_name_and_a_revision_within_bounds(client: str, revision: int, is_good: bool) -> None:
    assert MAX_REVISION == 2**63 - 1
    server = make(client_id=10)
    told = Peer(server).greets(client, revision=revision)
    bad = refused(wire.REFUSED_PROTOCOL, "a hello with a bad name or revision")
    assert told == ([welcome(server)] if is_good else bad)
    await server.aclose()


@in_virtual_time
async def test_a_secret_is_asked_for_and_proved_on_both_sides() -> None:
    secret = "a secret of enough characters"
    server = make(secret)
    key = Secret.parse(secret).key_for("")
    assert key is not None
    hello = wire.Hello(PROTOCOLS, "client", 1, 0, b"nonce")
    for is_right in (True, False):
        peer = Peer(server)
        [challenge] = peer.says(hello)
        assert isinstance(challenge, wire.Challenge)
        bodies = wire.frame(hello)[4:], wire.frame(challenge)[4:]
        told = peer.says(wire.Proof(prove(key, "client" if is_right else "server", *bodies)))
        if is_right:
            [answer] = told
            assert isinstance(answer, wire.Welcome)
            assert verify(key, "server", *bodies, answer.proof)
            assert peer.connection.client == "client"
        else:
            assert told == refused(wire.REFUSED_SECRET, "the client does not know the server's secret")
            assert peer.connection.client is None
    await server.aclose()


@in_virtual_time
async def test_who_says_that_its_secret_opens_what_the_servers_does_not_is_refused() -> None:
    server = make(restrict("a secret of enough characters", "team-"))
    peer = Peer(server)
    assert isinstance(peer.greets(scope="other/")[0], wire.Challenge)
    why = "the client does not know the server's secret"
    assert peer.says(wire.Proof(b"x" * 32)) == refused(wire.REFUSED_SECRET, why)
    await server.aclose()


@pytest.mark.parametrize("secret", [None, "a secret of enough characters"])
@in_virtual_time
async def test_a_greeting_out_of_turn_ends_the_connection(secret: str | None) -> None:
    server = make(secret)
    out_of_turn = refused(wire.REFUSED_PROTOCOL, "a greeting out of turn")
    assert Peer(server).says(wire.Proof(b"proof")) == out_of_turn
    if secret is not None:
        peer = Peer(server)
        assert isinstance(peer.greets()[0], wire.Challenge)
        assert peer.greets() == out_of_turn
    await server.aclose()


@in_virtual_time
async def test_an_older_connection_of_a_client_is_refused_and_its_older_one_cut() -> None:
    server = make()
    old, new, late = (Peer(server) for _ in range(3))
    old.greets(connection=4)
    assert new.greets(connection=5) == [welcome(server)]
    assert old.is_cut
    assert late.greets(connection=5) == refused(wire.REFUSED_STALE, "a newer connection of this client is here")
    assert new.says(wire.Ping(1)) == [wire.Done(1)]
    await server.aclose()


@in_virtual_time
async def test_a_frame_is_as_long_as_it_may_be_before_and_after_the_welcome() -> None:
    assert wire.HANDSHAKE_FRAME < 10_000
    server = make(frame=10_000)

    def frame_of(length: int) -> bytes:
        return length.to_bytes(4, "big") + b"\xc1" * length

    for greeted, most in ((False, wire.HANDSHAKE_FRAME), (True, 10_000)):
        for length, says in ((most + 1, f"a frame of {most + 1} bytes; at most {most} are allowed"), (most, "")):
            peer = Peer(server)
            if greeted:
                peer.greets(f"{length}")
            [told] = peer.sends(frame_of(length))
            assert isinstance(told, wire.Refused)
            assert told.code == wire.REFUSED_PROTOCOL
            assert (told.message == says) is bool(says)
    await server.aclose()


# The end


@pytest.mark.parametrize("can_write_eof", [True, False])
@in_virtual_time
async def test_who_is_refused_has_a_second_to_read_why(can_write_eof: bool) -> None:
    server = make()
    peer = Peer(server, can_write_eof=can_write_eof)
    peer.greets()
    peer.wire.calls.clear()
    peer.connection.refuse("code", "why")
    peer.connection.refuse("code", "again")
    assert peer.says(wire.Ping(1)) == refused("code", "why")
    assert peer.wire.calls == ["eof" if can_write_eof else "close"]
    await anyio.sleep(0.9)
    assert peer.is_cut is not can_write_eof
    await anyio.sleep(0.2)
    assert peer.is_cut
    assert server.connections == 0
    await server.aclose()


@in_virtual_time
async def test_who_is_refused_while_it_is_not_read_from_is_read_from_again() -> None:
    """A close with bytes unread would be a reset."""
    server = make(in_flight=1)
    peer = Peer(server)
    peer.greets()
    peer.connection.pause_writing()
    peer.says(wire.Ping(1))
    assert peer.wire.calls[-1] == "pause"
    peer.connection.refuse("code", "why")
    assert peer.wire.calls[-2:] == ["eof", "resume"]
    await server.aclose()


@in_virtual_time
async def test_a_peer_that_is_gone_before_it_is_told_is_no_error() -> None:
    server = make()
    peer = Peer(server)
    peer.loses()
    await anyio.sleep(0.1)
    for act in (peer.connection.close, peer.connection.abort, peer.connection.flush):
        act()
    peer.connection.refuse("code", "why")
    assert (peer.hears(), server.connections) == ([], 0)
    await server.aclose()


@in_virtual_time
async def test_a_full_server_tells_why_and_keeps_nothing() -> None:
    server = make(connections=1)
    first, second = Peer(server), Peer(server)
    assert second.hears() == refused(wire.REFUSED_LIMIT, "the server has its 1 connections; try again later")
    assert second.greets() == []
    assert server.connections == 1
    first.loses()
    await anyio.sleep(2)
    assert server.connections == 0
    assert not server._turned_away
    await server.aclose()


# Answers


@in_virtual_time
async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    server = make()
    peer = Peer(server)
    peer.greets()
    assert peer.wire.calls == [f"high={SLOW}"]
    peer.connection.pause_writing()
    assert peer.says(wire.Ping(1), wire.Ping(2)) == []
    assert peer.wire.calls[1:] == ["pause"]
    assert peer.says(wire.Ping(3)) == []
    assert peer.wire.calls[1:] == ["pause"], "once"
    peer.connection.resume_writing()
    assert peer.hears() == [wire.Done(1), wire.Done(2), wire.Done(3)]
    assert peer.wire.calls[1:] == ["pause", "resume"]
    assert peer.says(wire.Ping(4)) == [wire.Done(4)]
    peer.connection.pause_writing()
    assert peer.says(wire.Ping(5)) == []
    assert "" not in server.turns._jobs, "it is not tried again and again"
    peer.connection.resume_writing()
    assert peer.hears() == [wire.Done(5)]
    assert peer.wire.calls[1:] == ["pause", "resume", "pause", "resume"]
    await server.aclose()


@in_virtual_time
async def test_what_nobody_may_hear_is_not_done() -> None:
    server = make()
    peer = Peer(server)
    peer.greets()
    peer.says(wire.Ping(1))
    peer.connection.abort()
    assert peer.says(wire.Transact(1, 1, 0, (Put("run/a", b""),), ())) == []
    peer.connection.resume_writing()
    assert len(server.table) == 0
    await server.aclose()


@in_virtual_time
async def test_requests_behind_one_that_ends_the_connection_are_not_done() -> None:
    server = make()
    peer = Peer(server)
    peer.greets()
    told = peer.says(wire.Ping(1), wire.Goodbye(), wire.Transact(2, 1, 0, (Put("run/a", b""),), ()))
    assert told == [wire.Done(1)]
    assert (len(server.table), peer.is_cut) == (0, True)
    await server.aclose()


@in_virtual_time
async def test_what_makes_no_sense_is_refused_after_the_answers_before_it() -> None:
    server = make()
    peer = Peer(server)
    peer.greets()
    done, why = peer.sends(wire.frame(wire.Ping(1)) + b"\0\0\0\1\xc1" + wire.frame(wire.Ping(2)))
    assert done == wire.Done(1)
    assert isinstance(why, wire.Refused)
    assert why.code == wire.REFUSED_PROTOCOL
    await server.aclose()


@pytest.mark.parametrize(("length", "is_sent"), [(100, True), (101, False)])
@in_virtual_time
async def test_an_answer_is_as_long_as_a_client_takes(
    monkeypatch: pytest.MonkeyPatch, length: int, is_sent: bool
) -> None:
    server = make()
    server.table.commit([Put("run/a", b"x" * 50)])
    listing = server.table.list("run/a")
    size = len(wire.frame(wire.Listed(1, listing)))
    monkeypatch.setattr(wire, "MAX_ANSWER", size + 100 - length)
    peer = Peer(server)
    peer.greets()
    peer.connection.send(wire.Done(7))
    assert peer.connection.send_if_short(1, wire.Listed(1, listing), listing.entries) is is_sent
    peer.connection.flush()
    first, second = peer.hears()
    assert first == wire.Done(7)
    if is_sent:
        assert second == wire.Listed(1, listing)
    else:
        assert isinstance(second, wire.Failed)
        assert (second.id, second.code) == (1, wire.FAILED_LIMIT)
    await server.aclose()


# Slices


class Ticking:
    """A clock that goes on by more than a slice each time that it is looked at."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


@in_virtual_time
async def test_who_takes_long_has_one_request_answered_in_a_turn_and_others_wait_for_the_next() -> None:
    server = make()
    peer, other = Peer(server), Peer(server)
    peer.greets("peer")
    other.greets("other")
    await anyio.sleep(1)
    server.turns.now = Ticking()
    assert peer.says(wire.Ping(1), wire.Ping(2), wire.Ping(3)) == [wire.Done(1)]
    assert peer.wire.calls[-1] == "pause"
    assert other.says(wire.Ping(4)) == [], "this turn's slice is over, for all connections together"
    assert other.says(wire.Ping(5)) == []
    assert [len(jobs) for jobs in server.turns._jobs.values()] == [2], "one for each, however much it sends"
    await anyio.sleep(1)
    assert peer.hears() == [wire.Done(2), wire.Done(3)]
    assert other.hears() == [wire.Done(4), wire.Done(5)]
    assert peer.wire.calls[-1] == other.wire.calls[-1] == "resume"
    await server.aclose()


@in_virtual_time
async def test_strangers_take_turns_with_each_other_and_tenants_with_those_of_their_scope() -> None:
    server = make()
    tenants = [Peer(server) for _ in range(3)]
    for peer, scope in zip(tenants, ("", "ns/a", "ns/a"), strict=True):
        peer.greets(f"{id(peer)}", scope=scope)
    await anyio.sleep(1)
    server.turns.now = Ticking()
    for peer in tenants:
        peer.says(wire.Ping(1), wire.Ping(2))
    for name in ("x", "y"):
        Peer(server).greets(name)
    assert {group: len(jobs) for group, jobs in server.turns._jobs.items()} == {"": 1, "ns/a": 2, "?": 2}
    await anyio.sleep(1)
    assert not server.turns._jobs
    await server.aclose()


@in_virtual_time
async def test_who_took_long_queues_with_what_it_sends_next() -> None:
    server = make()
    peer, other = Peer(server), Peer(server)
    peer.greets("peer")
    other.greets("other")
    await anyio.sleep(1)
    true, server.turns.now = server.turns.now, Ticking()
    assert peer.says(wire.Ping(1)) == [wire.Done(1)]
    server.turns.now = lambda: 0.0  # There is time left in this turn, but not for the same peer.
    assert peer.says(wire.Ping(2)) == []
    assert other.says(wire.Ping(3)) == [wire.Done(3)]
    server.turns.now = true
    await anyio.sleep(1)
    assert peer.hears() == [wire.Done(2)]
    assert peer.says(wire.Ping(4)) == [wire.Done(4)]
    await server.aclose()


@in_virtual_time
async def test_what_waits_for_a_later_turn_is_not_done_when_the_peer_is_gone() -> None:
    server = make()
    peer = Peer(server)
    watching(peer, 1)
    await anyio.sleep(1)
    server.turns.now = Ticking()
    peer.says(wire.Ping(1), wire.Transact(2, 1, 0, (Put("run/1", b""),), ()))
    peer.loses()
    peer.connection.connection_lost(None)
    await anyio.sleep(1)
    assert len(server.table) == 0
    await server.aclose()


@in_virtual_time
async def test_nothing_is_kept_of_a_connection_that_is_gone() -> None:
    server = make()
    peer, stranger = Peer(server), Peer(server)
    watching(peer, 1)
    server.table.commit([Put("run/1", b"")])
    server.pushes.settle()
    peer.connection.send(wire.Done(1))
    for each in (peer, stranger):
        each.connection.connection_lost(None)
        assert each.connection._late is not None
        assert each.connection._late.cancelled()
        assert (bytes(each.connection._out), each.connection._dirty, each.connection.watchers) == (b"", [], {})
    assert repr(peer.connection) == "<Connection client from None watches=0>"
    await anyio.sleep(1)
    assert peer.hears() == []
    await server.aclose()


async def test_the_kernel_looks_after_peers_that_are_silent() -> None:
    async with serve(port=0) as server, connected(server.endpoint):
        [connection] = server._connections
        assert isinstance(connection, Connection)
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        options = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [15, 5, 3]


# Unfinished requests


@in_virtual_time
async def test_what_is_not_all_there_counts_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make()
    peer = Peer(server)
    half = wire.frame(wire.Hello(PROTOCOLS, "client", 1, 0, b"nonce"))
    peer.sends(half[:-3])
    assert server.unfinished.kept("") == 0, "strangers have little"
    peer.sends(half[-3:])
    data = wire.frame(wire.Transact(1, 1, 0, (Put("run/a", b"x" * 1000),), ()))
    for end, kept in ((10, 10), (500, 500), (len(data), 0)):
        peer.sends(data[{10: 0, 500: 10, len(data): 500}[end] : end])
        assert server.unfinished.kept("") == kept
    peer.sends(data[:77])
    assert server.unfinished.kept("") == 77
    peer.loses()
    await anyio.sleep(0.1)
    assert server.unfinished.kept("") == 0
    await server.aclose()


@in_virtual_time
async def test_too_much_that_is_not_all_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "MAX_UNFINISHED", 1000)
    server = make()
    one, other = Peer(server), Peer(server)
    one.greets("one")
    other.greets("other")
    data = wire.frame(wire.Transact(1, 1, 0, (Put("run/a", b"x" * 5000),), ()))
    assert one.sends(data[:600]) == []
    assert other.sends(data[:400]) == []
    [told] = other.sends(data[400:401])
    assert isinstance(told, wire.Refused)
    assert told.code == wire.REFUSED_LIMIT
    assert not one.is_cut
    await server.aclose()


# Watches


def watching(peer: Peer, *ids: int) -> None:
    peer.greets()
    for id in ids:
        peer.says(wire.Follow(id, (f"run/{id}",), None))


@in_virtual_time
async def test_news_are_told_to_each_watch_as_of_now() -> None:
    server = make()
    peer = Peer(server)
    watching(peer, 1, 2, 3)
    server.table.commit([Put("run/3", b""), Put("run/1", b"")])
    server.pushes.settle()
    server.table.commit([Put("run/1", b"again")])
    server.pushes.settle()
    await anyio.sleep(0.1)
    told = peer.hears()
    assert [(each.id, each.listing.entries[0].value) for each in told] == [(3, b""), (1, b"again")]
    assert {each.listing.token.revision for each in told} == {2}
    await server.aclose()


async def test_all_that_is_news_to_a_peer_is_told_in_one_turn_if_there_is_time() -> None:
    server = make()
    peer = Peer(server)
    server.turns.now = lambda: 0.0  # However slow this machine is.
    watching(peer, 1, 2, 3)
    server.table.commit([Put(f"run/{number}", b"") for number in (1, 2, 3)])
    server.pushes.settle()
    await asyncio.sleep(0)
    assert sorted(each.id for each in peer.hears()) == [1, 2, 3]
    await server.aclose()


@in_virtual_time
async def test_a_slow_reader_is_told_the_newest_when_it_reads_on() -> None:
    server = make()
    peer = Peer(server)
    watching(peer, 1, 2)
    peer.connection.pause_writing()
    for number in range(5):
        server.table.commit([Put("run/1", b"%d" % number)])
        server.pushes.settle()
        await anyio.sleep(0.1)
    assert peer.hears() == []
    peer.says(wire.Unfollow(2))
    peer.connection.resume_writing()
    await anyio.sleep(0.1)
    [told] = peer.hears()
    assert told == wire.Changed(1, Listing(server.table.list("run/1").entries, server.table.token, complete=False))
    await server.aclose()


@in_virtual_time
async def test_a_watch_that_has_ended_is_told_nothing_though_it_was_marked() -> None:
    server = make()
    peer = Peer(server)
    watching(peer, 1, 2)
    server.table.commit([Put("run/1", b""), Put("run/2", b"")])
    server.pushes.settle()
    peer.says(wire.Unfollow(1))
    await anyio.sleep(0.1)
    assert [each.id for each in peer.hears()] == [2]
    await server.aclose()


@in_virtual_time
async def test_what_a_peer_has_settled_is_not_told_again() -> None:
    """It knew everything up to then, since nothing of its concern had changed."""
    server = make()
    peer = Peer(server)
    watching(peer, 1)
    server.table.commit([Put("other", b"")])
    server.pushes.settle()
    watcher = peer.connection.watchers[1]
    assert watcher.seen == Token(server.table.epoch, 0)
    server.table.commit([Put("run/1", b"")])
    server.pushes.settle()
    assert watcher.seen == Token(server.table.epoch, 1)
    peer.connection.mark(watcher, Token(server.table.epoch, 0))
    assert watcher.seen == Token(server.table.epoch, 1)
    await anyio.sleep(0.1)
    assert (watcher.seen, watcher.dirty) == (server.table.token, False)
    await server.aclose()


@in_virtual_time
async def test_a_connection_that_ends_leaves_nothing_of_its_watches() -> None:
    server = make()
    peer = Peer(server)
    watching(peer, 1, 2)
    peer.says(wire.OpenSession(3, 20.0, (Put("run/3", b"", ""),), (), ("run/",)))
    assert (len(server.fanout), server.connections) == (3, 1)
    peer.loses()
    await anyio.sleep(0.5)
    assert (len(server.fanout), server.connections, len(server.table)) == (0, 0, 1)
    await anyio.sleep(1)
    assert len(server.table) == 0
    await server.aclose()


@in_virtual_time
async def test_a_connection_says_who_it_is() -> None:
    server = make()
    peer = Peer(server)
    assert repr(peer.connection) == "<Connection unknown from ('192.0.2.7', 4711) watches=0>"
    watching(peer, 1)
    assert repr(peer.connection) == "<Connection client from ('192.0.2.7', 4711) watches=1>"
    assert isinstance(peer.connection, Connection)
    await server.aclose()


def test_bounds_of_a_connection() -> None:
    assert (module._SLOW_READER, module._LAST_WORDS) == (SLOW, 1.0)
