"""The status page over a socket, in a browser and to strangers: what it shows, and whom."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from pathlib import Path
from typing import Any

import anyio

import rendezvous_async as library
from tests.cli.support import command, endpoints

SERVE = ("serve", "--port", "0")


async def request(address: str, path: str = "/", *headers: str, method: str = "GET") -> tuple[int, str]:
    """Ask for a page; returns code and body."""
    host = () if any(header.startswith("Host:") for header in headers) else ("Host: localhost:80",)
    head = "".join(f"{header}\r\n" for header in (*host, *headers))
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
            assert "rdzv_run_nodes" in (await request(page, "/metrics"))[1]
        for path, word in (("/", "page.js"), ("/page.js", "textContent"), ("/page.css", "table"), ("/health", "ok")):
            code, body = await request(page, path)
            assert code == 200
            assert word in body
            assert evil not in body


async def test_sizes_domains_and_scaling_in_the_json() -> None:
    job: dict[str, Any] = {"run_id": "job", "nodes": "4:8:4", "domain": "rack", "is_host": False}
    async with command(*SERVE, "--http", "0") as server, anyio.create_task_group() as group:
        endpoint, page = await endpoints(server)
        async with (
            library.connect(endpoint, **job, node="a", labels={"rack": "r1"}) as a,
            library.connect(endpoint, **job, node="b") as b,
        ):
            group.start_soon(a.join)
            await run_with_change(page, "here now: a")
            group.start_soon(b.join)
            await run_with_change(page, "here now: b")
            await a.scale("4:16:4", target=8)
            shown = await run_with_change(page, "scaled from 4:8:4 to 4:16:4, target 8")
            group.cancel_scope.cancel()
    status = shown["status"]
    assert status["spec"] == {"nodes": "4:16:4", "target": 8, "generation": 1}
    assert (status["fit"]["here"], status["fit"]["usable"], status["fit"]["missing"]) == (2, 0, 3)
    assert (status["unlabelled"], status["held_back"], status["origin"][:5]) == (["b"], 0, "4:8:4")
    assert (shown["state"], shown["labels"]) == ("waiting", {"a": {"rack": "r1"}})


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
        assert (await request(page, "/", "Host: localhost", "Host: evil.example"))[0] == 400
        assert (await request(page, "/", "Host: evil.example", "Host: localhost"))[0] == 400


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
