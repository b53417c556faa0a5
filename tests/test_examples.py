"""Every example runs, and does what it says."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_async_orchestrator() -> None:
    output = run_example("async_orchestrator.py")
    assert "alice: round 1, rank 0 of 3" in output
    assert "carol: crashes" in output
    assert "dave: round 3, rank 2 of 3" in output
    assert output.count("done at step 100") == 3


def test_testing_an_orchestrator() -> None:
    assert "every guarantee held" in run_example("test_orchestrator.py")


def test_custom_backend() -> None:
    output = run_example("custom_backend.py")
    assert "it keeps every promise" in output
    assert "<World run='job' round=1" in output
    assert "writes are in the audit" in output


def test_launched_worker(tmp_path: Path) -> None:
    """Two launchers, one with two workers, and a program with no code of ours in it; the first one hosts."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{sock.getsockname()[1]}"
    worker = [sys.executable, str(EXAMPLES / "launched_worker.py"), "3", str(tmp_path / "step")]
    launch = [sys.executable, "-m", "rendezvous_async", "launch", endpoint, "--run-id", "sum", "--nodes", "2"]
    commands = ([*launch, "--", *worker], [*launch, "--nproc-per-node", "2", "--", *worker])
    launchers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [launcher.communicate(timeout=120)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0]
    lines = sorted(line for output in outputs for line in output.splitlines())
    assert lines == sorted(f"round 1: rank {r} of 3: step {s}, 3 hands" for r in range(3) for s in range(3))
    assert (tmp_path / "step").read_text() == "3"


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, f"{path.name} is longer than 60 lines"
