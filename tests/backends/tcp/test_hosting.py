"""Who hosts: real processes that race on one machine, and what becomes of the others when the host goes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Backend, Commit, Put
from rendezvous_async.backends.options import read_options
from rendezvous_async.backends.tcp import serve
from rendezvous_async.backends.tcp.addresses import Address, listen_on, resolve
from rendezvous_async.backends.tcp.options import TcpOptions
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import parse_endpoint
from tests.backends.tcp.support import Process, connect, connected, driver_of, eventually, taken_port
from tests.ports import free_port

NODE = """
import asyncio, sys
import anyio
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
async def main(endpoint, name):
    async with open_backend(endpoint, run_id="run", linger=5) as backend:
        session = await backend.open_session(5)
        while True:
            await backend.commit(Put(f"nodes/{name}", b"", session.id))
            print("host" if backend.driver.is_hosting else "client", session.id.partition(".")[0], flush=True)
            await session.lost.wait()
            session = await backend.open_session(5)
anyio.run(main, *sys.argv[1:])
"""


async def test_of_racing_processes_one_hosts_and_when_it_dies_another_does() -> None:
    endpoint = f"tcp://localhost:{free_port()}"
    nodes = [Process(NODE, endpoint, str(number)) for number in range(4)]
    try:
        async with anyio.create_task_group() as group:
            for node in nodes:
                group.start_soon(node.start)
        roles: dict[Process, str] = {}
        epochs = set()
        for node in nodes:
            roles[node], epoch = (await node.read()).split()
            epochs.add(epoch)
        assert sorted(roles.values()) == ["client", "client", "client", "host"]
        assert len(epochs) == 1
        (host,) = (node for node, role in roles.items() if role == "host")
        await host.kill()
        others = [node for node in nodes if node is not host]
        again = [(await node.read()).split() for node in others]
        assert sorted(role for role, _ in again) == ["client", "client", "host"]
        assert len({epoch for _, epoch in again} - epochs) == 1  # a new history, the same for all
        async with connected(endpoint) as observer:
            assert len((await observer.list("nodes/")).entries) == 3
    finally:
        with anyio.CancelScope(shield=True):
            for node in nodes:
                await node.kill()


async def test_auto_hosts_only_what_is_free_and_ours() -> None:
    port = free_port()
    async with open_backend(f"tcp://127.0.0.1:{port}", run_id="run") as first:
        assert driver_of(first).is_hosting
        async with open_backend(f"tcp://127.0.0.1:{port}", run_id="run") as second:
            assert not driver_of(second).is_hosting
            await second.commit(Put("key", b"value"))
            assert await first.get("key") is not None
    # 192.0.2.0/24 belongs to nobody.
    with pytest.raises(RendezvousConnectionError, match=r"192\.0\.2\.1 is not an address of this machine"):
        async with open_backend("tcp://192.0.2.1:29400", run_id="run", connect_timeout=0.2):
            pass


async def test_true_hosts_or_fails() -> None:
    async with open_backend(f"tcp://127.0.0.1:{free_port()}?is_host=true", run_id="run") as backend:
        assert driver_of(backend).is_hosting
    with taken_port() as port, pytest.raises(RendezvousConnectionError, match=r"must host .* in use"):
        async with open_backend(f"tcp://127.0.0.1:{port}?is_host=true", run_id="run"):
            pass


async def test_false_never_hosts() -> None:
    with pytest.raises(RendezvousConnectionError, match="connection refused"):
        async with open_backend(f"tcp://127.0.0.1:{free_port()}?is_host=false&connect_timeout=0.2", run_id="run"):
            pass


async def test_port_0_is_any_free_port_for_a_host() -> None:
    async with open_backend("tcp://127.0.0.1:0", run_id="run") as backend:
        host = driver_of(backend).host
        assert host is not None
        assert host.server is not None
        async with connected(host.server.endpoint) as other:
            await other.commit(Put("key", b""))


async def test_a_host_lingers_until_the_sessions_of_others_have_ended() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    host = await connect(endpoint, is_host="auto")
    assert driver_of(host).is_hosting
    async with connected(endpoint) as guest:
        session = await guest.open_session(30)
        closed = anyio.Event()

        async def close() -> None:
            await host.aclose()
            closed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(close)
            with anyio.move_on_after(0.2):
                await closed.wait()
            assert not closed.is_set()
            await guest.commit(Put("key", b"still served"))
            await session.aclose()
            with anyio.fail_after(5):
                await closed.wait()


async def test_a_host_does_not_linger_for_ever() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    host = await connect(endpoint, is_host="auto", linger=0.1)
    async with connected(endpoint) as guest:
        await guest.open_session(30)
        with anyio.fail_after(5):
            await host.aclose()


async def test_a_host_that_is_cancelled_while_it_lingers_still_stops() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    host = await connect(endpoint, is_host="auto")
    async with connected(endpoint) as guest:
        await guest.open_session(30)
        with anyio.move_on_after(0.1) as scope:
            await host.aclose()
        assert scope.cancelled_caught
    async with serve("127.0.0.1", int(endpoint.rpartition(":")[2])):
        pass


async def test_a_client_whose_host_has_left_hosts_itself(tmp_path: Path) -> None:
    """With a data_dir that both name, it goes on with the same history."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    async with (
        connected(endpoint, is_host="auto", linger=0.1, data_dir=tmp_path) as first,
        connected(endpoint, is_host="auto", linger=0.1, data_dir=tmp_path) as second,
    ):
        assert (driver_of(first).is_hosting, driver_of(second).is_hosting) == (True, False)
        session = await second.open_session(10)
        commit = await second.commit(Put("key", b"value", session.id))
        await first.aclose()
        with anyio.fail_after(10):
            entry = await second.get("key")
        assert driver_of(second).is_hosting
        assert entry is not None
        assert entry.token == commit.token
        await session.keep_alive()


