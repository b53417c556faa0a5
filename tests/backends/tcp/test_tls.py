"""TLS: by files and by contexts, with and without certificates of the clients."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack

import pytest
import trustme

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import Limits, serve, wire
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.tcp.support import Certificates, RawClient, connected, driver_of, eventually
from tests.ports import free_port


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert)
    return context


async def test_contexts_and_files(certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    async with serve(port=0, tls=server_context(certificates)) as server:
        for options in ({"tls": context}, {"tls_ca": certificates.ca}):
            async with connected(server.endpoint, **options) as backend:
                await backend.commit(Put("key", b"x" * 1_000_000))
                entry = await backend.get("key")
                assert entry is not None


async def test_a_server_that_cannot_be_believed_is_refused(certificates: Certificates) -> None:
    async with serve(port=0, tls=server_context(certificates)) as server:
        with pytest.raises(RendezvousConnectionError, match="the server's certificate is not accepted"):
            async with connected(server.endpoint, tls=True):  # the system does not know this authority
                pass
        with pytest.raises(RendezvousConnectionError, match="does it expect TLS"):
            async with connected(server.endpoint, connect_timeout=0.5):
                pass
    async with serve(port=0) as plain:
        with pytest.raises(RendezvousConnectionError, match="WRONG_VERSION_NUMBER"):
            async with connected(plain.endpoint, tls_ca=certificates.ca):
                pass


async def test_mutual_tls_wants_a_certificate_of_the_client(certificates: Certificates) -> None:
    async with serve(port=0, **certificates.tls_options) as server:
        async with connected(server.endpoint, **certificates.tls_options) as backend:
            await backend.commit(Put("key", b""))
        # The server cuts the connection; whether that arrives as an end or as a reset is a matter of luck.
        with pytest.raises(RendezvousConnectionError, match=r"does it demand a certificate|reset by peer"):
            async with connected(server.endpoint, tls_ca=certificates.ca, connect_timeout=1):
                pass
        stranger = trustme.CA().issue_cert("client")
        context = ssl.create_default_context(cafile=certificates.ca)
        stranger.configure_cert(context)
        with pytest.raises(RendezvousConnectionError, match=r"does it demand a certificate|reset by peer"):
            async with connected(server.endpoint, tls=context, connect_timeout=1):
                pass


async def test_a_server_that_dies_right_after_tls_is_tried_again(certificates: Certificates) -> None:
    """It may have been killed in that moment: nobody may give up for good because of it."""

    async def die(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(die, "127.0.0.1", 0, ssl=server_context(certificates)) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RendezvousConnectionError) as raised:
            async with connected(f"tcp://127.0.0.1:{port}", tls_ca=certificates.ca, connect_timeout=5):
                pass
        assert not raised.value.final


async def test_who_is_accepted_while_the_server_closes_is_cut_off(certificates: Certificates) -> None:
    async with serve(port=0, tls=server_context(certificates)) as server, RawClient.connect(server.endpoint) as peer:
        await server.aclose()
        await peer.read_end()
    assert server.connections == 0


async def test_who_is_at_its_tls_handshake_has_a_place(certificates: Certificates) -> None:
    """Nobody counted them: connections that never began with TLS took as many files as they liked."""
    limits = Limits(connections=3, handshake=60)
    async with serve(port=0, tls=server_context(certificates), limits=limits) as server:
        async with AsyncExitStack() as stack:
            for _ in range(limits.connections):
                await stack.enter_async_context(RawClient.connect(server.endpoint))
            await eventually(lambda: server.connections == limits.connections)
            with pytest.raises(RendezvousConnectionError, match="the server has its 3 connections") as raised:
                async with connected(server.endpoint, tls_ca=certificates.ca):
                    pass
            assert not raised.value.final
        await eventually(lambda: server.connections == 0)
        for _ in range(2 * limits.connections):  # nor does one that fails keep its place
            with pytest.raises(RendezvousConnectionError, match="certificate is not accepted"):
                async with connected(server.endpoint, tls=True):
                    pass
        async with connected(server.endpoint, tls_ca=certificates.ca) as backend:
            await backend.commit(Put("key", b""))
            assert server.connections == 1
        await eventually(lambda: server.connections == 0)
        assert not server._turned_away


async def test_those_who_cannot_be_told_why_are_few(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.server.TURNED_AWAY_AT_ONCE", 1)
    limits = Limits(connections=1, handshake=60)
    async with (
        serve(port=0, tls=server_context(certificates), limits=limits) as server,
        RawClient.connect(server.endpoint),
        RawClient.connect(server.endpoint),
        RawClient.connect(server.endpoint) as third,
    ):
        await third.read_end()
        assert (server.connections, len(server._turned_away)) == (1, 1)


async def test_tls_and_greeting_share_the_time_of_one_handshake(certificates: Certificates) -> None:
    loop = asyncio.get_running_loop()
    async with (
        serve(port=0, tls=server_context(certificates), limits=Limits(handshake=60)) as server,
        RawClient.connect(server.endpoint) as peer,
    ):
        await eventually(lambda: server.connections == 1)
        accepted_by = loop.time()
        await eventually(lambda: loop.time() > accepted_by)
        await peer.writer.start_tls(ssl.create_default_context(cafile=certificates.ca), server_hostname="127.0.0.1")
        await eventually(lambda: all(isinstance(connection, Connection) for connection in server._connections))
        (connection,) = server._connections
        assert isinstance(connection, Connection)
        assert connection._late is not None
        assert connection._late.when() <= accepted_by + 60


@pytest.mark.parametrize("speaks_tls", [False, True], ids=["silent", "silent after TLS"])
async def test_a_handshake_with_tls_has_an_end(speaks_tls: bool, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    async with (
        serve(port=0, tls=server_context(certificates), limits=Limits(handshake=0.5)) as server,
        RawClient.connect(server.endpoint) as peer,
    ):
        if speaks_tls:
            await peer.writer.start_tls(context, server_hostname="127.0.0.1")
            refused = await peer.read()
            assert isinstance(refused, wire.Refused)
            assert refused.code == wire.REFUSED_LATE
        await peer.read_end()
        await eventually(lambda: server.connections == 0)


async def test_a_server_that_closes_ends_tls_handshakes_under_way(certificates: Certificates) -> None:
    limits = Limits(connections=1, handshake=60)
    async with AsyncExitStack() as stack:
        async with serve(port=0, tls=server_context(certificates), limits=limits) as server:
            peers = [await stack.enter_async_context(RawClient.connect(server.endpoint)) for _ in range(3)]
            await eventually(lambda: server.connections == 1 and len(server._turned_away) == 2)
        assert (server.connections, len(server._turned_away)) == (0, 0)
        for peer in peers:
            await peer.read_end()
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "a handshake"]


async def test_secret_and_tls_together(certificates: Certificates) -> None:
    async with serve(port=0, secret="secret", tls_cert=certificates.cert) as server:
        async with connected(server.endpoint, secret="secret", tls_ca=certificates.ca) as backend:
            await backend.commit(Put("key", b""))
        with pytest.raises(RendezvousConnectionError, match="does not know the server's secret"):
            async with connected(server.endpoint, secret="wrong", tls_ca=certificates.ca):
                pass


async def test_a_host_serves_with_the_same_files(certificates: Certificates) -> None:
    endpoint = f"tcp://localhost:{free_port()}?tls_ca={certificates.ca}&tls_cert={certificates.cert}"
    async with open_backend(endpoint, run_id="run") as host, open_backend(endpoint, run_id="run") as client:
        assert driver_of(host).is_hosting
        await client.commit(Put("key", b""))
        assert await host.get("key") is not None
    with pytest.raises(RendezvousConnectionError, match="a host needs a certificate"):
        async with open_backend(f"tcp://localhost:{free_port()}?tls_ca={certificates.ca}", run_id="run"):
            pass


async def test_what_makes_no_sense_is_refused_before_anything_is_sent(certificates: Certificates) -> None:
    for options, message in (
        ({"key": "k"}, "tls_key needs tls_cert"),
        ({"tls": False, "ca": certificates.ca}, "tls=false, but tls_ca"),
        ({"ca": "/no/such/file"}, r"cannot use the TLS files \(tls_ca=/no/such/file\)"),
        ({"tls": ssl.create_default_context(), "ca": certificates.ca}, "not both"),
    ):
        with pytest.raises(ValueError, match=message):
            Tls.make(**options)
    with pytest.raises(ValueError, match="to serve with TLS give tls_cert"):
        async with serve(port=0, tls=ssl.create_default_context()):
            pass
