"""Two and a half minutes of faults, half a minute on every stage: real processes, real faults, and a verdict.

The long ones have their own command: ``python -m tests.proof campaign --backend tcp --minutes 30``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rendezvous_async.testing.etcd import etcd_program
from tests.proof.campaign.performer import Plan
from tests.proof.campaign.report import STAGES, Result, run_campaign
from tests.proof.campaign.stage_cas import redis_program

SECONDS = 150.0
"""Of faults, in all."""
SHORT = Plan(nodes=4, min_nodes=2, max_nodes=3, clients=1, disturbed=SECONDS / len(STAGES), settle=80.0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", STAGES)
async def test_half_a_minute_of_faults_breaks_nothing(backend: str, tmp_path: Path) -> None:
    if backend == "etcd" and etcd_program() is None:
        pytest.skip("there is no etcd here")
    if backend == "cas" and redis_program() is None:
        pytest.skip("there is no Redis here")
    result = await run_campaign(backend, seed=7, acts=1, plan=SHORT, keep=tmp_path)
    assert not result.breach, str(result)
    assert result.acts == 1
    assert result.seconds > SHORT.disturbed
    # How much fits into the time is up to the machine; these are far below what a busy one does.
    assert result.rounds >= 3, str(result)
    assert result.faults.total() >= 10, str(result)
    assert len(result.faults) >= 4, str(result)
    assert result.looked["acknowledged commits"] > 50
    assert result.looked["reads and listings"] > 50
    assert result.looked["listings of watches"] > 50
    assert os.listdir(tmp_path) == []  # nothing is left of a campaign without a breach


async def test_a_breach_is_told_and_kept(tmp_path: Path) -> None:
    """Nodes that can never form a round: more are asked for than there are."""
    lonely = Plan(nodes=1, min_nodes=2, max_nodes=2, clients=0, settle=3.0)
    result = await run_campaign("file", seed=5, acts=3, plan=lonely, keep=tmp_path)
    assert result.breach.startswith("liveness: no round at the beginning")
    assert result.acts == 1
    assert "history.jsonl" in os.listdir(result.kept)
    assert "campaign --backend file --seed 5 --first 1 --acts 1 --pace 1" in str(result)


def test_a_result_says_what_was_done() -> None:
    result = Result("tcp", 7, acts=2, rounds=9, seconds=60.0, told=[1.0, 2.0, 1.1])
    result.faults["node kill -9"] = 3
    text = str(result)
    assert "campaign on tcp, seed 7: 2 acts in 1.0 minutes, 9 rounds formed, 3 faults put in, no breach" in text
    assert "3 node kill -9" in text
    assert "1.10 s (median), 2.00 s (longest)" in text
