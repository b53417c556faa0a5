"""Whatever is wrong with the server, the error names the member and the cause, within the connect timeout."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import grpc.aio
import pytest
import trustme
from aetcd import rpc
from aetcd.rpc.rpc_pb2_grpc import add_MaintenanceServicer_to_server

import rendezvous_async as rdzv
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.etcd.channel import ClusterClient
from rendezvous_async.backends.etcd.options import EtcdOptions
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import parse_endpoint
from rendezvous_async.testing.etcd import EtcdCluster, start_etcd

TIMEOUT = 0.7


async def refusal(endpoint: str, *, final: bool = False, **options: Any) -> str:
    """Return the error that opening a backend raises, having checked that it comes in time.

    Where trying again is no use, a node that joins must be told as soon.
    """
    with anyio.fail_after(TIMEOUT + 1), pytest.raises(RendezvousConnectionError) as caught:
        async with open_backend(endpoint, run_id="run", connect_timeout=TIMEOUT, **options):
            pass
    assert caught.value.final is final
    if final:
        async with rdzv.connect(endpoint, run_id="run", nodes=1, connect_timeout=TIMEOUT, **options) as rendezvous:
            with anyio.fail_after(TIMEOUT + 1), pytest.raises(RendezvousConnectionError) as refused:
                await rendezvous.join()
        assert _timeless(str(refused.value)) == _timeless(str(caught.value))
    return str(caught.value)


def _timeless(text: str) -> str:
    return re.sub(r"in \d+\.\d s", "in some time", text)


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


async def test_nobody_listens() -> None:
    first, second = closed_port(), closed_port()
    text = await refusal(f"etcd://127.0.0.1:{first},127.0.0.1:{second}")
    assert f"127.0.0.1:{first}: " in text
    assert f"127.0.0.1:{second}: " in text
    assert "Connection refused" in text


async def test_no_such_host() -> None:
    text = await refusal("etcd://no-such-host.invalid:2379")
    assert "no-such-host.invalid:2379: " in text


async def test_a_server_that_says_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        assert f"127.0.0.1:{port}: " in await refusal(f"etcd://127.0.0.1:{port}", call_timeout=0.3)


@asynccontextmanager
async def http1_server() -> AsyncIterator[str]:
    """What an etcd of version 2 looks like to a v3 client: a server of HTTP/1."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        body = b'{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}'
        writer.write(
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_of_version_2() -> None:
    async with http1_server() as address:
        with anyio.fail_after(2):
            text = await refusal(f"etcd://{address}", final=True)
    assert address in text
    assert "speaks HTTP/1 only: it is not etcd, or it is version 2" in text


class Etcd(rpc.Maintenance):  # type: ignore[misc]
    """No more of an etcd than its version."""

    def __init__(self, version: str) -> None:
        self.version = version

    async def Status(self, request: object, context: object) -> object:
        return rpc.StatusResponse(version=self.version)


@asynccontextmanager
async def grpc_server(*servicers: rpc.Maintenance) -> AsyncIterator[str]:
    server = grpc.aio.server()
    for servicer in servicers:
        add_MaintenanceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_server_that_is_too_old() -> None:
    async with grpc_server(Etcd("3.2.32")) as address:
        text = await refusal(f"etcd://{address}", final=True)
    assert text == f"etcd at {address} is version 3.2.32; 3.4 or newer is needed"


@pytest.mark.parametrize(
    ("version", "loses"), [("3.4.23", 0), ("3.5.0", 1), ("3.5.1", 1), ("3.5.2", 1), ("3.5.3", 0), ("3.6.0-rc.1", 0)]
)
async def test_a_version_that_loses_data_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, version: str, loses: int
) -> None:
    async with grpc_server(Etcd(version)) as address:
        for _ in range(2):
            cluster = ClusterClient(parse_endpoint(f"etcd://{address}"), EtcdOptions(), None, Random(0))
            await cluster.start(anyio.current_time() + TIMEOUT)
            await cluster.aclose()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == loses
    for text in warnings:
        assert text.startswith(f"etcd at {address} is version {version}, which may lose data")
        assert f"upgrade the members of etcd://{address} to 3.5.3 or newer" in text


async def test_a_grpc_server_that_is_no_etcd() -> None:
    async with grpc_server() as address:
        text = await refusal(f"etcd://{address}", final=True)
    assert f"etcd at {address} refused Status: the server does not know etcd's v3 API" in text


