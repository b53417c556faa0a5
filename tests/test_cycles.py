"""Nothing is left behind by many cycles of join and leave; the slow ones do thousands."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest

from rendezvous_async.backends.tcp import serve
from tests.cycles import Left, growth, look, main, meeting_place, run_cycles

FEW = {"memory": 200, "tcp": 150, "file": 50}


@pytest.mark.parametrize("backend", FEW)
async def test_a_few_hundred_cycles_leave_nothing(backend: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pytest turns what cannot be raised, such as an unclosed socket, into a failure
        async with meeting_place(backend) as endpoint:
            looks = await run_cycles(endpoint, FEW[backend], parts=4)
            assert growth(looks, FEW[backend]) == []
        gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("backend", FEW)
def test_ten_thousand_cycles_leave_nothing(backend: str) -> None:
    assert main(["--cycles", "10000", "--backend", backend]) == 0


async def test_a_leak_is_seen() -> None:
    before = look()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    task = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    async with serve(port=0):
        after = look()
    stop.set()
    thread.join()
    task.cancel()
    assert [line.partition(":")[0] for line in growth([before, after], 1)] == ["tasks", "threads", "descriptors"]


def test_memory_that_grows_is_seen() -> None:
    before = Left(1, 1, 1, 20_000, 50_000)
    assert growth([before, Left(1, 1, 1, 20_500, 51_000)], 10_000) == []
    assert len(growth([before, Left(1, 1, 1, 30_000, 60_000)], 10_000)) == 2
