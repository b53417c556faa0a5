"""Arguments of the testing package that users may pass and no other test does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rendezvous_async.backends.tcp import serve
from rendezvous_async.node.connect import connect
from rendezvous_async.sizes import MAX_SIMULATED
from rendezvous_async.testing import (
    BrokenGuaranteeError,
    Cluster,
    History,
    Operation,
    Proxy,
    Scenario,
    Step,
    check_linearizable,
    run,
    scenario_of,
    simulate,
)
from rendezvous_async.testing.history import Formed
from rendezvous_async.testing.scenarios import play


def test_a_scenario_of_some_size_and_length() -> None:
    scenario = scenario_of(7, nodes=4, actions=2)
    assert scenario.nodes == 4
    assert len([step for step in scenario.steps if step.do not in ("wait", "close", "scale")]) == 2
    seen: list[History] = []
    report = simulate(scenario, watch=seen.append)
    assert report.rounds == len(seen[0].of(Formed)) > 0


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": -1}, {"nodes": True}, {"nodes": "3"}, {"actions": -1}])
def test_a_scenario_of_a_wrong_size_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        scenario_of(7, **wrong)


def test_whoever_watches_a_scenario_may_raise() -> None:
    def dislike(history: History) -> None:
        raise BrokenGuaranteeError("taste", f"{history}")

    with pytest.raises(BrokenGuaranteeError, match="taste"):
        simulate(scenario_of(7, nodes=2, actions=0), watch=dislike)


def test_what_every_key_holds_at_first() -> None:
    read = Operation("key", "read", 0.0, 1.0, value=b"old", client="somebody")
    check_linearizable([read], initial=b"old")
    with pytest.raises(AssertionError, match="not linearizable"):
        check_linearizable([read])


async def test_a_proxy_listens_where_it_is_told() -> None:
    async with serve("127.0.0.1", 0) as server:
        port = int(server.endpoint.rpartition(":")[2])
        async with Proxy("127.0.0.1", port, listen="127.0.0.2") as proxy:
            endpoint = f"tcp://127.0.0.2:{proxy.port}?is_host=false"
            async with connect(endpoint, run_id="run", nodes=1) as rendezvous:
                assert (await rendezvous.join()).size == 1
            assert proxy.accepted == 1


@pytest.mark.parametrize("nodes", [MAX_SIMULATED + 1, 10**9, 10**5000], ids=("more", "many", "huge"))
def test_a_simulation_of_too_many_nodes_is_refused(nodes: int) -> None:
    for make in (lambda: Cluster(nodes=nodes), lambda: scenario_of(7, nodes)):
        with pytest.raises(ValueError, match=f"nodes must be a count of at most {MAX_SIMULATED}") as raised:
            make()
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize("wrong", [{"seed": "7"}, {"seed": 7, "actions": 10**5000}], ids=("seed", "actions"))
def test_a_scenario_of_a_wrong_seed_or_length_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"seed must be|actions must be"):
        scenario_of(**wrong)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"do": ["crash"]}, "a step does one of"),
        ({"at": "now"}, "at of a step must be a finite number"),
        ({"at": -1.0}, "at of a step"),
        ({"at": math.nan}, "at of a step"),
        ({"amount": math.inf}, "amount of a step"),
        ({"amount": True}, "amount of a step"),
        ({"nodes": 5}, "nodes of a step must be a tuple of node numbers"),
        ({"nodes": ("a",)}, "nodes of a step"),
        ({"nodes": (-1,)}, "nodes of a step"),
        ({"sizes": 5}, "sizes of a step"),
        ({"target": "2"}, "target of a step"),
        ({"target": 10**5000}, "target of a step"),
    ],
)
def test_a_wrong_step_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Step(**{"at": 1, "do": "crash", **wrong})


def test_a_step_of_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="there are the nodes 0 to 2, but a step is Step"):
        Scenario(7, 3, 1, 3, (Step(0.0, "close", (3,)),))


async def test_virtual_time_in_an_async_test_says_what_is_wrong() -> None:
    async def nothing() -> None:
        pass

    for make in (lambda: run(nothing), lambda: simulate(scenario_of(7)), lambda: play(scenario_of(7))):
        with pytest.raises(RuntimeError, match=r"^virtual time has its own loop, .* not async$"):
            make()
