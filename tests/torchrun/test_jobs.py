"""Jobs of real torchrun agents: they meet, scale, lose agents of every kind in every way, and end well."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.core.state import NODES
from rendezvous_async.testing.etcd import EtcdCluster, etcd_program
from tests.blocking import serve_apart
from tests.cli.support import command
from tests.ports import free_port
from tests.torchrun.job import PATIENCE, Agent, Job, start_job

StartJob = Callable[..., AbstractAsyncContextManager[Job]]


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[StartJob]:
    """Return what makes a job, given the kind of its backend and its number of nodes."""
    with ExitStack() as stack:

        def endpoint_of(kind: str) -> tuple[str, str]:
            match kind:
                case "etcd":
                    if etcd_program() is None:
                        pytest.skip("no etcd program")
                    etcd = stack.enter_context(EtcdCluster(1))
                    return "async-etcd", etcd.endpoint.removeprefix("etcd://")
                case "file":
                    return "async-file", str(tmp_path / "meet")
                case "apart":
                    endpoint, _ = stack.enter_context(serve_apart())
                    return "async-tcp", endpoint.removeprefix("tcp://")
                case _:
                    return "async-tcp", f"localhost:{free_port()}"

        def make(nodes: str, kind: str = "hosted") -> AbstractAsyncContextManager[Job]:
            return start_job(tmp_path, *endpoint_of(kind), nodes)

        yield make


@asynccontextmanager
async def pair(job: Job, *arguments: str) -> AsyncIterator[tuple[Agent, Agent, str]]:
    """Two agents that train together: the first, which hosts the server if one of them does, and the second.

    Args:
        job: Theirs.
        *arguments: Of the second.
    """
    first = await job.start("first")
    await job.trains(1)
    second = await job.start("second", *arguments)
    report = await job.trains(2)
    yield first, second, report.round


async def nodes_here(job: Job, count: int) -> None:
    """Wait until this many agents are at the barrier or in the round, spares included."""
    endpoint = f"tcp://{job.endpoint}?is_host=false"
    with anyio.fail_after(PATIENCE):
        async with rdzv.open_backend(endpoint, run_id=job.id) as backend, backend.watch(NODES) as watch:
            here: set[str] = set()
            async for listing in watch:
                here -= {entry.key for entry in listing.entries if entry.value is None}
                here |= {entry.key for entry in listing.entries if entry.value is not None}
                if len(here) == count:
                    return


@pytest.mark.parametrize(
    "kind",
    [
        "file",
        "etcd",
        pytest.param("hosted", marks=pytest.mark.slow),  # so do the agents whose worker crashes, below
        pytest.param("apart", marks=pytest.mark.slow),
    ],
)
async def test_two_agents_meet_train_and_end(make_job: StartJob, kind: str) -> None:
    async with make_job("2", kind) as job:
        agents = [await job.start("first"), await job.start("second")]
        round = (await job.trains(2)).round
        ranks = {report.agent: report.rank for report in job.reports if report.round == round}
        assert sorted(ranks.values()) == [0, 1]
        await job.ends_well(*agents)


async def test_a_job_scales_up_one_by_one(make_job: StartJob) -> None:
    async with make_job("1:3") as job, pair(job) as (first, second, before):
        third = await job.start("third")
        report = await job.trains(3, after=before)
        assert job.rank0(report.round) is first, "who was rank 0 stays rank 0"
        await job.ends_well(first, second, third)


LOSSES = [
    ("hosted", "first", signal.SIGKILL),
    ("apart", "second", signal.SIGTERM),
]
MORE_LOSSES = [
    (kind, victim, number)
    for kind in ("hosted", "apart")
    for victim in ("first", "second")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    if (kind, victim, number) not in LOSSES
]


@pytest.mark.parametrize(
    ("kind", "victim", "number"), LOSSES + [pytest.param(*loss, marks=pytest.mark.slow) for loss in MORE_LOSSES]
)
async def test_the_others_go_on_without_an_agent(
    make_job: StartJob, kind: str, victim: str, number: signal.Signals
) -> None:
    """The first agent is rank 0; with the server hosted it is the host, too, and the server goes with it."""
    async with make_job("1:3", kind) as job, pair(job) as (first, second, before):
        lost, stays = (first, second) if victim == "first" else (second, first)
        lost.send(number)
        report = await job.trains(1, after=before)
        assert report.agent == stays.name
        assert await lost.ended() != 0
        await job.ends_well(stays)


async def rdzv_scale(job: Job, *changes: str) -> None:
    """Scale the job as a person does."""
    async with command("scale", f"tcp://{job.endpoint}", "--run-id", job.id, *changes, merged=True) as scale:
        assert await scale.code() == 0, scale.lines


@pytest.mark.parametrize("kind", ["apart", pytest.param("hosted", marks=pytest.mark.slow)])
async def test_a_job_is_scaled_down_and_up_while_it_trains(make_job: StartJob, kind: str) -> None:
    """All agents have the same --nnodes; the worlds are smaller, and larger, than these allow."""
    async with make_job("2:3", kind) as job:
        agents = [await job.start(name) for name in ("first", "second", "third")]
        before = (await job.trains(3)).round
        await rdzv_scale(job, "--nodes", "1")
        alone = await job.trains(1, after=before)
        assert job.rank0(alone.round) is job.rank0(before), "who was rank 0 stays rank 0"
        await nodes_here(job, 3)
        await rdzv_scale(job, "--nodes", "1:8", "--target", "4")
        agents.append(await job.start("fourth"))
        await job.trains(4, after=alone.round)
        await job.ends_well(*agents)


async def test_a_job_of_certain_sizes(make_job: StartJob) -> None:
    """``sizes`` in --rdzv-conf; a third agent is left over and stops nobody, a fourth makes the next size."""
    async with make_job("1:4", "apart") as job:
        job.options += ",sizes=2/4,domain=rack,per_domain=2"
        agents = [await job.start(name, f"--rdzv-conf={job.options},label_rack=r1") for name in ("first", "second")]
        before = (await job.trains(2)).round
        agents.append(await job.start("third", f"--rdzv-conf={job.options},label_rack=r2"))
        await nodes_here(job, 3)
        steps = [await job.until(lambda report: report.agent == "first") for _ in range(20)]
        assert {report.round for report in steps} == {before}
        agents.append(await job.start("fourth", f"--rdzv-conf={job.options},label_rack=r2"))
        report = await job.trains(4, after=before)
        ranks = {step.agent: step.rank for step in job.reports if step.round == report.round}
        assert {ranks["first"], ranks["second"]} == {0, 1}, "the ranks of a rack are contiguous"
        await job.ends_well(*agents)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hosted", "apart", "etcd", "file"])
async def test_a_node_that_is_gone_is_replaced(make_job: StartJob, kind: str) -> None:
    """Agent and worker of rank 0 die at once, as a machine does, and a new agent takes the place."""
    async with make_job("2:2", kind) as job:
        first, second = await job.start("first"), await job.start("second")
        before = (await job.trains(2)).round
        dead = job.rank0(before)
        stays = second if dead is first else first
        job.kill_node(dead)
        third = await job.start("third")
        round = (await job.trains(2, after=before)).round
        assert {report.agent for report in job.reports if report.round == round} == {stays.name, third.name}
        assert job.rank0(round) is stays, "a survivor takes rank 0, not the newcomer"
        await job.ends_well(stays, third)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["apart", "etcd", "file"])
async def test_an_agent_that_is_paused_is_out_and_comes_back(make_job: StartJob, kind: str) -> None:
    async with make_job("1:2", kind) as job, pair(job) as (first, second, before):
        second.send(signal.SIGSTOP)
        alone = await job.trains(1, after=before)
        assert alone.agent == first.name
        second.send(signal.SIGCONT)
        await job.trains(2, after=before)
        await job.ends_well(first, second)


async def test_a_worker_that_crashes_is_restarted(make_job: StartJob) -> None:
    async with make_job("2") as job:
        agents = [await job.start("first"), await job.start("second")]
        before = (await job.trains(2)).round
        job.crash(agents[1])
        await job.trains(2, after=before)
        await job.ends_well(*agents)


async def test_an_agent_that_fails_does_not_end_the_job(make_job: StartJob) -> None:
    async with make_job("1:2") as job, pair(job, "--max-restarts=0") as (first, second, before):
        job.crash(second)
        assert await second.ended() != 0
        report = await job.trains(1, after=before)
        assert report.agent == first.name
        await job.ends_well(first)


async def test_spares(make_job: StartJob) -> None:
    """Ctrl+C on a spare is its own end only, and a spare that was not needed ends with code 0."""
    async with make_job("2:2") as job:
        first, second = await job.start("first"), await job.start("second")
        before = (await job.trains(2)).round
        interrupted, unneeded = await job.start("third"), await job.start("fourth")
        await nodes_here(job, 4)
        interrupted.send(signal.SIGINT)
        assert await interrupted.ended() != 0
        await nodes_here(job, 3)
        job.crash(second)
        await job.trains(2, after=before)
        await job.ends_well(first, second, unneeded)
