"""Sagas: long histories hold every guarantee, what breaks in one is caught, and endurance goes on where it stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from pytest import MonkeyPatch

from rendezvous_async import Rendezvous, Timeouts
from rendezvous_async.core import duty
from rendezvous_async.node.store import Store
from rendezvous_async.testing import BrokenGuaranteeError, Cluster, check, run
from rendezvous_async.testing.history import Released
from tests.proof.__main__ import main
from tests.proof.endurance import Endurance, Stretch, code_version, endure
from tests.proof.sagas import Deeds, play_saga, saga_of

CI_SEEDS = (0, 4, 7, 8, 15, 19)
"""Together a thousand rounds, worlds of 2 to 12 nodes, in a few seconds."""


@pytest.mark.parametrize("seed", CI_SEEDS)
def test_a_saga_holds_every_guarantee(seed: int) -> None:
    play_saga(saga_of(seed))


@pytest.mark.slow
def test_ten_thousand_rounds_hold_every_guarantee(tmp_path: Path) -> None:
    assert main(["endure", "--rounds", "10000", "--progress", str(tmp_path / "progress.json")]) == 0


def test_one_seed_is_one_saga_byte_for_byte() -> None:
    assert play_saga(saga_of(9)) == play_saga(saga_of(9))


def test_a_node_that_goes_back_by_choice_while_it_is_cut_off_believes_in_nothing() -> None:
    """The first sagas failed of this: a join that cannot reach the server looked like a world still held."""

    async def scenario() -> None:
        async def program(rendezvous: Rendezvous) -> None:
            while True:
                cluster.returns(rendezvous)
                world = await rendezvous.join()
                with anyio.move_on_after(8):
                    await world.changed()

        timeouts = Timeouts(join=120, last_call=0.5, close=5)
        async with Cluster(nodes=2, min_nodes=2, program=program, timeouts=timeouts) as cluster:
            cluster.start(0)
            cluster.start(1)
            await anyio.sleep(7)
            cluster.partition({0})
            await anyio.sleep(20)
            check(cluster.history)
            assert [record.why for record in cluster.history.of(Released) if record.node == "node-1"] == ["returns"]

    run(scenario, seed=1)


def caught_by(patch: MonkeyPatch, owner: Any, name: str, broken: Any) -> str:
    """Plant a bug and return what catches it, in a few sagas."""
    patch.setattr(owner, name, broken)
    for seed in range(30):
        try:
            play_saga(saga_of(seed))
        except BrokenGuaranteeError as error:
            return str(error)
    return "nothing"


def test_a_barrier_that_lets_somebody_pass_early_is_caught(monkeypatch: MonkeyPatch) -> None:
    async def broken(self: Store, name: str = "", timeout: float = 1.0) -> None:
        await anyio.lowlevel.checkpoint()

    assert "nobody_passes_a_barrier_early" in caught_by(monkeypatch, Store, "barrier", broken)


def test_a_node_that_fails_is_caught(monkeypatch: MonkeyPatch) -> None:
    async def broken(self: Store, key: str, value: str) -> None:
        raise KeyError(key)

    with pytest.raises(KeyError, match="progress of"):
        caught_by(monkeypatch, Store, "set", broken)


def test_an_error_that_is_only_logged_is_caught(monkeypatch: MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise TypeError("planted")

    assert "no_error_is_logged" in caught_by(monkeypatch, duty, "step", broken)


def test_endurance_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    played = []
    for stretch in endure(Stretch("this", seed=16), 10_000, processes=1):
        played.append(stretch)
        Endurance().having(stretch).save(path)
        if len(played) == 2:
            break  # Interrupted.
    again = Endurance.load(path).of("this")
    assert again == played[-1]
    assert again.seed == 18
    following = next(endure(again, 10_000, processes=1))
    alone = play_saga(saga_of(18))
    assert following.seed == 19
    assert following.deeds == again.deeds + alone


def test_rounds_count_only_for_the_code_that_formed_them(tmp_path: Path) -> None:
    before = Stretch("old code", 7, Deeds(sagas=7, rounds=70))
    known = Endurance((before,)).having(Stretch("new code", 1, Deeds(sagas=1, rounds=3)))
    assert known.of("old code") == before
    assert known.of("new code").deeds.rounds == 3
    assert known.of("other code") == Stretch("other code")


def test_the_code_version_names_what_is_simulated(tmp_path: Path) -> None:
    for name in ("core/rules.py", "cli/status.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("before")
    version = code_version(tmp_path)
    (tmp_path / "cli/status.py").write_text("after")
    assert code_version(tmp_path) == version
    (tmp_path / "core/rules.py").write_text("after")
    assert code_version(tmp_path) != version


def test_the_command_can_be_stopped_and_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    command = [sys.executable, "-m", "tests.proof", "endure", "--processes", "1", "--progress", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "starts over" in process.stderr.readline()
        assert "rounds formed in 1 sagas" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert "the same command goes on from here" in process.stderr.read()
    assert process.returncode == 130
    assert Endurance.load(path).of(code_version()).seed >= 1
    assert list(tmp_path.iterdir()) == [path]
    assert msgspec.json.decode(path.read_bytes())
