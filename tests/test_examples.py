"""Every example runs, and does what it says."""

from __future__ import annotations

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


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, f"{path.name} is longer than 60 lines"
