"""Nothing is left behind by many cycles of join and leave; the slow ones do thousands."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import msgspec
import pytest

from rendezvous_async.backends.tcp import serve
from rendezvous_async.testing.etcd import etcd_program
from tests.proof.cycles import BACKENDS, SOME_THREADS, Left, growth, heap, look, main, meeting_place, run_cycles

FEW = {"memory": 200, "tcp": 150, "durable": 60, "file": 50, "etcd": 40, "sync": 60}


def _skip_without_etcd(backend: str) -> None:
    if backend == "etcd" and etcd_program() is None:
        pytest.skip("there is no etcd here")


def test_every_backend_is_tried() -> None:
    assert sorted(FEW) == sorted(BACKENDS)


@pytest.mark.parametrize("backend", FEW)
async def test_a_few_hundred_cycles_leave_nothing(backend: str) -> None:
    _skip_without_etcd(backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pytest turns what cannot be raised, such as an unclosed socket, into a failure
        async with meeting_place(backend) as endpoint:
            looks = await run_cycles(backend, endpoint, FEW[backend], parts=4)
            assert growth(looks, FEW[backend]) == []
        gc.collect()


async def test_grpc_keeps_nothing_of_a_cycle() -> None:
    """A call that was cancelled while it was under way cost some KiB for good, 11 in a cycle: outside of Python."""
    _skip_without_etcd("etcd")
    if not heap():
        pytest.skip("malloc does not tell how much it has given out")
    async with meeting_place("etcd") as endpoint:
        looks = await run_cycles("etcd", endpoint, 120, parts=4)
    assert looks[-1].heap_kib - looks[0].heap_kib < 90 * 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", FEW)
def test_ten_thousand_cycles_leave_nothing(backend: str) -> None:
    _skip_without_etcd(backend)
    assert main(["--cycles", "10000", "--backend", backend]) == 0


async def test_a_leak_is_seen() -> None:
    before = look()
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(SOME_THREADS + 1)]
    for thread in threads:
        thread.start()
    task = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    async with serve(port=0):
        after = look()
    stop.set()
    for thread in threads:
        thread.join()
    task.cancel()
    assert [line.partition(":")[0] for line in growth([before, after], 1)] == ["tasks", "threads", "descriptors"]


def test_memory_that_grows_is_seen() -> None:
    before = Left(1, 1, 1, 20_000, 150_000, 50_000)
    looks = [before, Left(1, 1, 1, 20_500, 150_600, 54_000)]
    assert growth(looks, 10_000) == []
    grown = growth([before, Left(1, 1, 1, 30_000, 160_000, 60_000)], 10_000)
    assert [line.partition(":")[0] for line in grown] == ["objects", "blocks", "rss_kib"]


def test_what_is_kept_on_purpose_may_fill_up_first() -> None:
    before, after = Left(1, 1, 1, 20_000, 150_000, 50_000), Left(1, 1, 1, 20_000, 156_000, 60_000)
    assert growth([before, after], 150) == []
    full = msgspec.structs.replace(after, rss_kib=before.rss_kib)
    assert growth([before, full, full, full], 8_000) == []
    assert growth([before, before, before, full], 20_000) == ["blocks: 150000 before, 156000 after 20000 cycles"]
