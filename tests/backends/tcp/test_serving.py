"""How a server starts, also when that takes long or is broken off in the middle."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import Snapshot
from rendezvous_async.backends.tcp import serve
from rendezvous_async.backends.tcp.addresses import Address, listen_on, resolve
from rendezvous_async.backends.tcp.server import serving
from rendezvous_async.backends.tcp.server.serving import check_secure, name_for_others, start_on
from rendezvous_async.errors import RendezvousConnectionError, RendezvousStateError
from tests.backends.tcp.support import Certificates, connected, eventually, taken_port


class Gate:
    """Holds up whoever opens a log, on its thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        compact = Log.compact

        def held_up(log: Log, snapshot: Snapshot) -> None:
            self.reached.set()
            assert self.opened.wait(60)
            compact(log, snapshot)

        patch.setattr(Log, "compact", held_up)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


async def test_sessions_have_their_full_time_however_long_the_log_takes_to_open(gate: Gate, tmp_path: Path) -> None:
    gate.opened.set()
    async with AsyncExitStack() as clients, serve(port=0, data_dir=tmp_path) as server:
        backend = await clients.enter_async_context(connected(server.endpoint))
        session = await backend.open_session(60)  # It outlives the server, since its client has not said goodbye.
    gate.opened.clear()
    gate.reached.clear()
    opened_at = 0.0

    async def open_gate() -> None:
        nonlocal opened_at
        await eventually(gate.reached.is_set)
        opened_at = clock.now()
        gate.opened.set()

    async with anyio.create_task_group() as group:
        group.start_soon(open_gate)
        async with serve(port=0, data_dir=tmp_path) as server:
            refreshed_at = server.table.refreshed_at(session.id)
    assert refreshed_at is not None
    assert refreshed_at >= opened_at


async def test_who_is_cancelled_while_the_log_opens_does_not_keep_it(gate: Gate, tmp_path: Path) -> None:
    async def start() -> None:
        async with serve(port=0, data_dir=tmp_path):
            pytest.fail("it was cancelled before")

    starting = asyncio.ensure_future(start())  # noqa: TID251
    await eventually(gate.reached.is_set)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    gate.opened.set()

    async def is_free() -> bool:
        try:
            async with serve(port=0, data_dir=tmp_path):
                return True
        except Exception as error:
            assert "is in use" in str(error)
            return False

    with anyio.fail_after(10):
        while not await is_free():  # noqa: ASYNC110 - the thread that has it sends no event
            await anyio.sleep(0.01)


@pytest.mark.parametrize("turns", range(1, 5))
async def test_a_start_that_is_cancelled_leaves_no_socket_in_the_loop(turns: int) -> None:
    sockets = listen_on(await resolve("127.0.0.1", 0))
    number = sockets[0].fileno()
    start = start_on(sockets, "127.0.0.1", data_dir=None, secret=None, tls=None, disconnect_grace=1.0, limits=None)
    starting = asyncio.ensure_future(start)  # noqa: TID251
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    try:
        await (await starting).aclose()
    except asyncio.CancelledError:
        assert all(sock.fileno() == -1 for sock in sockets)
    # The loop must not take whoever has the number next for the one that is gone.
    here, there = socket.socketpair()
    with here, there:
        assert turns > 2 or number in (here.fileno(), there.fileno())
        here.setblocking(False)
        there.setblocking(False)
        reading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(here, 1))  # noqa: TID251
        await asyncio.sleep(0)
        there.send(b"x")
        with anyio.fail_after(10):
            assert await reading == b"x"


