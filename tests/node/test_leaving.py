"""To leave a run while its backend is gone: a short goodbye, and a word about it."""

from __future__ import annotations

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import connect
from rendezvous_async.aio import clock
from rendezvous_async.backends.base import Backend
from tests.backends.tcp.support import eventually, through_proxy
from tests.meeting import RUN, Meeting


@pytest.mark.parametrize("moment", ["joined", "joining"])
async def test_to_leave_a_run_whose_server_is_gone_takes_a_moment(
    moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It took ``timeouts.close``, 30 s, and said nothing before."""
    async with rdzv.serve("127.0.0.1", 0) as server:
        nodes = 1 if moment == "joined" else 2
        async with (
            connect(server.endpoint, run_id=RUN, nodes=nodes, node="a", is_host=False) as rendezvous,
            anyio.create_task_group() as group,
        ):
            if moment == "joined":
                await rendezvous.join()
            else:
                group.start_soon(rendezvous.join)
                await eventually(lambda: server.table.sessions == 1)
            await server.aclose()
            owner = rendezvous._supervisor
            assert owner is not None
            backend = owner.backend
            await eventually(lambda: backend is not None and backend.trouble is not None)
            began = clock.now()
            group.cancel_scope.cancel()
    took = clock.now() - began
    assert took < 6, took
    said = [record.message for record in caplog.records if "goodbye" in record.message]
    assert said[0].startswith("node a: leaving run 'job': ")
    assert server.endpoint in said[0]
    assert "waiting up to 1.5 s to say goodbye" in said[0]
    assert len(said) == 2


async def test_to_leave_a_run_whose_server_falls_silent_takes_a_moment() -> None:
    """It is not known to be gone when the leaving begins."""
    async with (
        rdzv.serve("127.0.0.1", 0) as server,
        through_proxy(server) as proxy,
        connect(f"tcp://127.0.0.1:{proxy.port}?stall_timeout=0.5", run_id=RUN, nodes=1, is_host=False) as rendezvous,
    ):
        await rendezvous.join()
        proxy.stall()
        began = clock.now()
        await rendezvous.leave()
        assert clock.now() - began < 10


async def test_the_time_that_is_left_is_never_below_zero(caplog: pytest.LogCaptureFixture) -> None:
    """The last keep-alive is given up a moment after the deadline: "out in -0.0 s"."""
    async with Meeting() as meeting:
        line = meeting.line()
        async with connect(backend=Backend(line, RUN), run_id=RUN, nodes=1, keep_alive_interval=0.1) as rendezvous:
            world = await rendezvous.join()
            line.cut()
            assert await world.changed() is rdzv.Change.EVICTED
            line.mend()
    told = [record.getMessage() for record in caplog.records if "out in" in record.getMessage()]
    assert told
    assert not [message for message in told if "out in -" in message]
