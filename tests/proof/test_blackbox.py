"""The run's own history is right about what was done to it; ``python -m tests.proof history`` does a hundred."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from rendezvous_async.causes import Cause
from rendezvous_async.core.history import HistoryRecord, Kind, Who, roll_of
from rendezvous_async.core.retelling import sentence_of
from rendezvous_async.testing import Cluster, run
from tests.proof.__main__ import main
from tests.proof.blackbox import FITTING, Ledger, disturb
from tests.proof.incidents import INCIDENTS, play, tell


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes and servers complain of every fault."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(4))
def test_every_fault_is_told_with_its_machine_and_its_cause(seed: int) -> None:
    ledger = disturb(seed)
    assert (ledger.share, ledger.invented, ledger.named) == (1.0, [], 1.0)
    assert ledger.right.total() > 15


def test_a_history_that_is_wrong_is_noticed() -> None:
    ledger = Ledger()
    lost = HistoryRecord(
        n=1,
        kind=Kind.LOST,
        gone=roll_of([Who("a", "", Cause.LEFT), Who("b"), Who("c", "", Cause.CUT), Who("d", "", "spare")]),
    )
    ledger.judge("killed", ["a", "b", "e"], [lost], 1)
    assert (ledger.right["killed"], ledger.unknown["killed"], ledger.wrong["killed"]) == (0, 1, 2)
    assert ledger.invented == ["seed 1: c cut"]
    assert ledger.share == 0.0
    assert "killed              3      0        1      2" in ledger.table()
    assert set(FITTING) >= {"killed", "left", "evicted", "frozen", "stalled"}


@pytest.mark.slow
def test_a_hundred_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--seeds", "100"]) == 0
    assert "0 invented" in capsys.readouterr().out


@pytest.mark.parametrize("name", INCIDENTS)
def test_the_incidents_in_the_documents_are_what_is_printed(name: str) -> None:
    document = (Path(__file__).parents[2] / "docs" / "incidents.md").read_text()
    assert "```text\n" + "\n".join(tell(play(name))) + "\n```" in document


def test_a_node_that_was_frozen_says_so_when_it_is_back() -> None:
    async def scenario() -> list[HistoryRecord]:
        async with Cluster(nodes=3, min_nodes=2, seed=7) as cluster:
            await cluster.join_all()
            cluster.pause(1)
            await anyio.sleep(20)
            cluster.resume(1)
            await anyio.sleep(8)
            return cluster._witness.records

    waiting, formed = run(scenario, seed=7)[-2:]
    for record in (waiting, formed):
        (back,) = record.new.named
        assert (back.node, back.cause, round(back.after)) == ("node-1", Cause.STALLED, 19)
    assert "its event loop had stalled for 19 s" in sentence_of(waiting)