# Whom a server lets in, and what it is called.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"host": ""}, "host must be an address or a name, not ''"),
        ({"host": None}, "host must be an address or a name, not None"),
        ({"host": 5}, "host must be an address or a name, not 5"),
        ({"port": -1}, "port must be a number from 0 to 65535, not -1"),
        ({"port": 65536}, "port must be a number from 0 to 65535, not 65536"),
        ({"port": True}, "port must be a number from 0 to 65535, not True"),
        ({"port": "29400"}, "port must be a number from 0 to 65535, not '29400'"),
        ({"insecure": 1}, "insecure must be True or False, not 1"),
        ({"secret": 5}, "secret must be"),
        ({"limits": 5}, "limits must be"),
        ({"tls": 5}, "tls must be"),
        ({"data_dir": 5}, "data_dir must be"),
        ({"disconnect_grace": 0}, "disconnect_grace must be a positive"),
        ({"disconnect_grace": "1"}, "disconnect_grace must be a number of seconds"),
        ({"tls_ca": "/none/ca.pem"}, "ca.pem"),
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused_before_anything_is_opened(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        async with serve(**{"host": "127.0.0.1", "port": 0, **wrong}):
            pass


@pytest.mark.parametrize("port", [0, 65535])
def test_any_port_may_be_asked_for(port: int) -> None:
    async def check() -> None:
        serving._check_arguments("127.0.0.1", port, False)

    asyncio.run(check())


def test_who_is_not_on_asyncio_is_told_so() -> None:
    with pytest.raises(RuntimeError, match="needs asyncio"):
        serving._check_arguments("127.0.0.1", 0, False)


async def test_certificates_of_clients_alone_are_not_enough_to_serve(certificates: Certificates) -> None:
    with pytest.raises(
        ValueError, match="to serve with TLS give tls_cert and tls_key, or a server-side context as tls"
    ):
        async with serve(port=0, tls_ca=certificates.ca):
            pass


HERE, THERE = Address("127.0.0.1", 5), Address("192.0.2.1", 5)


@pytest.mark.parametrize(
    ("addresses", "protected", "insecure", "is_safe"),
    [
        ([HERE], False, False, True),
        ([HERE, THERE], True, False, True),
        ([HERE, THERE], False, True, True),
        ([THERE], False, False, False),
        ([HERE, THERE], False, False, False),
        ([Address("::", 5)], False, False, False),
        ([Address("0.0.0.0", 5)], False, False, False),
        ([Address("::1", 5)], False, False, True),
    ],
)
def test_a_server_that_lets_everybody_in_is_for_this_machine(
    addresses: list[Address], protected: bool, insecure: bool, is_safe: bool
) -> None:
    if is_safe:
        check_secure(addresses, protected, insecure)
    else:
        with pytest.raises(
            ValueError, match=f"^{addresses[-1]} can be reached by other machines.*set secret=".replace("[", r"\[")
        ):
            check_secure(addresses, protected, insecure)


@pytest.mark.parametrize("protection", [{"secret": "a secret of enough characters"}, {"insecure": True}, {"tls": True}])
async def test_who_protects_a_server_may_serve_everybody(
    protection: dict[str, Any], certificates: Certificates
) -> None:
    if "tls" in protection:
        protection = {"tls_cert": certificates.cert, "tls_key": certificates.cert}
    async with serve("0.0.0.0", 0, **protection) as server:
        name, _, port = server.endpoint.removeprefix("tcp://").rpartition(":")
        assert (name, int(port) > 0) == (socket.gethostname(), True)
    with pytest.raises(ValueError, match="can be reached by other machines"):
        async with serve("0.0.0.0", 0):
            pass


def test_what_clients_call_a_server() -> None:
    here = socket.gethostname()
    names = ["127.0.0.1", "head", "192.0.2.1", "::1", "0.0.0.0", "::"]
    assert list(map(name_for_others, names)) == ["127.0.0.1", "head", "192.0.2.1", "::1", here, here]


async def test_what_cannot_be_resolved_or_listened_on_is_named() -> None:
    with pytest.raises(RendezvousConnectionError, match=r"^cannot serve on none\.invalid:5: "):
        async with serve("none.invalid", 5):
            pass
    with taken_port() as port, pytest.raises(RendezvousConnectionError) as caught:
        async with serve("127.0.0.1", port):
            pass
    assert str(caught.value) == f"cannot serve on 127.0.0.1:{port}: Address already in use"


async def test_a_log_that_cannot_be_written_again_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def fail(log: Log, snapshot: Snapshot) -> None:
            if log.table.revision:
                raise RendezvousConnectionError("no space left")
            compact(log, snapshot)

        compact = Log.compact
        async with serve(port=0, data_dir=tmp_path) as server, connected(server.endpoint) as backend:
            await backend.commit(Put("a", b""))
        patch.setattr(Log, "compact", fail)
        with pytest.raises(RendezvousConnectionError, match="no space left"):
            async with serve(port=0, data_dir=tmp_path):
                pass
    async with serve(port=0, data_dir=tmp_path) as server:
        assert server.table.revision == 1


async def test_a_log_is_in_the_directory_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    async with serve(port=0, data_dir=tmp_path / "link"):
        assert (tmp_path / "real" / "rendezvous.log").exists()
        with pytest.raises(RendezvousStateError, match="is in use"):
            async with serve(port=0, data_dir=tmp_path / "real"):
                pass
