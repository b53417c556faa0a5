"""Losses of power lose no acknowledged commit; ``python -m tests.proof power`` does ten thousand."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.proof.__main__ import main
from tests.proof.power import LOSSES, lose_power


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Servers and clients complain of every loss."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(8))
def test_no_acknowledged_commit_is_lost(seed: int) -> None:
    tally = lose_power(seed)
    assert tally.losses == LOSSES
    assert tally.acknowledged > LOSSES


def test_one_seed_is_one_course_of_events() -> None:
    assert lose_power(3) == lose_power(3) != lose_power(4)


@pytest.mark.slow
def test_ten_thousand_losses_of_power(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "--losses", "10000"]) == 0
    assert "none lost" in capsys.readouterr().out
