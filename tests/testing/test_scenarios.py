"""The simulation: random scenarios hold every guarantee, and one seed is one history."""

from __future__ import annotations

import logging

import anyio
import pytest

from rendezvous_async import Timeouts
from rendezvous_async.cli import main
from rendezvous_async.testing import Cluster, Faults, NotSettledError, check, run, scenario_of, simulate
from rendezvous_async.testing.history import Believed, Fault, Formed, History, Released

CI_SEEDS = 300
CHUNK = 20


@pytest.fixture(autouse=True)
def quiet() -> object:
    """Nodes complain of every fault that a scenario puts in."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, CI_SEEDS, CHUNK))
def test_random_scenarios_hold_every_guarantee(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(scenario_of(seed))


@pytest.mark.parametrize("seed", [168, 1507, 4027])
def test_a_coordinator_that_goes_while_a_node_comes_is_missed(seed: int) -> None:
    """These failed: the node had heard of the coordinator by its first commit, and was never told that it was gone."""
    simulate(scenario_of(seed, network="stand-in"))


@pytest.mark.parametrize("seed", range(40))
def test_random_scenarios_on_the_stand_in_hold_every_guarantee(seed: int) -> None:
    simulate(scenario_of(seed, network="stand-in"))


@pytest.mark.slow
def test_many_random_scenarios_hold_every_guarantee() -> None:
    assert main(["simulate", "--first", "1000", "--seeds", "5000", "--processes", "2"]) == 0


def test_another_seed_is_another_history() -> None:
    assert len({simulate(scenario_of(seed)).digest for seed in range(10)}) == 10


async def crash_and_form_again() -> History:
    async with Cluster(nodes=3, min_nodes=2, seed=7) as cluster:
        worlds = await cluster.join_all()
        assert [world.rank for world in worlds] == [0, 1, 2]
        cluster.crash(0)
        await cluster.settle()
        check(cluster.history)
        return cluster.history


def test_three_nodes_form_one_crashes_two_form_again() -> None:
    history = run(crash_and_form_again, seed=7)
    assert [(formed.round, formed.size) for formed in history.of(Formed)] == [(1, 3), (2, 2)]
    assert bytes(history) == bytes(run(crash_and_form_again, seed=7))


def test_a_paused_node_knows_that_it_is_out_as_soon_as_it_runs() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=3, min_nodes=2) as cluster:
            await cluster.join_all()
            cluster.pause(2)
            await anyio.sleep(20)
            assert cluster.nodes[2].holds is not None
            cluster.resume(2)
            resumed = anyio.current_time()
            await cluster.settle()
            released = [r for r in cluster.history.of(Released) if r.node == "node-2" and r.at >= resumed]
            assert released[0].at == resumed
            check(cluster.history)

    run(scenario, seed=1)


def test_a_partitioned_minority_is_out_and_comes_back_when_it_heals() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=5, min_nodes=2) as cluster:
            await cluster.join_all()
            cluster.partition({0, 1, 2}, {3, 4})
            await anyio.sleep(30)
            assert [node.holds is not None for node in cluster.nodes] == [True, True, True, False, False]
            cluster.heal()
            worlds = await cluster.join_all()
            assert [world.size for world in worlds] == [5] * 5
            check(cluster.history)

    run(scenario, seed=1)


def test_a_server_with_a_log_goes_on_with_the_round() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=3, min_nodes=3, server="log") as cluster:
            await cluster.join_all()
            cluster.restart_server()
            await anyio.sleep(5)
            cluster.lose_power()
            await anyio.sleep(5)
            await cluster.settle()
            check(cluster.history)
            assert [formed.round for formed in cluster.history.of(Formed)] == [1]
            cluster.lose_power(after=1)
            cluster.restart(2)
            await anyio.sleep(30)
            assert cluster.disk.losses == 2
            await cluster.settle()
            check(cluster.history)
            cluster.lose_server()
            await anyio.sleep(1)
            assert {world.round for world in await cluster.join_all()} == {3}
            check(cluster.history)

    run(scenario, seed=3)


def test_a_node_takes_the_server_over_from_the_one_that_crashed() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=5, min_nodes=3, server="hosted") as cluster:
            await cluster.join_all()
            cluster.lose_server()
            await anyio.sleep(10)
            await cluster.settle()
            check(cluster.history)
            kinds = [fault.kind for fault in cluster.history.of(Fault)]
            assert kinds == ["crash", "lose the server"]
            assert [formed.size for formed in cluster.history.of(Formed)] == [5, 4]

    run(scenario, seed=3)


def test_ranks_survive_a_server_that_forgets() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=3, min_nodes=3) as cluster:
            await cluster.join_all()
            ranks = {node.name: node.holds.rank for node in cluster.nodes if node.holds is not None}
            cluster.lose_server()
            await anyio.sleep(1)
            worlds = await cluster.join_all()
            assert {world.node: world.rank for world in worlds} == ranks
            assert {world.round for world in worlds} == {2}
            check(cluster.history)

    run(scenario, seed=3)


def test_an_unhealthy_cluster_does_not_settle_and_says_why() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=2, min_nodes=2, faults=Faults(drop_request=1.0)) as cluster:
            with pytest.raises(NotSettledError, match="not settled after 5 s: None; roster"):
                cluster.start(0)
                cluster.start(1)
                await cluster.settle(within=5)

    run(scenario)


def test_a_large_round_forms_in_batches() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=30, min_nodes=30, max_writes=8, timeouts=Timeouts(join=60)) as cluster:
            worlds = await cluster.join_all()
            assert [world.rank for world in worlds] == list(range(30))
            assert len(cluster.history.of(Believed)) == 30
            check(cluster.history)

    run(scenario, seed=2)


def test_wrong_faults_are_refused() -> None:
    with pytest.raises(ValueError, match=r"drop_reply must be a probability from 0 to 1, not 1\.5"):
        Faults(drop_reply=1.5)
    with pytest.raises(ValueError, match=r"-0\.1"):
        Faults(delay=-0.1)


def test_the_command_reports_and_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "5"]) == 0
    assert "5 scenarios" in capsys.readouterr().out
