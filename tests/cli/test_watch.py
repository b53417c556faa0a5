"""What ``rdzv watch`` draws on a terminal."""

from __future__ import annotations

from argparse import Namespace

import anyio

import rendezvous_async as library
from rendezvous_async.backends.tcp import serve
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.cli.watch import Viewer, picture
from rendezvous_async.core.diagnosis import Absent, Present, Role, Status
from rendezvous_async.core.state import Phase
from rendezvous_async.settings import Settings, parse_endpoint
from tests.backends.tcp.support import eventually
from tests.cli.test_command import drawn


async def test_a_server_that_goes_and_comes_back_is_said_on_the_picture() -> None:
    pictures: list[str] = []
    async with serve("127.0.0.1", 0) as server:
        port = parse_endpoint(server.endpoint).hosts[0][1]
        async with (
            library.connect(server.endpoint, run_id="job", nodes=1, node="a", is_host=False) as a,
            library.open_backend(server.endpoint, run_id="job", is_host=False) as backend,
            anyio.create_task_group() as group,
        ):
            await a.join()
            viewer = Viewer(Namespace(wait=True), Terminal(), lambda picture: pictures.append(drawn(picture)))
            group.start_soon(viewer.watch_run, backend)
            group.start_soon(viewer.watch_connection, backend)
            await eventually(lambda: any("round 1 is formed" in picture for picture in pictures))
            assert not any("OUT OF DATE" in picture for picture in pictures)
            await server.aclose()
            await eventually(lambda: pictures[-1].startswith("OUT OF DATE for 1 s: no connection to tcp://127.0.0.1"))
            async with serve("127.0.0.1", port):
                await eventually(lambda: "the backend is reachable again" in pictures[-1])
                await eventually(lambda: "OUT OF DATE" not in pictures[-1])
                group.cancel_scope.cancel()


def test_a_picture_of_64_nodes_reads_well_at_80_by_24() -> None:
    here = [Present(f"n{rank:02}", Role.MEMBER if rank < 60 else Role.BACK, rank) for rank in range(64) if rank != 7]
    status = Status(
        run_id="job",
        settings=Settings(32, 64),
        round=3,
        phase=Phase.FORMED,
        here=tuple(here),
        absent=(Absent("n07", 7),),
        coordinator="n00",
    )
    news = [f"{second:8.2f} s  something has happened{' and more' * 20}" for second in range(10)]
    lines = drawn(picture(status, news, 24, "for 12 s: no connection to tcp://head:29400")).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert lines[0] == "OUT OF DATE for 12 s: no connection to tcp://head:29400"
    assert lines[1] == "run 'job': round 3 is formed; 59 of its 64 members hold it"
    rows = [line.split() for line in lines]
    assert ["n07", "absent", "7"] in rows
    assert [row for row in rows if row[:1] in (["n60"], ["59"])] == [
        ["n60", "back", "60"],
        ["59", "nodes:", "n00", "to", "n59", "member", "0-6,", "8-59"],
    ]
    assert "something has happened" in lines[-1]
