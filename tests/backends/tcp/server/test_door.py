"""The accept gate: everybody counts from the accept on, and running out of files is a pause and one line."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
import trustme

from rendezvous_async.aio import clock
from rendezvous_async.backends.tcp.server import door as module
from rendezvous_async.backends.tcp.server.door import ACCEPT_AT_ONCE, Caller, Gate
from tests.backends.tcp.support import eventually


class Greeter(asyncio.Protocol):
    """The peer that takes over."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(b"hello")


class Listener(socket.socket):
    """A socket that says that there are no files left, as often as it is told to."""

    failures = 0
    error = errno.EMFILE
    accepted = 0

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(self.error, os.strerror(self.error))
        found = super().accept()
        self.accepted += 1
        return found


class Entrance:
    """A gate, who came, and who has gone."""

    def __init__(self) -> None:
        self.peers: list[Greeter] = []
        self.story: list[str] = []
        self.refuses = False
        self.on_admit: Callable[[], object] = lambda: None
        self.gate = Gate("the server", self.admit, self.leave, self.make_peer, tls=None, handshake=5.0)
        self.listener = Listener()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(500)
        self.listener.setblocking(False)
        self.clients: list[socket.socket] = []

    def admit(self, caller: Caller) -> None:
        self.story.append("admit")
        self.on_admit()
        if self.refuses:
            caller.refuse("code", "why")

    def leave(self, caller: Caller) -> None:
        self.story.append("leave")

    def make_peer(self, since: float) -> Greeter:
        self.peers.append(Greeter(since))
        return self.peers[-1]

    def call(self, count: int = 1) -> None:
        """Connect, as far as the kernel is concerned."""
        self.clients += [socket.create_connection(self.listener.getsockname()) for _ in range(count)]

    async def hears(self, client: socket.socket) -> bytes:
        client.setblocking(False)
        with anyio.fail_after(10):
            return await asyncio.get_running_loop().sock_recv(client, 100)


def server_tls() -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    return tls


@pytest.fixture
async def entrance() -> AsyncIterator[Entrance]:
    entrance = Entrance()
    yield entrance
    await entrance.gate.aclose()
    for peer in entrance.peers:
        if peer.transport is not None:
            peer.transport.abort()
    for client in entrance.clients:
        client.close()
    entrance.listener.close()
    await asyncio.sleep(0)


async def test_a_caller_is_admitted_and_its_peer_takes_over(entrance: Entrance) -> None:
    entrance.gate.open([entrance.listener])
    began = clock.now()
    entrance.call()
    assert await entrance.hears(entrance.clients[0]) == b"hello"
    assert began <= entrance.peers[0].since <= clock.now()
    await eventually(lambda: not entrance.gate.callers)
    assert entrance.story[:2] == ["admit", "leave"]
    assert entrance.peers[0].transport.get_protocol() is entrance.peers[0]
    assert entrance.peers[0].transport.get_extra_info("socket").gettimeout() == 0, "it never blocks the loop"


async def test_a_caller_that_is_refused_is_cut_off_and_never_a_peer(entrance: Entrance) -> None:
    entrance.refuses = True
    entrance.gate.open([entrance.listener])
    entrance.call()
    assert await entrance.hears(entrance.clients[0]) == b""
    assert (entrance.peers, entrance.gate.callers) == ([], set())


async def test_so_many_are_accepted_in_one_turn(entrance: Entrance) -> None:
    entrance.call(ACCEPT_AT_ONCE + 20)
    seen: list[int] = []
    entrance.on_admit = lambda: asyncio.get_running_loop().call_soon(lambda: seen.append(entrance.listener.accepted))
    entrance.gate.open([entrance.listener])
    await eventually(lambda: len(entrance.peers) == ACCEPT_AT_ONCE + 20)
    assert seen[0] == ACCEPT_AT_ONCE == 64


async def test_who_is_gone_again_is_no_error(entrance: Entrance) -> None:
    entrance.listener.failures, entrance.listener.error = 1, errno.ECONNABORTED
    entrance.gate.open([entrance.listener])
    entrance.call()
    assert await entrance.hears(entrance.clients[0]) == b"hello"
    assert entrance.gate._paused == {}


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_without_files_it_pauses_says_so_once_and_goes_on(
    entrance: Entrance, error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    entrance.listener.failures, entrance.listener.error = 3, error
    entrance.gate.open([entrance.listener])
    entrance.call()
    with caplog.at_level(logging.WARNING):
        assert await entrance.hears(entrance.clients[0]) == b"hello"
        assert entrance.gate._paused == {}
        entrance.gate.close()
    line = f"the server cannot accept connections now: {os.strerror(error)}"
    assert caplog.messages == [line, f"{line} (and 2 more in the last 30 s)"]


async def test_while_it_pauses_nobody_is_accepted(entrance: Entrance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 1000.0)
    entrance.listener.failures = 1
    entrance.gate.open([entrance.listener])
    entrance.call()
    await eventually(lambda: bool(entrance.gate._paused))
    await anyio.sleep(0.05)
    assert entrance.listener.accepted == 0
    [timer] = entrance.gate._paused.values()
    assert timer.when() > clock.now() + 900
    entrance.gate.close()
    assert timer.cancelled()


async def test_who_closes_gives_the_addresses_back_and_waits_for_handshakes(entrance: Entrance) -> None:
    entrance.gate.open([entrance.listener])
    address = entrance.listener.getsockname()
    entrance.call(3)
    await eventually(lambda: len(entrance.story) >= 3)
    await entrance.gate.aclose()
    await entrance.gate.aclose()
    assert (entrance.gate.callers, entrance.listener.fileno()) == (set(), -1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(address)
    assert repr(entrance.gate) == "<Gate of the server callers=0>"


async def test_who_is_aborted_at_its_handshake_leaves_at_once(entrance: Entrance) -> None:
    """Those who say nothing are told nothing: their handshake ends when the gate closes."""
    entrance.gate.tls, entrance.gate.handshake = server_tls(), 60.0
    entrance.gate.open([entrance.listener])
    entrance.call(2)
    await eventually(lambda: len(entrance.gate.callers) == 2)
    with anyio.fail_after(10):
        await entrance.gate.aclose()
    assert (entrance.gate.callers, entrance.peers) == (set(), [])
    assert sorted(entrance.story) == ["admit"] * 2 + ["leave"] * 2


async def test_a_silent_handshake_has_an_end(entrance: Entrance) -> None:
    entrance.gate.tls, entrance.gate.handshake = server_tls(), 0.05
    entrance.gate.open([entrance.listener])
    entrance.call()
    assert await entrance.hears(entrance.clients[0]) == b""
    await eventually(lambda: entrance.story == ["admit", "leave"])


def test_bounds_of_a_gate() -> None:
    assert (ACCEPT_AT_ONCE, module.RETRY) == (64, 0.1)
