"""The harness tells of what went wrong in the program under test, and refuses what makes no sense."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rendezvous_async import Rendezvous, RendezvousClosedError, Spec, Timeouts
from rendezvous_async.testing import Cluster, Faults, NotSettledError, check, elastic, run
from rendezvous_async.testing.history import Fault, Formed, Vanished

Program = Callable[[Rendezvous], Coroutine[Any, Any, None]]


class Broken(Exception):
    """What the programs of these tests fail with."""


async def fail_in_the_first_world(rendezvous: Rendezvous) -> None:
    world = await rendezvous.join()
    await anyio.sleep(5 + world.rank)
    raise Broken(f"rank {world.rank}")


async def fail_at_once(rendezvous: Rendezvous) -> None:
    raise Broken("at once")


async def fail_when_cancelled(rendezvous: Rendezvous) -> None:
    try:
        await elastic(rendezvous)
    finally:
        raise Broken("while it ended")


class TestAProgramThatFails:
    def test_settle_raises_what_it_raised(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3, program=fail_at_once) as cluster:
                with pytest.raises(Broken) as caught:
                    await cluster.join_all()
                assert caught.value.__traceback__ is not None
                assert "fail_at_once" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
                await cluster.settle()  # It came out once: all three are down, and that is quiet.
                check(cluster.history)

        run(scenario, seed=1)

    def test_settle_raises_it_however_far_away_its_own_end_is(self) -> None:
        async def scenario() -> None:
            faults = Faults(drop_request=1.0)
            async with Cluster(nodes=2, faults=faults) as cluster:
                cluster.start(0)
                cluster._program = fail_at_once
                cluster.start(1)
                with pytest.raises(Broken):
                    await cluster.settle(within=1000)
                assert anyio.current_time() < 1

        run(scenario, seed=1)

    def test_check_raises_it_after_a_join(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3, program=fail_in_the_first_world) as cluster:
                await cluster.join_all()
                await anyio.sleep(6.5)  # Ranks 0 and 1 have failed.
                with pytest.raises(Broken, match="rank 0") as caught:
                    check(cluster.history)
                notes = "\n".join(caught.value.__notes__)
                assert "program of node-" in notes and "Broken: rank 1" in notes
                check(cluster.history)
                await anyio.sleep(5)  # Now rank 2 has failed as well.
                with pytest.raises(Broken, match="rank 2"):
                    check(cluster.history)

        run(scenario, seed=1)

    @pytest.mark.parametrize("seed", range(5))
    def test_the_end_raises_it(self, seed: int) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3, program=fail_in_the_first_world) as cluster:
                await cluster.join_all()
                await anyio.sleep(30)

        with pytest.raises(Broken, match="rank 0"):
            run(scenario, seed=seed)

    def test_what_it_raises_while_it_is_ended_comes_out_too(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=2, program=fail_when_cancelled) as cluster:
                await cluster.join_all()

        with pytest.raises(Broken, match="while it ended"):
            run(scenario, seed=1)

    def test_a_task_of_the_program_that_nobody_waits_for(self) -> None:
        async def program(rendezvous: Rendezvous) -> None:
            await rendezvous.join()
            held.append(asyncio.get_running_loop().create_task(fail_at_once(rendezvous)))
            await anyio.sleep(1)
            held.clear()
            await anyio.sleep_forever()

        async def scenario() -> None:
            async with Cluster(nodes=2, program=program) as cluster:
                await cluster.join_all()
                await anyio.sleep(2)
                with pytest.raises(Broken):
                    await cluster.settle()

        held: list[object] = []
        run(scenario, seed=1)

    def test_a_task_of_the_program_that_it_still_holds_at_the_end(self) -> None:
        async def program(rendezvous: Rendezvous) -> None:
            world = await rendezvous.join()
            task = asyncio.get_running_loop().create_task(fail_at_once(rendezvous))
            await world.changed()
            await task

        async def scenario() -> None:
            async with Cluster(nodes=2, program=program) as cluster:
                await cluster.join_all()
                await anyio.sleep(2)
                await cluster.settle()  # The program may still ask for it, and handle it.

        with pytest.raises(Broken, match="at once"):
            run(scenario, seed=1)

    def test_a_task_whose_failure_the_program_handles(self) -> None:
        async def program(rendezvous: Rendezvous) -> None:
            world = await rendezvous.join()
            task = asyncio.get_running_loop().create_task(fail_at_once(rendezvous))
            await anyio.sleep(5)
            with pytest.raises(Broken):
                await task
            await world.changed()

        async def scenario() -> None:
            async with Cluster(nodes=2, program=program) as cluster:
                await cluster.join_all()
                await cluster.settle()
                await anyio.sleep(10)
                check(cluster.history)

        run(scenario, seed=1)

    def test_a_task_that_failed_in_a_process_that_the_test_killed(self) -> None:
        """Nobody would have been told of it either."""

        async def program(rendezvous: Rendezvous) -> None:
            held.append(asyncio.get_running_loop().create_task(fail_at_once(rendezvous)))
            await elastic(rendezvous)

        async def scenario() -> None:
            async with Cluster(nodes=1, min_nodes=1, program=program) as cluster:
                await cluster.join_all()
                cluster.crash(0)
                await cluster.settle()

        held: list[object] = []
        run(scenario, seed=1)

    def test_a_callback_of_the_program(self) -> None:
        async def program(rendezvous: Rendezvous) -> None:
            asyncio.get_running_loop().call_later(5, math.sqrt, -1)
            await elastic(rendezvous)

        async def scenario() -> None:
            async with Cluster(nodes=2, program=program) as cluster:
                await anyio.lowlevel.checkpoint()
                cluster.start(0)
                await anyio.sleep(10)

        with pytest.raises(ValueError, match=r"math domain|nonnegative"):
            run(scenario, seed=1)

    def test_the_error_of_the_test_is_told_with_it(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3, program=fail_in_the_first_world) as cluster:
                await cluster.join_all()
                await anyio.sleep(30)
                raise AssertionError("nobody has finished")

        with pytest.raises(Broken) as caught:
            run(scenario, seed=1)
        assert str(caught.value.__context__) == "nobody has finished"

    def test_an_end_of_the_test_itself_is_not_replaced(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3, program=fail_in_the_first_world) as cluster:
                await cluster.join_all()
                await anyio.sleep(30)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(scenario, seed=1)

    def test_a_closed_run_that_it_does_not_expect_is_a_failure(self) -> None:
        """Outside of a test it would end the process with a traceback, each time that a run is over."""

        async def program(rendezvous: Rendezvous) -> None:
            while True:
                await (await rendezvous.join()).changed()

        async def scenario() -> None:
            async with Cluster(nodes=2, program=program) as cluster:
                await cluster.join_all()
                await cluster.close(0, "done")
                await cluster.settle()

        with pytest.raises(RendezvousClosedError, match="done"):
            run(scenario, seed=1)

    def test_it_stands_in_the_history(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=2, program=fail_at_once) as cluster:
                with pytest.raises(Broken):
                    await cluster.join_all()
                failed = [fault for fault in cluster.history.of(Fault) if fault.kind.startswith("ended by")]
                assert [fault.kind for fault in failed] == ["ended by Broken: at once"] * 2

        run(scenario, seed=1)


class TestWhatTheTestDoesIsNoFailure:
    @pytest.mark.parametrize("seed", range(5))
    def test_crash_leave_pause_partition_and_the_end(self, seed: int, caplog: pytest.LogCaptureFixture) -> None:
        async def program(rendezvous: Rendezvous) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                await elastic(rendezvous)

        async def scenario() -> None:
            async with Cluster(nodes=6, min_nodes=1, program=program) as cluster:
                await cluster.join_all()
                cluster.crash(0)
                cluster.leave(1)
                cluster.pause(2)
                cluster.partition({3, 4}, {5})
                await anyio.sleep(30)
                cluster.heal()
                cluster.resume(2)
                cluster.restart(0)
                cluster.restart(3)
                await cluster.settle()
                cluster.partition({0})
                check(cluster.history)

        with caplog.at_level(logging.ERROR):
            run(scenario, seed=seed)
        assert not caplog.records

    def test_a_group_of_the_program_keeps_its_own_errors(self) -> None:
        """An ExceptionGroup that the program made comes out as it is; the harness adds none."""

        async def program(rendezvous: Rendezvous) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(fail_in_the_first_world, rendezvous)

        async def scenario() -> None:
            async with Cluster(nodes=2, program=program) as cluster:
                await cluster.join_all()
                await anyio.sleep(30)

        with pytest.raises(ExceptionGroup) as caught:
            run(scenario, seed=1)
        assert [type(error) for error in caught.value.exceptions] == [Broken]


class TestShapes:
    def test_a_cluster_settles_in_the_largest_world_of_its_shape(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=7, sizes="2:8:2", domain="rack", per_domain=2) as cluster:
                worlds = await cluster.join_all()
                assert len(worlds) == 6, "four even numbers and two of the three odd ones"
                cluster.crash(1)
                cluster.crash(3)
                await cluster.settle()
                assert {node.holds.size for node in cluster.nodes if node.holds is not None} == {4}
                check(cluster.history)
                assert [world.domains for world in cluster.history.of(Formed)][-1] == ("group-0",) * 4

        run(scenario)

    def test_a_cluster_is_scaled_and_settles_again(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=4, min_nodes=2) as cluster:
                await cluster.join_all()
                assert await cluster.scale(0, target=3) == Spec("2:4", 3, 1)
                await cluster.settle()
                assert sum(node.holds is not None for node in cluster.nodes) == 3
                await cluster.scale(1, "4:6")
                await cluster.settle()
                assert sum(node.holds is not None for node in cluster.nodes) == 4
                check(cluster.history)
                with pytest.raises(ValueError, match="not a size that a world can have"):
                    await cluster.scale(1, target=9)

        run(scenario)

    def test_newcomers_who_wait_for_a_call_are_at_rest(self) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3, min_nodes=1, max_nodes=5, timeouts=Timeouts(grow=math.inf)) as cluster:
                cluster.start(0)
                await cluster.settle()
                await cluster.join_all()
                await anyio.sleep(1)  # All have come, and the coordinator has counted them.
                assert sum(node.holds is not None for node in cluster.nodes) == 1
                head, rendezvous = cluster.head(), cluster.nodes[0].rendezvous
                assert head is not None
                assert head.held_back == 2
                assert rendezvous is not None
                await rendezvous.grow()
                await cluster.settle()
                assert sum(node.holds is not None for node in cluster.nodes) == 3

        run(scenario)


NODE_METHODS = ["start", "crash", "leave", "restart", "pause", "resume", "close", "partition"]


class TestArguments:
    @pytest.mark.parametrize("method", NODE_METHODS)
    @pytest.mark.parametrize("number", [17, 3, -1, True, "1", 1.0, None])
    def test_an_unknown_node_is_refused_and_nothing_happens(self, method: str, number: Any) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3) as cluster:
                await cluster.join_all()
                before = len(cluster.history)
                with pytest.raises(ValueError, match=r"there is no node .*nodes 0 to 2"):
                    if method == "close":
                        await cluster.close(number)
                    elif method == "partition":
                        cluster.partition({0, 1}, [number])
                    else:
                        getattr(cluster, method)(number)
                assert len(cluster.history) == before
                assert [node.live for node in cluster.nodes] == [True] * 3

        run(scenario)

    @pytest.mark.parametrize("sides", [(1,), (None,), ({0}, {0, 1})])
    def test_wrong_sides_are_refused(self, sides: Any) -> None:
        async def scenario() -> None:
            async with Cluster(nodes=3) as cluster:
                with pytest.raises(ValueError, match="side"):
                    cluster.partition(*sides)

        run(scenario)

    @pytest.mark.parametrize("within", [-1, math.nan, "5", True])
    def test_a_wrong_time_to_settle_is_refused(self, within: Any) -> None:
        async def scenario() -> None:
            async with Cluster() as cluster:
                with pytest.raises(ValueError, match="within"):
                    await cluster.settle(within)

        run(scenario)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("nodes", 0),
            ("nodes", "3"),
            ("nodes", True),
            ("nodes", 2.0),
            ("min_nodes", 0),
            ("min_nodes", 9),
            ("min_nodes", None),
            ("max_nodes", 1),
            ("max_nodes", "4"),
            ("seed", "x"),
            ("seed", None),
            ("faults", {"delay": 1}),
            ("program", None),
            ("program", "elastic"),
            ("timeouts", 5),
            ("keep_alive_interval", 0),
            ("keep_alive_interval", None),
            ("keep_alive_max_attempt", 1),
            ("ranks", "best"),
            ("ranks", None),
            ("max_writes", 0),
            ("max_writes", None),
            ("network", "tcp"),
            ("network", None),
            ("server", "disk"),
            ("server", True),
        ],
    )
    def test_wrong_arguments_of_a_cluster_are_refused_when_it_is_made(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match="nodes" if name.endswith("_nodes") else name):
            Cluster(**{name: value})

    @pytest.mark.parametrize("name", ["delay", "drop_request", "drop_reply", "late", "lateness"])
    @pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.5", None, True])
    def test_wrong_faults_are_refused(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"^{name} must be "):
            Faults(**{name: value})

    def test_all_that_is_documented_is_taken(self) -> None:
        async def scenario() -> None:
            cluster = Cluster(
                5,
                2,
                4,
                11,
                Faults(delay=0.01, drop_request=0.01, drop_reply=0.01, late=0.01, lateness=2),
                program=elastic,
                timeouts=Timeouts(join=60, last_call=5, close=5),
                keep_alive_interval=0.5,
                keep_alive_max_attempt=4,
                ranks="label:rack",
                max_writes=4,
            )
            async with cluster:
                worlds = await cluster.join_all()
                assert [world.size for world in worlds] == [4] * 4
                cluster.crash(0)
                await cluster.settle(within=60)
                check(cluster.history)
                assert {formed.size for formed in cluster.history.of(Formed)} <= {2, 3, 4}
                assert cluster.history.ttl == 2

        run(scenario, seed=3)

    def test_the_stand_in_has_no_log(self) -> None:
        with pytest.raises(ValueError, match="server in memory only, not server='log'"):
            Cluster(network="stand-in", server="log")

    @pytest.mark.parametrize("network", ["wire", "stand-in"])
    def test_what_needs_a_log_says_so(self, network: Any) -> None:
        async def scenario() -> None:
            async with Cluster(network=network) as cluster:
                for use in (cluster.restart_server, cluster.lose_power, lambda: cluster.disk):
                    with pytest.raises(RuntimeError, match="server='log'"):
                        use()
            async with Cluster(server="log") as cluster:
                with pytest.raises(ValueError, match="after must be a count"):
                    cluster.lose_power(after=-1)

        run(scenario)

    def test_a_cluster_outside_of_its_block_says_so(self) -> None:
        async def scenario() -> None:
            cluster = Cluster()
            uses: list[Callable[[], None]] = [
                lambda: cluster.start(0),
                lambda: cluster.partition({0}),
                cluster.heal,
                cluster.lose_server,
            ]
            for use in uses:
                with pytest.raises(RuntimeError, match="async with"):
                    use()
            with pytest.raises(RuntimeError, match="async with"):
                await cluster.settle()

        run(scenario)

    def test_a_cluster_in_real_time_says_so(self) -> None:
        async def scenario() -> None:
            async with Cluster():
                pass

        with pytest.raises(RuntimeError, match="virtual time"):
            asyncio.run(scenario())

    def test_check_wants_a_history(self) -> None:
        with pytest.raises(TypeError, match=r"check\(\) takes a History, such as cluster\.history, not <Cluster"):
            check(Cluster())  # type: ignore[arg-type]

    def test_a_run_that_never_settles_says_how_things_stand(self) -> None:
        async def scenario() -> None:
            async with Cluster(faults=Faults(drop_request=1)) as cluster:
                with pytest.raises(NotSettledError, match="not settled after 2 s"):
                    cluster.start(0)
                    await cluster.settle(2)

        run(scenario)


def test_what_a_failed_sync_has_lost_is_not_in_the_history() -> None:
    """Saga 183: the server that starts after it reads the log; that counted as the write of what was lost."""

    async def scenario() -> None:
        async with Cluster(nodes=4, min_nodes=2, server="log", keep_alive_interval=5) as cluster:
            await cluster.join_all()
            cluster.disk.failing_syncs, cluster.disk.latency = 1, 2.0
            cluster.crash(1)
            await anyio.sleep(0.1)
            cluster.crash(2)
            await cluster.settle()
            check(cluster.history)
            assert cluster.disk.failing_syncs == 0
            assert [record.node for record in cluster.history.of(Vanished)].count("node-2") == 1

    run(scenario, seed=1)


@pytest.mark.parametrize(
    "kind", [{"network": "stand-in"}, {"server": "memory"}, {"server": "log"}, {"server": "hosted"}], ids=str
)
def test_a_loop_may_have_one_cluster_after_the_other(kind: dict[str, Any]) -> None:
    async def scenario() -> None:
        for seed in range(3):
            async with Cluster(nodes=3, seed=seed, **kind) as cluster:
                assert len(await cluster.join_all()) == 3
                cluster.crash(0)
                await cluster.settle()
                await cluster.close(1, "done")
                await cluster.settle()
                check(cluster.history)

    run(scenario, seed=1)


def test_a_cluster_is_entered_once() -> None:
    async def scenario() -> None:
        cluster = Cluster(nodes=1, min_nodes=1)
        async with cluster:
            await cluster.join_all()
        with pytest.raises(RuntimeError, match="a cluster is entered once"):
            async with cluster:
                pass

    run(scenario, seed=1)


def test_a_loop_has_one_cluster_at_a_time() -> None:
    async def scenario() -> None:
        async with Cluster(nodes=1, min_nodes=1) as cluster:
            await cluster.join_all()
            with pytest.raises(RuntimeError, match="another simulated network"):
                async with Cluster(nodes=1, min_nodes=1):
                    pass
            await cluster.settle()

    run(scenario, seed=1)


@pytest.mark.parametrize("network", ["wire", "stand-in"])
def test_a_program_that_catches_its_cancellation_does_not_hang_the_test(network: Any) -> None:
    async def stubborn(rendezvous: Rendezvous) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await elastic(rendezvous)

    async def scenario() -> None:
        async with Cluster(nodes=2, program=stubborn, network=network) as cluster:
            await cluster.join_all()

    with pytest.raises(NotSettledError, match="does it catch CancelledError"):
        run(scenario, seed=1)
