"""rdzv serve: the ready line, signals, a data dir, the status page over a socket."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

import rendezvous_async as library
from tests.backends.tcp.support import Certificates, taken_port
from tests.cli.support import Command, assert_one_line, command, free_port, rdzv

SERVE = ("serve", "--port", "0")
CHROMIUM = shutil.which("chromium")


async def endpoints(server: Command) -> list[str]:
    """Wait for the ready line, and return what it names."""
    word, *where = (await server.line("ready ")).split()
    assert word == "ready"
    return where


async def request(address: str, path: str = "/", *headers: str, method: str = "GET") -> tuple[int, str]:
    """Ask for a page; returns code and body."""
    head = "".join(f"{header}\r\n" for header in ("Host: localhost:80", *headers))
    head, _, body = (await raw(address, f"{method} {path} HTTP/1.1\r\n{head}\r\n")).partition("\r\n\r\n")
    return int(head.split()[1]), body


async def raw(address: str, text: str) -> str:
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    with anyio.fail_after(20):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(text.encode())
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    return answer


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


async def test_the_status_page() -> None:
    evil = "<script>alert(1)</script>"
    timeouts = library.Timeouts(last_call=0.1)
    async with command(*SERVE, "--http", "0") as server:
        endpoint, page = await endpoints(server)
        async with library.connect(
            endpoint, run_id="job", nodes="1:2", node=evil, timeouts=timeouts, is_host="false"
        ) as rendezvous:
            await rendezvous.join()
            shown = await run_with_change(page, "round 1 has formed")
            assert shown["run_id"] == "job"
            assert shown["status"]["here"][0]["rank"] == 0
            assert shown["last_seen"][evil] < 60
            assert "the members keep the round" in shown["explanation"]
            assert shown["why"][0] == "round 1 is formed; 1 of its 1 members hold it"
            body = (await request(page, "/metrics"))[1]
            assert 'rdzv_run_nodes{run_id="job",role="member"} 1' in body
            assert 'rdzv_run_round{run_id="job"} 1' in body
        for path, word in (("/", "page.js"), ("/page.js", "textContent"), ("/page.css", "table"), ("/health", "ok")):
            code, body = await request(page, path)
            assert code == 200
            assert word in body
            assert evil not in body


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")
async def test_the_status_page_in_a_browser(tmp_path: Path) -> None:
    """What a person sees: the run, its nodes, why it has not formed; what a node wrote stays text."""
    assert CHROMIUM is not None
    evil = "<img src=x onerror=document.title='owned'>"
    async with command(*SERVE, "--http", "0") as server, anyio.create_task_group() as group:
        endpoint, page = await endpoints(server)
        async with library.connect(endpoint, run_id="job", nodes="2", node=evil, is_host="false") as rendezvous:
            group.start_soon(rendezvous.join)
            await run_with_change(page, "here now")
            arguments = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
            profile = f"--user-data-dir={tmp_path}"
            budget = "--virtual-time-budget=3000"
            with anyio.fail_after(60):
                browser = await anyio.run_process([CHROMIUM, *arguments, profile, budget, "--dump-dom", page])
            group.cancel_scope.cancel()
    dom = browser.stdout.decode()
    assert "<h2>job</h2>" in dom
    assert "1 more must join before a round can form" in dom
    assert "&lt;img src=x" in dom
    assert "<img" not in dom
    assert "<title>rdzv: runs</title>" in dom
    assert "round 0 · 2 nodes · 1 here · 1 waiting" in dom
    assert ">gathering<" in dom


async def run_with_change(page: str, what: str) -> dict[str, Any]:
    """Look at the one run until it shows a change."""
    with anyio.fail_after(20):
        while True:
            code, body = await request(page, "/api/status")
            assert code == 200
            for run in json.loads(body)["runs"]:
                if any(what in change["what"] for change in run["changes"]):
                    assert isinstance(run, dict)
                    return run
            await anyio.sleep(0.05)


async def test_the_status_page_only_shows_and_is_bounded() -> None:
    async with command(*SERVE, "--http", "0") as server:
        _, page = await endpoints(server)
        assert (await request(page, method="POST"))[0] == 405
        assert (await request(page, method="DELETE"))[0] == 405
        assert (await request(page, "/../../etc/passwd"))[0] == 404
        assert await request(page, "/health", method="HEAD") == (200, "")
        assert "400 Bad" in await raw(page, "nonsense\r\n\r\n")
        assert "400 Bad" in await raw(page, "GET / HTTP/1.1\r\nX: \u00e9\r\n\r\n")
        assert " 431 " in await raw(page, "GET / HTTP/1.1\r\n" + "X: y\r\n" * 2000)
        head = await raw(page, "GET / HTTP/1.1\r\n\r\n")
        assert "Content-Security-Policy: default-src 'none'" in head


async def test_a_made_up_name_for_this_machine_sees_nothing() -> None:
    async with command(*SERVE, "--http", "0") as server:
        _, page = await endpoints(server)
        own = socket.gethostname()
        for host in ("", "127.0.0.1:1", "[::1]:1", own, f"{own.upper()}:80", "localhost:1"):
            assert (await request(page, "/", f"Host: {host}"))[0] == 200, host
        evil = ("evil.example", "evil.example:80", f"{own}.evil.example", "localhost.evil.example", "127.0.0.1:80.evil")
        for host in (*evil, "[::1].evil.example", f"{own}@evil.example"):
            assert (await request(page, "/", f"Host: {host}"))[0] == 400, host


async def test_the_status_page_wants_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    async with command(*SERVE, "--http", "0", "--secret-file", str(secret)) as server:
        _, page = await endpoints(server)
        for path in ("/", "/api/status", "/metrics", "/nothing"):
            assert (await request(page, path))[0] == 401
        assert (await request(page, "/health"))[0] == 200
        assert (await request(page, "/", "Authorization: Bearer open sesame"))[0] == 200
        good, bad, broken = (base64.b64encode(text).decode() for text in (b"me:open sesame", b"open sesame:", b"\xff"))
        assert (await request(page, "/", f"Authorization: Basic {good}"))[0] == 200
        for wrong in (f"Basic {bad}", f"Basic {broken}", "Basic !", "Bearer open", "Bearer", "Digest open sesame"):
            assert (await request(page, "/", f"Authorization: {wrong}"))[0] == 401


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