class Certificates:
    """A certificate authority with a server's and a client's certificate, as files."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.server_cert, self.server_key = self._issue(authority, directory / "server", "127.0.0.1")
        self.cert, self.key = self._issue(authority, directory / "client", "node@example.org")

    def _issue(self, authority: trustme.CA, path: Path, *names: str) -> tuple[str, str]:
        issued = authority.issue_cert(*names)
        cert, key = str(path.with_suffix(".pem")), str(path.with_suffix(".key"))
        issued.private_key_pem.write_to_path(key)
        for index, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(cert, append=index > 0)
        return cert, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority that nobody trusts."""
    return Certificates(tmp_path_factory.mktemp("strange"))


@pytest.fixture(scope="module")
def etcd_tls(certificates: Certificates) -> Iterator[EtcdCluster]:
    with EtcdCluster(ca=certificates.ca, cert=certificates.server_cert, key=certificates.server_key) as cluster:
        yield cluster


async def test_tls(etcd_tls: EtcdCluster, certificates: Certificates) -> None:
    async with open_backend(etcd_tls.endpoint, run_id="run", ca=certificates.ca) as backend:
        assert (await backend.commit(Put("a", b"1"))).won


async def test_the_wrong_ca(etcd_tls: EtcdCluster, strange: Certificates) -> None:
    with anyio.fail_after(2):
        text = await refusal(etcd_tls.endpoint, final=True, ca=strange.ca)
    assert etcd_tls.members[0].address in text
    assert "the server's certificate is not signed by the given ca" in text


async def test_a_name_that_is_not_in_the_certificate(etcd_tls: EtcdCluster, certificates: Certificates) -> None:
    port = etcd_tls.members[0].client_port
    text = await refusal(f"etcds://localhost:{port}", final=True, ca=certificates.ca)
    assert f"localhost:{port}: the server's certificate is for another name" in text


async def test_tls_to_a_server_without(etcd: EtcdCluster, certificates: Certificates) -> None:
    text = await refusal(etcd.endpoint.replace("etcd:", "etcds:"), ca=certificates.ca)
    assert "if it does not use TLS, use etcd://" in text


async def test_plain_to_a_server_with_tls(etcd_tls: EtcdCluster) -> None:
    text = await refusal(etcd_tls.endpoint.replace("etcds:", "etcd:"))
    assert f"{etcd_tls.members[0].address}: the server closed the connection; if it uses TLS, use etcds://" in text


async def test_mutual_tls(certificates: Certificates, strange: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(certificates.cert, certificates.key)
    async with start_etcd(
        ca=certificates.ca,
        cert=certificates.server_cert,
        key=certificates.server_key,
        client_auth=True,
        client_tls=context,
    ) as cluster:
        endpoint = f"{cluster.endpoint}?ca={certificates.ca}"
        async with open_backend(endpoint, run_id="run", cert=certificates.cert, key=certificates.key) as backend:
            assert (await backend.commit(Put("a", b"1"))).won
        text = await refusal(endpoint, final=True)
        assert re.search(f"{cluster.members[0].address}: the server .*requires a client certificate", text)
        text = await refusal(endpoint, final=True, cert=strange.cert, key=strange.key)
        assert re.search(f"{cluster.members[0].address}: the server .* certificate.* that it trusts", text)


@contextmanager
def tls_server(certificates: Certificates, version: ssl.TLSVersion) -> Iterator[str]:
    """A server that wants a client certificate, in one version of TLS: which one an etcd picks depends on its Go."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(certificates.server_cert, certificates.server_key)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    def refuse(client: socket.socket) -> None:
        secured = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        with suppress(OSError):
            secured.do_handshake()
        with socket.socket(fileno=secured.detach()) as raw, suppress(OSError):
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):  # Closed with something unread in it, it would be reset, and the alert lost.
                pass

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # It was shut down.
            with suppress(OSError):
                refuse(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
async def test_a_client_certificate_of_another_authority(
    certificates: Certificates, strange: Certificates, version: ssl.TLSVersion
) -> None:
    with tls_server(certificates, version) as address:
        options = {"ca": certificates.ca, "cert": strange.cert, "key": strange.key}
        text = await refusal(f"etcds://{address}", final=True, **options)
    assert f"{address}: the server rejected or requires a client certificate" in text
    assert "from an authority that it trusts" in text
