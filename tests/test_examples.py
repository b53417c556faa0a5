"""Every example runs, and does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.cas.redis import start_redis
from tests.ports import free_port

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


@pytest.mark.parametrize("name", ["launched_worker.py", "torchrun_train.py"])
def test_without_arguments_an_example_says_how_to_run_it(name: str) -> None:
    if name.startswith("torchrun"):
        pytest.importorskip("torch")
    command = [sys.executable, str(EXAMPLES / name)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("usage: ")  # Torch may warn before.
    assert "Traceback" not in result.stderr


def test_the_quick_start_of_the_readme(tmp_path: Path) -> None:
    """Word for word, but for the endpoint, the number of nodes (no last call) and what it calls training."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    code = readme.partition("## Quick start\n\n```python\n")[2].partition("```\n")[0]
    for theirs, ours in (
        ('"tcp://head:29400"', f'"tcp://127.0.0.1:{free_port()}"'),
        ('nodes="2:4"', "nodes=2"),
        ("secret=SECRET", 'secret="all nodes know this"'),
        ("await train(world.rank, world.size)", 'print("trained", world.rank, world.size)'),
    ):
        assert theirs in code
        code = code.replace(theirs, ours)
    (tmp_path / "job.py").write_text(code)
    command = [sys.executable, "-W", "error", str(tmp_path / "job.py")]
    nodes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(node.communicate(timeout=120)[0] for node in nodes) == ["trained 0 2\n", "trained 1 2\n"]
    assert [node.returncode for node in nodes] == [0, 0]


def test_async_orchestrator() -> None:
    output = run_example("async_orchestrator.py")
    assert "alice: round 1, rank 0 of 3" in output
    assert "carol: crashes" in output
    assert "dave: round 3, rank 2 of 3" in output
    assert output.count("Change.CLOSED at step 100") == 3


def test_whole_racks() -> None:
    r1, r2 = "r1 r1 r1 r1", "r2 r2 r2 r2"
    fit = "7 here, 4 usable: domain r2 has 3 of 4; 1 more node in domain r2 would make 8"
    assert run_example("whole_racks.py").splitlines() == [
        f"round 1: {r1}",
        fit,
        f"round 2: {r1} {r2}",
        f"round 3: {r1}",
    ]


def test_testing_an_orchestrator() -> None:
    assert "every guarantee held" in run_example("test_orchestrator.py")


def test_custom_backend() -> None:
    output = run_example("custom_backend.py")
    assert "it passes every check" in output
    assert "<World run='job' round=1" in output
    assert "writes are in the audit" in output


def test_redis_backend(tmp_path: Path) -> None:
    """Two nodes meet over a real Redis, through three methods; the example has less than 40 lines of code."""
    with start_redis(tmp_path) as port:
        command = [sys.executable, "-W", "error", str(EXAMPLES / "redis_backend.py"), "127.0.0.1", str(port)]
        nodes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert sorted(node.communicate(timeout=120)[0] for node in nodes) == ["rank 0 of 2\n", "rank 1 of 2\n"]
        assert [node.returncode for node in nodes] == [0, 0]
    lines = [line.strip() for line in (EXAMPLES / "redis_backend.py").read_text().splitlines()]
    assert len([line for line in lines if line and not line.startswith(("#", '"""'))]) < 40


def test_launched_worker(tmp_path: Path) -> None:
    """Two launchers, one with two workers, run a program that does not use this library; the first one hosts."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    worker = [sys.executable, str(EXAMPLES / "launched_worker.py"), "3", str(tmp_path / "step")]
    launch = [sys.executable, "-m", "rendezvous_async", "launch", endpoint, "--run-id", "sum", "--nodes", "2"]
    commands = ([*launch, "--", *worker], [*launch, "--nproc-per-node", "2", "--", *worker])
    # Unbuffered, a line and its end are two writes, and between them another worker's may come.
    whole_lines = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    launchers = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=whole_lines) for line in commands]
    outputs = [launcher.communicate(timeout=120)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0]
    lines = sorted(line for output in outputs for line in output.splitlines())
    assert lines == sorted(f"round 1: rank {r} of 3: step {s}, 3 hands" for r in range(3) for s in range(3))
    assert (tmp_path / "step").read_text() == "3"


def test_logs_as_json() -> None:
    lines = [json.loads(line) for line in run_example("json_logs.py").splitlines()]
    life = [(line["rdzv_round"], line["text"]) for line in lines if line["rdzv_node"] == "alice"]
    assert (1, "run 'job-7': node alice: round 1 has lost a member") in life
    assert (2, "run 'job-7': node alice: joined round 2: rank 0 of 1") in life
    assert {line["rdzv_run"] for line in lines} == {"job-7"}
    assert {line["rdzv_node"] for line in lines} == {"alice", "bob"}


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, f"{path.name} is longer than 60 lines"
