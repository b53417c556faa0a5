"""rdzv serve: the ready line, signals, a data dir, full disks, ports in use."""

from __future__ import annotations

import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

import rendezvous_async as library
from tests.backends.tcp.support import Certificates, taken_port
from tests.cli.support import assert_one_line, command, endpoints, rdzv
from tests.ports import free_port

SERVE = ("serve", "--port", "0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_when_it_is_ready_and_stops_cleanly(number: signal.Signals) -> None:
    async with command(*SERVE) as server:
        (endpoint,) = await endpoints(server)
        async with library.open_backend(endpoint, run_id="job", is_host="false") as backend:
            await backend.commit(library.Put("key", b"value"))
        server.signal(number)
        assert await server.code() == 0


async def test_a_data_dir_outlives_sigkill(tmp_path: Path) -> None:
    arguments = ("serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"))
    async with command(*arguments) as server:
        (endpoint,) = await endpoints(server)
        async with library.open_backend(endpoint, run_id="job", is_host="false") as backend:
            await backend.commit(library.Put("key", b"value"))
        server.signal(signal.SIGKILL)
        await server.code()
    async with command(*arguments) as server:
        await endpoints(server)
        async with library.open_backend(endpoint, run_id="job", is_host="false") as backend:
            entry = await backend.get("key")
    assert entry is not None
    assert entry.value == b"value"


async def test_tls_is_served_on_both_ports(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    async with command(*SERVE, "--http", "0", "--tls-cert", certificates.cert) as server:
        endpoint, page = await endpoints(server)
        assert page.startswith("https://")
        async with library.open_backend(endpoint, run_id="job", is_host="false", tls_ca=certificates.ca) as backend:
            assert await backend.get("key") is None


@pytest.mark.parametrize("port", ["main", "page"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_silent_strangers_do_not_take_all_descriptors(port: str, tls: bool, tmp_path: Path) -> None:
    """They counted only from their TLS handshake on: both ports were dead, and the log grew by the megabyte."""
    certificates = Certificates(tmp_path)
    options = ("--tls-cert", certificates.cert) if tls else ()
    access = {"tls_ca": certificates.ca} if tls else {}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(command(*SERVE, "--http", "0", *options, merged=True, ulimit="-n 256"))
        endpoint, page = await endpoints(server)
        host, _, number = (endpoint if port == "main" else page).rstrip("/").rpartition("/")[2].rpartition(":")
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(number))))
        refusals = 0
        while True:
            try:
                async with library.open_backend(endpoint, run_id="job", is_host="false", **access) as backend:
                    await backend.commit(library.Put("key", b"value"))
                break
            except library.RendezvousConnectionError as error:
                refusals += 1
                assert port == "main", error
                assert refusals < 600, error
                await anyio.sleep(0.1)
        server.signal(signal.SIGTERM)
        assert await server.code() == 0
    assert len(server.lines) < 10, server.lines[:20]


def test_nonsense_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert_one_line(rdzv(capsys, "serve", "--host", "0.0.0.0", "--port", "0"), 2, "secret")
    assert_one_line(rdzv(capsys, "serve", "--host", "no.such.host.invalid"), 3, "no.such.host.invalid")
    assert_one_line(rdzv(capsys, "serve", "--port", "99999"), 2, "99999")
    assert_one_line(rdzv(capsys, *SERVE, "--tls-cert", str(tmp_path / "none")), 2, "TLS")
    assert_one_line(rdzv(capsys, *SERVE, "--http", "0", "--http-host", "0.0.0.0"), 2, "--insecure")
    with taken_port() as port:
        for arguments in (("serve", "--port", str(port)), (*SERVE, "--http", str(port))):
            result = rdzv(capsys, *arguments)
            assert_one_line(result, 3, f"127.0.0.1:{port}: Address already in use")
            assert result.err.count(str(port)) == 1, result
    (tmp_path / "file").write_text("")
    result = rdzv(capsys, *SERVE, "--data-dir", str(tmp_path / "file"))
    assert_one_line(result, result.code, "file")
    assert result.code in (1, 3)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "tcp://127.0.0.1:{}", "localhost:{}"])
async def test_the_address_as_one_writes_it_by_habit(form: str) -> None:
    port = free_port()
    async with command("serve", form.format(port)) as server:
        (endpoint,) = await endpoints(server)
        assert endpoint.endswith(f":{port}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("29400",), "'29400' is not HOST[:PORT], for example 0.0.0.0:29400"),
        ((":29400",), "HOST[:PORT]"),
        (("a:b",), "HOST[:PORT]"),
        (("a:1,b:2",), "HOST[:PORT]"),
        (("etcd://a:1",), "HOST[:PORT]"),
        (("127.0.0.1:1", "--port", "2"), "not both"),
        (("127.0.0.1:1", "--host", "b"), "not both"),
    ],
    ids=str,
)
def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert_one_line(rdzv(capsys, "serve", *arguments), 2, words)


async def test_a_data_dir_in_use_and_a_port_in_use_have_one_exit_code(tmp_path: Path) -> None:
    serving = (*SERVE, "--data-dir", str(tmp_path))
    async with command(*serving) as first:
        await endpoints(first)
        async with command(*serving, merged=True) as second:
            assert await second.code() == 3
    assert len(second.lines) == 1
    assert "in use by another process" in second.lines[0]


async def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    async with command(*SERVE, "--data-dir", str(tmp_path), merged=True, ulimit="-f 64") as server:
        (endpoint,) = await endpoints(server)
        async with library.open_backend(endpoint, run_id="job", is_host="false") as backend:
            with pytest.raises(library.RendezvousError):
                for number in range(100):
                    await backend.commit(library.Put(f"key/{number}", b"x" * 10_000))
        assert await server.code() == 1
    assert [line for line in server.lines if "stops" in line] == server.lines[-1:]
    assert server.lines[-1].startswith("rdzv: the server at")
