"""A real Redis (or Valkey) for tests: the program of the distribution, on a port of its own, with nothing on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from tests.ports import free_port

__all__ = ["redis_server", "start_redis"]

TRIES = 5


@contextmanager
def start_redis(directory: Path) -> Iterator[int]:
    """Start one, and return its port; skip the test if there is no such program."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("no redis-server or valkey-server on PATH (Debian: apt install redis-server)")
    for _ in range(TRIES):
        port = free_port()
        options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        command = [program, *options, "--dir", str(directory)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                if _serves(port, process):
                    yield port
                    return
            finally:
                process.kill()
    raise AssertionError(f"{program} did not start in {TRIES} tries")


def _serves(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until it answers; False if it has ended, perhaps since another process took the port."""
    never = Event()
    while process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except ConnectionRefusedError:
            never.wait(0.01)
    return False


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis for a whole session; each test uses a key of its own."""
    with start_redis(tmp_path_factory.mktemp("redis")) as port:
        yield port
