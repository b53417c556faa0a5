"""The server by itself: who is gone and when, who reads slowly, who is told, and what is left when it closes."""

from __future__ import annotations

import signal
import socket

import anyio
import pytest

from rendezvous_async.backends.base import Put, Watch
from rendezvous_async.backends.tcp import Limits, serve, wire
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.tcp.support import Process, RawClient, connected, driver_of, eventually

WAIT = 20.0

MEMBER = """
import sys
import anyio
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put, Watch
async def main(endpoint):
    async with open_backend(endpoint, run_id="run", is_host=False) as backend:
        session = await backend.open_session(3)
        await backend.commit(Put("member", b"", session.id))
        print("in", flush=True)
        while True:
            await session.keep_alive()
            await anyio.sleep(0.2)
anyio.run(main, sys.argv[1])
"""


async def see_it_come(member: Process, watch: Watch) -> None:
    assert await member.read() == "in"
    with anyio.fail_after(WAIT):
        while not (await anext(watch)).entries:
            pass


async def see_it_go(watch: Watch) -> float:
    """Return when it was seen."""
    with anyio.fail_after(WAIT):
        assert [entry.value for entry in (await anext(watch)).entries] == [None]
    return anyio.current_time()


async def test_a_killed_process_is_gone_after_the_grace() -> None:
    async with (
        serve(port=0, disconnect_grace=0.5) as server,
        connected(server.endpoint) as observer,
        Process(MEMBER, server.endpoint) as member,
        observer.watch("member") as watch,
    ):
        await see_it_come(member, watch)
        killed_at = anyio.current_time()
        await member.kill()
        assert 0.4 <= await see_it_go(watch) - killed_at < 2.5


async def test_a_frozen_process_falls_to_its_ttl() -> None:
    """Its connection is open and nothing comes: only time tells."""
    async with (
        serve(port=0, disconnect_grace=0.2) as server,
        connected(server.endpoint) as observer,
        Process(MEMBER, server.endpoint) as member,
        observer.watch("member") as watch,
    ):
        await see_it_come(member, watch)
        frozen_at = anyio.current_time()
        member.signal(signal.SIGSTOP)
        assert 2.5 <= await see_it_go(watch) - frozen_at < 6
        member.signal(signal.SIGCONT)
        assert await member.read() == ""  # it was told that its session has ended, and ends


async def test_a_stall_of_the_server_does_not_cost_sessions() -> None:
    """A client was back within the grace, but the server's loop stood still: it reads before it expires anybody."""
    async with serve(port=0, disconnect_grace=0.4) as server:
        async with RawClient.connect(server.endpoint) as peer:
            await peer.greet("client", 1)
            peer.send(wire.OpenSession(1, 30.0))
            opened = await peer.read()
            assert isinstance(opened, wire.SessionOpened)
        await eventually(lambda: server.connections == 0)
        with socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2]))) as back:
            back.sendall(
                wire.frame(wire.Hello(PROTOCOLS, "client", 2, 0, b"")) + wire.frame(wire.Resume(2, opened.session))
            )
            back.settimeout(1.0)
            with pytest.raises(TimeoutError):  # blocks the server's loop, on purpose, past the grace
                back.recv(1)
            await eventually(lambda: server.connections == 1)
            await anyio.sleep(0.6)
            assert server.table.sessions == 1


async def test_a_watcher_that_does_not_read_costs_little_and_gets_the_newest() -> None:
    value = b"x" * 50_000
    async with (
        serve(port=0) as server,
        connected(server.endpoint) as writer,
        connected(server.endpoint) as bystander,
        bystander.watch("key") as watch,
        RawClient.connect(server.endpoint) as peer,
    ):
        await peer.greet()
        transport = peer.writer.transport
        peer.send(wire.Follow(1, (writer.prefix + "key",), None))
        assert await peer.read() == wire.Changed(1, (await writer.driver.list("none/")))
        transport.pause_reading()  # type: ignore[attr-defined]
        slow = server._clients["raw"]
        for number in range(300):  # 15 MB
            await writer.commit(Put("key", b"%03d" % number + value))
            assert slow._transport is not None
            assert slow._transport.get_write_buffer_size() + len(slow._out) < 1_000_000
        assert len(slow._dirty) == 1
        seen = b""
        with anyio.fail_after(WAIT):
            while not seen.startswith(b"299"):  # others are served all the while
                seen = (await anext(watch)).entries[-1].value or b""
        transport.resume_reading()  # type: ignore[attr-defined]
        pushes = 0
        seen = b""
        while not seen.startswith(b"299"):
            changed = await peer.read()
            assert isinstance(changed, wire.Changed)
            assert changed.listing is not None
            seen = changed.listing.entries[0].value or b""
            pushes += 1
        assert pushes < 290


async def test_a_peer_that_asks_and_does_not_read_is_not_read_from() -> None:
    async with serve(port=0) as server, connected(server.endpoint) as writer:
        await writer.commit(Put("key", b"x" * 100_000))
        async with RawClient.connect(server.endpoint) as peer:
            await peer.greet()
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.send(*(wire.Get(number, writer.prefix + "key") for number in range(2000)))  # 200 MB of answers
            slow = server._clients["raw"]
            await eventually(lambda: not slow._reading)
            for _ in range(20):
                await writer.commit(Put("other", b""))
            assert slow._transport is not None
            assert slow._transport.get_write_buffer_size() + len(slow._out) < 1_000_000
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for number in range(2000):
                found = await peer.read()
                assert isinstance(found, wire.Found)
                assert found.id == number


async def test_one_push_for_all_changes_of_a_turn() -> None:
    async with serve(port=0) as server, connected(server.endpoint) as backend, backend.watch("a/") as watch:
        await anext(watch)
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(backend.commit, Put(f"a/{number}", b""))
        seen = listings = 0
        while seen < 200:
            seen += len((await anext(watch)).entries)
            listings += 1
        assert listings <= 5


async def test_a_closed_server_leaves_no_connection_behind() -> None:
    async with serve(port=0) as server, connected(server.endpoint) as backend:
        await backend.commit(Put("key", b""))
        await server.aclose()
        await eventually(lambda: server.connections == 0)
        await eventually(lambda: not driver_of(backend).is_connected)
        assert any("the server is closing" in line for line in driver_of(backend).attempts)


async def test_sessions_that_were_never_resumed_do_not_pile_up() -> None:
    async with serve(port=0, disconnect_grace=0.05) as server:
        for _ in range(5):
            async with connected(server.endpoint) as backend:
                session = await backend.open_session(60)
                await backend.commit(Put("bound", b"", session.id))
        await eventually(lambda: server.table.sessions == 0)
        assert len(server.table) == 0
        assert not server._owners
        with anyio.fail_after(WAIT):
            await server.without_sessions()


async def test_a_server_that_is_in_the_way_is_named() -> None:
    async with serve(port=0) as server:
        port = int(server.endpoint.rpartition(":")[2])
        with pytest.raises(RendezvousConnectionError, match=f"cannot serve on 127.0.0.1:{port}: .*in use"):
            async with serve("127.0.0.1", port):
                pass
    with pytest.raises(ValueError, match="disconnect_grace"):
        async with serve(port=0, disconnect_grace=0, limits=Limits()):
            pass


async def test_nothing_waits_in_the_kernel_for_more() -> None:
    """Without TCP_NODELAY a push behind an answer waits until the client's kernel acknowledges that, 40 ms later."""
    async with serve(port=0) as server, connected(server.endpoint):
        for connection in server._connections:
            assert isinstance(connection, Connection)
            assert connection._transport is not None
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert server.connections == 1
