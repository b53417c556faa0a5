"""Whatever one tenant asks for, others are answered soon: the attacks are in ``hogs``.

The goal is 100 ms; ``python -m tests.benchmarks.bench_tcp hostile`` prints what it is. Here only the time counts for
which the server has worked between a ping and its answer: the machine may have other things to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rendezvous_async.backends.tcp import restrict
from tests.backends.tcp.support import ServerProcess
from tests.hostile.hogs import GRACE, HOGS, SECRET, watch_hogs

LONGEST = 0.5
ON_DISK = ("list_in_a_row", "commit_much", "leave_sessions")
WITH_THE_WHOLE_SECRET = ("follow_many_subtrees", "list_everything_there_is", "delete_everything")


@pytest.mark.parametrize("durable", [False, True], ids=["in memory", "on disk"])
async def test_no_tenant_keeps_others_waiting(durable: bool, tmp_path: Path) -> None:
    """One request could hold the server for 27 s: a watch of 10,000 subtrees, or 200 listings that were refused."""
    data_dir, names = (tmp_path, ON_DISK) if durable else (None, tuple(HOGS))
    async with ServerProcess(data_dir, secret=SECRET, disconnect_grace=GRACE) as server:
        waits = [wait async for wait in watch_hogs(server.endpoint, server.pid, restrict(SECRET, "hog-"), *names)]
    assert [wait for wait in waits if wait.worked > LONGEST] == []


async def test_nor_does_one_with_the_whole_secret() -> None:
    async with ServerProcess(secret=SECRET, disconnect_grace=GRACE) as server:
        names = WITH_THE_WHOLE_SECRET
        waits = [wait async for wait in watch_hogs(server.endpoint, server.pid, SECRET, *names)]
    assert [wait for wait in waits if wait.worked > LONGEST] == []
