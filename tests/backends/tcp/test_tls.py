"""TLS: by files and by contexts, with and without certificates of the clients."""

from __future__ import annotations

import ssl

import pytest
import trustme

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import TcpBackend, serve
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.tcp.support import Certificates, connected, free_port


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
        assert isinstance(host, TcpBackend)
        assert host.is_hosting
        await client.commit(Put("key", b""))
        assert await host.get("key") is not None
    with pytest.raises(RendezvousConnectionError, match="a host needs a certificate"):
        async with open_backend(f"tcp://localhost:{free_port()}?tls_ca={certificates.ca}", run_id="run"):
            pass


async def test_what_makes_no_sense_is_refused_before_anything_is_sent(certificates: Certificates) -> None:
    for options, message in (
        ({"key": "k"}, "tls_key needs tls_cert"),
        ({"tls": False, "ca": certificates.ca}, "tls=false, but tls_ca"),
        ({"ca": "/no/such/file"}, r"cannot use the TLS files \(tls_ca\)"),
        ({"tls": ssl.create_default_context(), "ca": certificates.ca}, "not both"),
    ):
        with pytest.raises(ValueError, match=message):
            Tls.make(**options)
    with pytest.raises(ValueError, match="to serve with TLS give tls_cert"):
        async with serve(port=0, tls=ssl.create_default_context()):
            pass
