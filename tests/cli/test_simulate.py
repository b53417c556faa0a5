"""``rdzv simulate`` and ``rdzv scale`` refuse what is wrong before they begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from rendezvous_async.sizes import MAX_SIMULATED
from tests.cli.support import assert_one_line, rdzv

HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nodes", HUGE), ("--nodes", f"is not a whole number from 1 to {MAX_SIMULATED}")),
        (("--nodes", str(MAX_SIMULATED + 1)), ("--nodes",)),
        (("--seeds", HUGE), ("--seeds", "is not a whole number of at least 1")),
        (("--seed", "3", "--seeds", "2"), ("leave out --seeds and --first",)),
        (("--seed", "3", "--first", "0"), ("leave out --seeds and --first",)),
        (("--html", "x.html"), ("--seed",)),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = rdzv(capsys, "simulate", *arguments)
    assert_one_line(result, 2, *words)
    assert len(result.err) < 500


def test_a_page_that_cannot_be_written_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "none" / "page.html"):
        result = rdzv(capsys, "simulate", "--seed", "1", "--html", str(path))
        assert_one_line(result, 2, f"--html: cannot write {path}: ")
        assert result.out == ""


def test_a_page_that_can_be_written_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert rdzv(capsys, "simulate", "--seed", "1", "--nodes", "2", "--html", str(page)).code == 0
    assert page.stat().st_size > 0


def test_scale_checks_the_sizes_before_it_connects(capsys: pytest.CaptureFixture[str]) -> None:
    result = rdzv(capsys, "scale", "tcp://127.0.0.1:1?connect_timeout=0.1", "--run-id", "job", "--nodes", "4:2")
    assert_one_line(result, 2, "nodes=", "4:2")
