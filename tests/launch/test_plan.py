"""What can be planned, and what of it workers see."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

import anyio
import msgspec
import pytest

import rendezvous_async as rdzv
from rendezvous_async.launch.launcher import _Launcher, launch
from rendezvous_async.launch.plan import LaunchError, Plan
from tests.backends.tcp.support import eventually
from tests.meeting import Meeting, in_virtual_time, now

PLAN = Plan(endpoint="memory://launch", run_id="job", nodes="1", command=(sys.executable, "-c", ""))


def planned(**changes: Any) -> Plan:
    return Plan(**{**msgspec.structs.asdict(PLAN), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"endpoint": "nowhere"}, "endpoint"),
        ({"run_id": ""}, "run_id"),
        ({"nodes": "3:2"}, "nodes"),
        ({"nodes": "4:9:4"}, "do not reach 9"),
        ({"nodes": "2:4", "per_domain": 2}, "needs a domain"),
        ({"nodes": "2:4", "per_domain": 5, "domain": "x"}, "none of the sizes 2:4 is a multiple of per_domain=5"),
        ({"labels": {"nproc": "4"}}, "'nproc'"),
        ({"node": " "}, "node"),
        ({"command": ()}, "command"),
        ({"workers": 0}, "workers"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"grace": 0.0}, "grace"),
        ({"connect_timeout": float("inf")}, "connect_timeout"),
        ({"keep_alive_interval": -1.0}, "keep_alive_interval"),
    ],
)
def test_nonsense_is_refused_when_it_is_planned(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        planned(**changes)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("etcd://a?user=me&password=x", "etcd://a?user=me"),
        ("tcp://a?se%63ret=x", "tcp://a"),
        ("tcp://a?is_host=false&secret=x", "tcp://a?is_host=false"),
        ("tcp://a", "tcp://a"),
    ],
)
def test_what_workers_see_of_an_endpoint(endpoint: str, shown: str) -> None:
    plan = planned(endpoint=endpoint)
    assert plan.public_endpoint == shown
    assert shown in repr(plan)
    assert "x" not in repr(plan).removeprefix("<Plan of run 'job' at ")


async def launched(plan: Plan) -> tuple[int, list[str]]:
    """Launch without a command line; returns the exit code and what was said."""
    said: list[str] = []
    async with rdzv.open_backend(plan.endpoint, run_id=plan.run_id) as backend:
        return await launch(plan, backend, said.append), said


async def test_a_program_can_launch_and_is_told_what_happens() -> None:
    code, said = await launched(planned(timeouts=rdzv.Timeouts(last_call=0.1)))
    assert code == 0
    assert said == ["round 1: node rank 0 of 1", "the job is done, in round 1"]


async def test_a_worker_that_fails_gives_its_code() -> None:
    failing = (sys.executable, "-c", "raise SystemExit(7)")
    code, said = await launched(planned(endpoint="memory://failing", command=failing, max_restarts=0))
    assert code == 7
    assert "exited with code 7, and no restarts are left" in said[-1]


@in_virtual_time
async def test_giving_up_takes_no_longer_than_joining_however_often_the_server_goes() -> None:
    said: list[str] = []
    async with Meeting() as meeting, anyio.create_task_group() as group:
        line = meeting.line()

        def say(text: str) -> None:
            said.append(text)
            line.cut()

        async def mend() -> None:
            await anyio.sleep(50)
            line.mend()

        timeouts = rdzv.Timeouts(join=60, last_call=1)
        a = await meeting.enter("a", "1", backend=line, timeouts=timeouts)
        await a.join()
        line.cut()
        began = now()
        group.start_soon(mend)
        launcher = _Launcher(planned(timeouts=timeouts), say, a, cast(Any, None))
        assert await launcher._give_up(7) == 7
        assert 50 < now() - began < 61
        assert ["closing the run" in said[0], "the server is unreachable" in said[1]] == [True, True]
        line.mend()


async def test_a_node_without_the_label_of_its_domain_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    plan = planned(endpoint="memory://unlabelled", domain="rack", timeouts=rdzv.Timeouts(last_call=0.1))
    said: list[str] = []
    async with rdzv.open_backend(plan.endpoint, run_id=plan.run_id) as backend, anyio.create_task_group() as group:
        group.start_soon(launch, plan, backend, said.append)
        await eventually(lambda: bool(said))
        group.cancel_scope.cancel()
    assert ["has no label 'rack'" in text for text in caplog.messages] == [True]
    assert "spares without the label rack: " in said[0]
    code, said = await launched(msgspec.structs.replace(plan, labels={"rack": "r1"}))
    assert (code, said[0]) == (0, "round 1: node rank 0 of 1")


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), (os.devnull, 126)])
async def test_a_command_that_cannot_be_run(command: str, code: int) -> None:
    with pytest.raises(LaunchError, match="cannot run") as raised:
        await launched(planned(endpoint=f"memory://{code}", command=(command,)))
    assert raised.value.code == code
