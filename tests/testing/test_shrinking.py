"""Shrinking: what is left fails as before, is small, and runs as a test when it is pasted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from pytest import MonkeyPatch

from rendezvous_async import Timeouts
from rendezvous_async.cli.pasting import as_test
from rendezvous_async.cli.simulate import shrink_seed
from rendezvous_async.testing import (
    BrokenGuaranteeError,
    Faults,
    Scenario,
    Step,
    scenario_of,
    shrink,
    simulate,
)
from rendezvous_async.testing.scenarios import Elasticity, play
from tests.proof.__main__ import main as proof
from tests.proof.test_planted_bugs import BUGS

ROOT = Path(__file__).parents[2]
CONFTEST = """
import os, pytest
from tests.proof.test_planted_bugs import BUGS

@pytest.fixture(autouse=True)
def planted(monkeypatch):
    if os.environ.get("PLANTED"):
        BUGS[os.environ["PLANTED"]][0](monkeypatch)
"""
LARGE = Scenario(
    seed=7,
    nodes=5,
    min_nodes=2,
    max_nodes=4,
    steps=(
        *(Step(float(index), "start", (index,)) for index in range(5)),
        Step(6.0, "partition", (0, 1)),
        Step(7.5, "crash", (3,)),
        Step(9.0, "heal"),
        Step(9.5, "crash", (4,)),
        Step(12.0, "wait"),
    ),
    faults=Faults(delay=0.3, drop_reply=0.1),
    ranks="sorted",
    max_writes=4,
    timeouts=Timeouts(last_call=0.5, close=5),
)


def fails_if(broken: Callable[[Scenario], bool]) -> Callable[[Scenario], None]:
    """Return something that plays scenarios, and fails with those that are broken."""

    def play_it(scenario: Scenario) -> None:
        if broken(scenario):
            raise BrokenGuaranteeError("no_crash_after_a_partition", repr(scenario))

    return play_it


def has_a_crash_after_a_partition(scenario: Scenario) -> bool:
    done = [step.do for step in scenario.steps]
    return "crash" in done and "partition" in done[: len(done) - 1 - done[::-1].index("crash")]


def test_what_has_nothing_to_do_with_it_is_gone() -> None:
    small = shrink(LARGE, fails_if(has_a_crash_after_a_partition))
    assert small == Scenario(7, 2, 1, 1, steps=(Step(0.0, "partition", (0,)), Step(0.0, "crash", (1,))))


def test_what_is_needed_stays() -> None:
    def broken(scenario: Scenario) -> bool:
        crashed = {node for step in scenario.steps if step.do == "crash" for node in step.nodes}
        late = any(step.at >= 3 for step in scenario.steps)
        return len(crashed) == 2 and scenario.min_nodes == 2 and scenario.faults.drop_reply > 0 and late

    small = shrink(LARGE, fails_if(broken))
    assert (small.nodes, small.min_nodes, small.faults) == (2, 2, Faults(drop_reply=0.1))
    assert [(step.do, step.nodes) for step in small.steps] == [("crash", (0,)), ("crash", (1,))]
    assert small.steps[-1].at >= 3


def test_another_seed_is_tried_where_the_old_one_does_not_fail() -> None:
    small = shrink(LARGE, fails_if(lambda scenario: scenario.nodes > 3 or scenario.seed == 2))
    assert (small.nodes, small.steps, small.seed) == (1, (), 2)


def test_a_scenario_that_fails_otherwise_is_another_bug() -> None:
    def play_it(scenario: Scenario) -> None:
        raise BrokenGuaranteeError("this" if scenario.nodes > 3 else "that", "")

    assert shrink(LARGE, play_it).nodes == 4


def test_the_search_ends_after_so_many_tries() -> None:
    played = []

    def play_it(scenario: Scenario) -> None:
        played.append(scenario)
        raise BrokenGuaranteeError("always", "")

    shrink(LARGE, play_it, tries=5)
    assert len(played) == 6
    assert shrink(LARGE, play_it, seconds=0.0) == LARGE


def test_what_does_not_fail_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(LARGE, fails_if(lambda _: False))


def test_a_step_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="not 'explode'"):
        Step(0.0, "explode")


def run_pytest(folder: Path, planted: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PLANTED": planted},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def unscaled(seed: int) -> Scenario:
    """Draw a scenario in which nobody scales the run: its bugs need fewer nodes."""
    drawn = scenario_of(seed)
    return replace(drawn, elasticity=Elasticity(), steps=tuple(step for step in drawn.steps if step.do != "scale"))


@pytest.mark.parametrize("name", ["a_rank_is_given_twice", "more_than_max_are_let_in"])
def test_the_test_of_a_planted_bug_fails_with_the_bug_and_passes_without(
    name: str, monkeypatch: MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        BUGS[name][0](patch)
        scenario, error = next(
            (scenario, error) for seed in range(400) if (error := play(scenario := unscaled(seed))[1]) is not None
        )
        small = shrink(scenario, simulate, seconds=600)  # however slow the machine is
        text = as_test(small, simulate)
    assert isinstance(error, BrokenGuaranteeError)
    assert small.nodes <= 3
    assert len(small.steps) <= 4 < len(scenario.steps)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_pasted.py").write_text(text)
    with_bug = run_pytest(tmp_path, name)
    assert with_bug.returncode == 1, with_bug.stdout + with_bug.stderr
    assert error.guarantee in with_bug.stdout
    without = run_pytest(tmp_path, "")
    assert without.returncode == 0, without.stdout + without.stderr


SCRIPT = """
import sys
from pytest import MonkeyPatch
from rendezvous_async.cli import main
from tests.proof.test_planted_bugs import BUGS

BUGS["a_rank_is_given_twice"][0](MonkeyPatch())  # Also in the processes of the pool, which import this file.
if __name__ == "__main__":
    sys.exit(main(["simulate", *sys.argv[1:]]))
"""


def test_the_command_prints_a_test_and_draws_what_broke(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = tmp_path / "seed.html"
    done = subprocess.run(
        [sys.executable, str(script), "--seed", "0", "--nodes", "5", "--html", str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "seed 0: BrokenGuaranteeError: ranks_are_exact" in done.stdout
    assert "reproduce: rdzv simulate --seed 0 --nodes 5\n" in done.stdout
    test = done.stdout.partition("as a test:\n\n")[2].rpartition("\n1 scenario, ")[0]
    compile(test, "pasted", "exec")
    assert "def test_it() -> None:\n    # BrokenGuaranteeError: ranks_are_exact" in test
    assert "ranks_are_exact" in path.read_text()


def test_a_seed_that_does_not_fail_again_has_no_test() -> None:
    assert shrink_seed(0, nodes=2) == ""


def test_a_saga_that_fails_is_shrunk_to_a_test(monkeypatch: MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with monkeypatch.context() as patch:
        BUGS["a_rank_is_given_twice"][0](patch)
        assert proof(["endure", "--seed", "7"]) == 1
    found, _, test = capsys.readouterr().out.partition("from tests.proof.sagas import Chapter, Saga, play_saga\n")
    assert found.startswith("saga 7: BrokenGuaranteeError: ")
    assert test.count("Chapter(") == 1
    assert "nodes=2" in test
    assert "Step(" not in test
