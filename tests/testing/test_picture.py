"""The picture of a history: who held what when, the faults, and the guarantee that is broken."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from pytest import MonkeyPatch

from rendezvous_async.cli import main
from rendezvous_async.page.drawing import Bar, Drawing, Lane, Mark
from rendezvous_async.testing import Cluster, History, NotSettledError, draw, run, scenario_of
from rendezvous_async.testing.history import Arrived, Believed, Fault, Formed
from rendezvous_async.testing.picture import drawing_of
from rendezvous_async.testing.scenarios import play
from tests.page.test_drawing import find, parse
from tests.proof.test_planted_bugs import BUGS


async def a_bad_day() -> History:
    async with Cluster(nodes=3, min_nodes=2, seed=7) as cluster:
        await cluster.join_all()
        cluster.pause(1)
        await anyio.sleep(10)
        cluster.resume(1)
        await cluster.settle()
        cluster.partition({0, 1})
        await anyio.sleep(10)
        cluster.heal()
        await cluster.settle()
        cluster.crash(0)
        cluster.lose_server()
        await cluster.settle()
        await cluster.close(1)
        await cluster.settle()
        return cluster.history


def bars(lane: Lane, kind: str) -> list[Bar]:
    return [bar for bar in lane.bars if bar.kind == kind]


def marks(lane: Lane, kind: str) -> list[Mark]:
    return [mark for mark in lane.marks if mark.kind == kind]


def test_a_lane_shows_what_a_node_believed_and_what_happened_to_it() -> None:
    history = run(a_bad_day, seed=7)
    drawn = drawing_of(history)
    assert [lane.name for lane in drawn.lanes] == ["the run", "node-0", "node-1", "node-2"]
    of_run, *nodes = drawn.lanes
    assert [bar.round for bar in bars(of_run, "round")] == [formed.round for formed in history.of(Formed)]
    for lane in nodes:
        believed = [record for record in history.of(Believed) if record.node == lane.name]
        held = bars(lane, "round")
        assert [(bar.begin, bar.round) for bar in held] == [(record.at, record.round) for record in believed]
        assert all(bar.begin < bar.end for bar in held)
        assert [mark.at for mark in marks(lane, "arrived")] == [
            record.at for record in history.of(Arrived) if record.node == lane.name
        ]
    (frozen,) = bars(nodes[1], "paused")
    assert frozen.end - frozen.begin == pytest.approx(10)
    first = [bars(lane, "round")[0] for lane in nodes]
    assert sorted(bar.text for bar in first) == ["r1 0/3", "r1 1/3", "r1 2/3"]
    (cut,) = bars(nodes[2], "cut")
    assert cut.end - cut.begin == pytest.approx(10)
    assert [mark.tip for mark in marks(nodes[0], "fault")] == ["node-0: crash"]
    assert bars(nodes[0], "round")[-1].end == marks(nodes[0], "fault")[0].at
    tips = [mark.tip for mark in marks(of_run, "fault")]
    assert tips == ["partition: node-2", "heal: node-2", "lose the server"]
    assert bars(of_run, "closed")[0].tip == "the run is closed by node-1"
    assert drawn.alarms == ()


def test_a_server_that_comes_back_with_its_log_forgets_nobody() -> None:
    async def scenario() -> History:
        async with Cluster(nodes=2, min_nodes=2, server="log") as cluster:
            await cluster.join_all()
            cluster.restart_server()
            await anyio.sleep(1)
            await cluster.settle()
            return cluster.history

    of_run, *nodes = drawing_of(run(scenario, seed=1)).lanes
    (restart,) = marks(of_run, "fault")
    assert restart.tip == "restart the server"
    assert [bar.end > restart.at for lane in nodes for bar in bars(lane, "present")] == [True, True]
    assert [bar.end > restart.at for bar in bars(of_run, "round")] == [True]


def test_only_a_node_that_runs_is_cut_off() -> None:
    history = History(1, 2, 5.0)
    history.add(Arrived(1.0, "a", "x"))
    for at, kind in ((2.0, "partition"), (3.0, "crash"), (4.0, "partition")):
        history.add(Fault(at, kind, ("a",)))
    history.add(Arrived(5.0, "a", "y"))
    _, lane = drawing_of(history).lanes
    assert [(bar.begin, bar.end) for bar in bars(lane, "cut")] == [(2.0, 3.0)]


def failing(name: str, monkeypatch: MonkeyPatch) -> tuple[Drawing, Exception]:
    """Plant a bug and draw the first scenario that fails of it."""
    with monkeypatch.context() as patch:
        BUGS[name][0](patch)
        for seed in range(400):
            history, error = play(scenario_of(seed))
            if error is not None:
                return drawing_of(history, error), error
    raise AssertionError(f"{name} is not caught")


def test_a_broken_guarantee_is_marked_where_it_broke(monkeypatch: MonkeyPatch) -> None:
    drawn, error = failing("more_than_max_are_let_in", monkeypatch)
    names = [name for name, _ in drawn.alarms]
    assert names[0] == "size_within_bounds"
    assert str(error) == ": ".join(drawn.alarms[0])
    broken = [mark for mark in marks(drawn.lanes[0], "broken") if mark.tip.startswith("size_within_bounds")]
    first = next(mark for mark in marks(drawn.lanes[0], "formed"))
    assert [mark.at for mark in broken] == [first.at]


def test_a_run_that_does_not_settle_says_so(monkeypatch: MonkeyPatch) -> None:
    drawn, error = failing("nobody_takes_over_from_a_dead_coordinator", monkeypatch)
    assert isinstance(error, NotSettledError)
    assert drawn.alarms == (("NotSettledError", str(error)),)


def test_a_breach_of_a_node_is_in_its_lane() -> None:
    history = History(1, 2, 5.0)
    history.add(Arrived(0.5, "<b>", "x"))
    history.add(Believed(1.0, "<b>", 1, 0, 1, "epoch:3"))
    history.add(Arrived(2.0, "a", "y"))
    (of_node,) = (lane for lane in drawing_of(history).lanes if lane.name == "<b>")
    (broken,) = marks(of_node, "broken")
    assert broken.at == 1.0
    assert "a round that never formed" in broken.tip


def test_it_is_one_page_with_lanes_and_the_broken_guarantee(tmp_path: Path) -> None:
    history = History(1, 2, 5.0)
    history.add(Believed(1.0, "<b>", 1, 0, 1, "epoch:3"))
    draw(history, tmp_path / "picture.html", NotSettledError("not <settled>"))
    root = parse((tmp_path / "picture.html").read_text())
    titles = [alarm.findtext("h2") for alarm in find(root, "alarm")]
    assert titles == ["NotSettledError", "one_world_per_round"]
    assert {"the run", "<b>"} <= {row.findtext("b") for row in find(root, "row")}
    draw(History(1, 2, 5.0), str(tmp_path / "nothing.html"))
    parse((tmp_path / "nothing.html").read_text())


def test_the_command_draws_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seed.html"
    assert main(["simulate", "--seed", "12", "--html", str(path)]) == 0
    assert f"drawn: {path}" in capsys.readouterr().out
    lanes = {row.findtext("b") for row in find(parse(path.read_text()), "row")}
    assert {f"node-{number}" for number in range(scenario_of(12).nodes)} <= lanes
    assert main(["simulate", "--html", str(path)]) == 2
    assert "--seed" in capsys.readouterr().err
