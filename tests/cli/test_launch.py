"""What ``rdzv launch`` says to wrong command lines and secrets; tests/launch has what it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rendezvous_async.backends.tcp import serve
from tests.cli.support import assert_one_line, command, rdzv
from tests.ports import free_port


def test_nonsense_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"tcp://127.0.0.1:{free_port()}?is_host=false"
    run = ("--run-id", "job", "--nodes", "1", "-q", "--connect-timeout", "0.3")
    assert_one_line(rdzv(capsys, "launch", nowhere, *run, "--", "true"), 3, "127.0.0.1")
    assert_one_line(rdzv(capsys, "launch", "nonsense", *run, "--", "true"), 2, "nonsense")
    assert_one_line(rdzv(capsys, "launch", "memory://x", *run, "--", "true"), 2, "memory://")
    assert_one_line(rdzv(capsys, "launch", nowhere, *run), 2, "command")
    for nodes in ("0", "3:2", "a:b", "", "4:9:4", "4,4", "4/8"):
        assert_one_line(rdzv(capsys, "launch", nowhere, "--run-id", "job", "--nodes", nodes, "--", "true"), 2, "nodes")
    for option, wrong in (
        *(("--label", wrong) for wrong in ("rack", "rack=", "=r1", "")),
        *(("--grow", wrong) for wrong in ("-1", "x", "nan", "")),
        *(("--per-domain", wrong) for wrong in ("0", "x")),
        ("--domain", ""),
    ):
        assert_one_line(
            rdzv(capsys, "launch", nowhere, *run, option, wrong, "--", "true"), 2, option, repr(wrong)[1:-1]
        )
    assert_one_line(rdzv(capsys, "launch", nowhere, *run, "--per-domain", "2", "--", "true"), 2, "needs a domain")
    twice = ("--label", "rack=a", "--label", "rack=b")
    assert_one_line(rdzv(capsys, "launch", nowhere, *run, *twice, "--", "true"), 2, "twice")
    assert_one_line(rdzv(capsys, "launch", nowhere, *run, "--label", "nproc=2", "--", "true"), 2, "'nproc'")
    assert_one_line(rdzv(capsys, "launch", nowhere, "--run-id", "", "--nodes", "1", "--", "true"), 2, "--run-id")


async def test_wrong_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("wrong")
    wrong = ("--secret-file", str(tmp_path / "secret"))
    async with serve("127.0.0.1", 0, secret="right") as server:
        run = ("--run-id", "job", "--nodes", "1")
        async with command("launch", server.endpoint, *run, *wrong, "--", "true", merged=True) as launcher:
            assert await launcher.code() == 3
    assert launcher.lines[-1].startswith("rdzv: ")