async def insist(call: Callable[[], Awaitable[Commit]]) -> Commit:
    """Call until it is answered; it may fail, but never for good."""
    with anyio.fail_after(20):
        while True:
            try:
                return await call()
            except RendezvousConnectionError as error:
                assert not error.final, error


@pytest.mark.parametrize("also", [(), ("fsync",), ("fsync", "fsync")], ids=["once", "twice", "three times"])
async def test_a_disk_that_fails_for_a_moment_ends_no_run(
    also: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's server stops; somebody serves on from what is on the disk, if need be at the next attempt."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    failing = list(also)
    real = {"fdatasync": os.fdatasync, "fsync": os.fsync}

    def sync(name: str, fd: int) -> None:
        if failing and failing[-1] == name:
            failing.pop()
            raise OSError(errno.EIO, "Input/output error")
        real[name](fd)

    async with (
        connected(endpoint, is_host="auto", data_dir=tmp_path, linger=0.1) as first,
        connected(endpoint, is_host="auto", data_dir=tmp_path, linger=0.1) as second,
    ):
        session = await second.open_session(30)
        before = await first.commit(Put("key", b"1", session.id))
        failing.append("fdatasync")
        for name in real:
            monkeypatch.setattr(os, name, lambda fd, name=name: sync(name, fd))
        with pytest.raises(RendezvousConnectionError, match="cannot sync the log") as raised:
            await first.commit(Put("key", b"2"))
        assert not raised.value.final
        for backend in (second, first):
            after = await insist(lambda backend=backend: backend.commit(Put("key", b"3")))  # type: ignore[misc]
            assert after.token.epoch == before.token.epoch
            assert after.token.revision > before.token.revision
        assert not failing
        assert [driver_of(first).is_hosting, driver_of(second).is_hosting].count(True) == 1
        await session.keep_alive()


async def test_a_log_that_the_last_host_still_syncs_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets go of the addresses first and of the log last: who is to follow it must not give up in between."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    begun, synced = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def slow(fd: int) -> None:
        begun.set()
        synced.wait(20)
        fdatasync(fd)

    won: list[Commit] = []

    async def write(backend: Backend) -> None:
        won.append(await backend.commit(Put("key", b"value")))

    async with (
        connected(endpoint, is_host="auto", data_dir=tmp_path, linger=0.1) as first,
        connected(endpoint, is_host="auto", data_dir=tmp_path, linger=0.1) as second,
    ):
        monkeypatch.setattr(os, "fdatasync", slow)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(write, second)
                await eventually(begun.is_set)
                group.start_soon(first.aclose)
                await eventually(lambda: any("in use by another" in line for line in driver_of(second).attempts))
                synced.set()
        finally:
            synced.set()
        assert won[0].won
        assert driver_of(second).is_hosting


async def test_a_log_in_use_ends_who_must_host(tmp_path: Path) -> None:
    async with serve(port=0, data_dir=tmp_path):
        with pytest.raises(RendezvousConnectionError, match=r"must host .* in use by another") as raised:
            async with connected("tcp://127.0.0.1:0", is_host="true", data_dir=tmp_path):
                pass
        assert raised.value.final


async def test_a_data_dir_that_cannot_be_had_is_reported_for_good(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"")
    with pytest.raises(RendezvousConnectionError, match="cannot host: cannot open the directory") as raised:
        async with connected("tcp://127.0.0.1:0", is_host="auto", data_dir=place):
            pass
    assert raised.value.final


async def test_others_can_reach_it_only_if_that_is_safe() -> None:
    address = own_address()
    with pytest.raises(ValueError, match=r"set secret=\.\.\., or TLS .* or say insecure=True"):
        async with serve("0.0.0.0", 0):
            pass
    async with serve("0.0.0.0", 0, secret="secret") as server:
        assert server.endpoint.startswith(f"tcp://{socket.gethostname()}:")
    async with serve("0.0.0.0", 0, insecure=True):
        pass
    if address is None:
        pytest.skip("this machine has only loopback addresses")
    with pytest.raises(RendezvousConnectionError, match=r"this process would host, but .* set secret="):
        async with open_backend(f"tcp://{address}:{free_port()}", run_id="run"):
            pass
    async with open_backend(f"tcp://{address}:{free_port()}?insecure=true", run_id="run") as backend:
        await backend.commit(Put("key", b""))


def own_address() -> str | None:
    """An address of this machine that others could reach."""
    found = socket.getaddrinfo(socket.gethostname(), None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    addresses = [Address(str(where[0]), 0) for *_, where in found]
    return next((address.host for address in addresses if not address.is_loopback and address.is_local()), None)


async def test_ipv6() -> None:
    if not Address("::1", 0).is_local():
        pytest.skip("this machine has no IPv6")
    async with serve("::1", 0) as server:
        assert server.endpoint.startswith("tcp://[::1]:")
        async with connected(server.endpoint) as backend:
            await backend.commit(Put("key", b""))


async def test_all_addresses_or_none() -> None:
    addresses = [Address("127.0.0.1", 0), Address("127.0.0.2", 0), Address("127.0.0.3", 0)]
    sockets = listen_on(addresses)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1  # one port for all
    port = sockets[0].getsockname()[1]
    for sock in sockets[:2]:
        sock.close()
    with pytest.raises(OSError, match=r"127\.0\.0\.3"):
        listen_on([address.at(port) for address in addresses])
    with socket.socket() as free:  # the first two were let go again
        free.bind(("127.0.0.1", port))
    sockets[2].close()


async def test_names_resolve_to_all_their_addresses() -> None:
    assert await resolve("127.0.0.1", 1) == [Address("127.0.0.1", 1)]
    assert Address("127.0.0.1", 1) in await resolve("localhost", 1)
    assert await resolve("::1", 1) == [Address("::1", 1)]


async def test_a_port_that_another_program_holds_is_reported() -> None:
    """It takes the connection and says nothing: hosting is impossible, and so is talking."""
    silent = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(RendezvousConnectionError, match="within"):
        async with open_backend(f"tcp://127.0.0.1:{port}?connect_timeout=0.3", run_id="run"):
            pass
    silent.close()


def test_options_are_checked() -> None:
    here = parse_endpoint("tcp://h:1")
    assert read_options(TcpOptions, here, {"is_host": "1"}).is_host == "true"
    assert read_options(TcpOptions, here, {"is_host": False}).is_host == "false"
    assert read_options(TcpOptions, here, {"connect_timeout": "2.5"}).connect_timeout == 2.5
    for wrong, message in (
        ({"no_such": "1"}, "no option 'no_such'"),
        ({"is_host": "perhaps"}, "true or false"),
        ({"connect_timeout": "soon"}, "number of seconds"),
        ({"connect_timeout": -1}, "positive"),
    ):
        with pytest.raises(ValueError, match=message):
            read_options(TcpOptions, here, wrong)
    assert parse_endpoint("tcp://h:1?is_host=auto").options == {"is_host": "auto"}
