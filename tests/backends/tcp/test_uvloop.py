"""Server and client on uvloop, whose transports are not asyncio's."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import tempfile
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.client.dialing import Dialer, DialError
from rendezvous_async.backends.tcp.client.link import Link
from rendezvous_async.backends.tcp.server import requests
from rendezvous_async.backends.tcp.server.limits import Limits
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.tcp.support import Certificates, RawClient, connected, eventually

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: pip install '.[uvloop]'")


async def meet(**options: Any) -> list[int]:
    async with rdzv.serve("127.0.0.1", 0, **options) as server:

        async def one() -> int:
            async with rdzv.connect(server.endpoint, run_id="job", nodes=2, is_host=False, **options) as rendezvous:
                world = await rendezvous.join()
                await world.store.barrier("done")
                return world.rank

        return sorted(await asyncio.gather(one(), one()))


async def expire() -> None:
    """Sessions and deadlines of odd lengths: uvloop's timers count milliseconds, may be early, and do not tell when."""
    odd = [0.05 + number * 0.00037 for number in range(40)]
    async with rdzv.serve("127.0.0.1", 0) as server, connected(server.endpoint) as backend:
        for seconds in odd:
            await backend.open_session(seconds)
        for seconds in odd:
            with anyio.fail_after(10), pytest.raises(RendezvousConnectionError, match="did not answer"):
                await backend.commit(Put("key", b""), deadline=Deadline.after(seconds, "commit"))
        with anyio.fail_after(10):
            await server.without_sessions()


def test_what_is_over_in_time_is_over_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requests.ANSWERS, wire.Transact, lambda *_: None)  # no commit is ever answered
    uvloop.run(expire())


def test_nodes_meet_on_uvloop() -> None:
    assert uvloop.run(meet(secret="known to both")) == [0, 1]


def test_nodes_meet_on_uvloop_with_tls(certificates: Certificates) -> None:
    assert uvloop.run(meet(**certificates.tls_options)) == [0, 1]


def test_who_is_at_its_tls_handshake_has_a_place_on_uvloop(certificates: Certificates) -> None:
    """uvloop shows a connection after its TLS handshake: those that said nothing were not counted."""

    async def fill() -> None:
        limits = Limits(connections=3, handshake=60)
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                rdzv.serve("127.0.0.1", 0, tls_cert=certificates.cert, limits=limits)
            )
            for _ in range(limits.connections):
                await stack.enter_async_context(RawClient.connect(server.endpoint))
            await eventually(lambda: server.connections == limits.connections)
            with pytest.raises(RendezvousConnectionError, match="the server has its 3 connections"):
                async with connected(server.endpoint, tls_ca=certificates.ca):
                    pass
            await server.aclose()
            assert server.connections == 0
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "a handshake"]

    uvloop.run(fill())


def test_a_silent_tls_handshake_has_an_end_on_uvloop(certificates: Certificates) -> None:
    async def wait() -> None:
        async with (
            rdzv.serve("127.0.0.1", 0, tls_cert=certificates.cert, limits=Limits(handshake=0.3)) as server,
            RawClient.connect(server.endpoint) as peer,
        ):
            await peer.read_end()
            await eventually(lambda: server.connections == 0)

    uvloop.run(wait())


async def be_reset(times: int) -> None:
    """Dial a server that resets connections at once, and close no descriptor that belongs to somebody else by then."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)

        def reset() -> None:
            for _ in range(times):
                caller, _ = listener.accept()
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                caller.close()

        resetting = asyncio.get_running_loop().run_in_executor(None, reset)
        dialer = Dialer("127.0.0.1", listener.getsockname()[1])
        for _ in range(times):
            with pytest.raises(DialError):
                await dialer.dial(lambda: Link(wire.Hello((2,), "client", 1, 0, b"", ""), None, lambda _: None))
        await resetting
    with ExitStack() as files:
        mine = [files.enter_context(tempfile.TemporaryFile()) for _ in range(times)]
        gc.collect()
        for file in mine:
            os.fstat(file.fileno())


@pytest.mark.filterwarnings("error")
def test_a_peer_that_resets_at_once_costs_nobody_a_descriptor() -> None:
    uvloop.run(be_reset(300))
