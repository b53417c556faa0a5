"""What the TCP tests share: certificates, servers in their own processes, and raw connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import trustme

from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.tcp import TcpDriver, TcpServer, wire
from rendezvous_async.backends.tcp.auth import new_nonce
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.settings import parse_endpoint
from rendezvous_async.testing.proxy import Proxy
from tests.ports import free_port


class Certificates:
    """An authority, and certificates of it in files: ``tls_options`` for both sides."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        self.cert = str(directory / "cert.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.authority.issue_cert("127.0.0.1", "::1", "localhost").private_key_and_cert_chain_pem.write_to_path(
            self.cert
        )

    @property
    def tls_options(self) -> dict[str, Any]:
        return {"tls_ca": self.ca, "tls_cert": self.cert}


@asynccontextmanager
async def answering(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A fake server that has this conversation with every client; yields its endpoint."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}?is_host=false"
    finally:
        server.close()
        await server.wait_closed()


async def connect(endpoint: str, run_id: str = "run", **options: Any) -> Backend:
    """Open a client that hosts only if it is asked to; the caller closes it."""
    defaults = {"is_host": False, "connect_timeout": 10}
    given = parse_endpoint(endpoint).options
    return await start_backend(endpoint, run_id, **{k: v for k, v in defaults.items() if k not in given} | options)


@asynccontextmanager
async def connected(endpoint: str, run_id: str = "run", **options: Any) -> AsyncIterator[Backend]:
    """A client for as long as the block runs."""
    backend = await connect(endpoint, run_id, **options)
    try:
        yield backend
    finally:
        with anyio.CancelScope(shield=True):
            await backend.aclose()


def driver_of(backend: Backend) -> TcpDriver:
    """Return what only a client of ``tcp://`` has."""
    assert isinstance(backend.driver, TcpDriver)
    return backend.driver


class Process:
    """Python code in a process of its own, spoken to by lines."""

    def __init__(self, code: str, *arguments: str) -> None:
        self._code = code
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            self._code,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def read(self, seconds: float = 60.0) -> str:
        """Return the next line that it prints; empty if it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        with anyio.fail_after(seconds):
            return (await self._process.stdout.readline()).decode().strip()

    def write(self, line: str) -> None:
        """Send it a line."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        """End it with SIGKILL, and wait for that."""
        if self._process is not None:
            process, self._process = self._process, None
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


class ServerProcess(Process):
    """A server in a process of its own, that can be killed and started again on the same port."""

    CODE = """
import asyncio, json, resource, sys
from rendezvous_async.backends.tcp import serve
async def main(port, options, file_size):
    if file_size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    async with serve("127.0.0.1", port, **options):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main(*json.loads(sys.argv[1])))
"""

    def __init__(self, data_dir: Path | None = None, *, file_size: int = 0, **options: Any) -> None:
        port = free_port()
        self.endpoint = f"tcp://127.0.0.1:{port}"
        options["data_dir"] = None if data_dir is None else str(data_dir)
        super().__init__(self.CODE, json.dumps((port, options, file_size)))

    async def start(self) -> None:
        """Start it, and return when it serves."""
        await super().start()
        assert await self.read() == "ready", "the server process did not start"


class RawClient:
    """A peer that says what it is told to, right or wrong."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, endpoint: str) -> AsyncIterator[RawClient]:
        host, port = parse_endpoint(endpoint).hosts[0]
        reader, writer = await asyncio.open_connection(host, port)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()
            await anyio.lowlevel.checkpoint()

    def send(self, *messages: wire.AnyMessage) -> None:
        for message in messages:
            self.writer.write(wire.frame(message))

    async def read_body(self) -> bytes:
        with anyio.fail_after(10):
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(length)

    async def read(self) -> wire.FromServer:
        return wire.decode_answer(await self.read_body())

    async def read_end(self) -> None:
        """Wait for the server to close the connection."""
        with anyio.fail_after(10):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""

    async def greet(self, client: str = "raw", connection: int = 1) -> wire.Welcome:
        self.send(wire.Hello(PROTOCOLS, client, connection, 0, new_nonce()))
        welcome = await self.read()
        assert isinstance(welcome, wire.Welcome), welcome
        return welcome


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that nobody announces."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.005)


def through_proxy(server: TcpServer | ServerProcess) -> Proxy:
    """A proxy in front of a server."""
    return Proxy(*parse_endpoint(server.endpoint).hosts[0])


@contextmanager
def taken_port() -> Iterator[int]:
    """A port that somebody else serves."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield int(sock.getsockname()[1])
