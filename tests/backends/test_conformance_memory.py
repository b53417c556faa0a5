"""The memory backend keeps every promise of the contract, in real time and in virtual time."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check, check_backend
from rendezvous_async.testing.loop.clock import run


def make(run_id: str) -> AbstractAsyncContextManager[Backend]:
    return open_backend("memory://conformance", run_id=run_id)


@pytest.mark.parametrize("check", BACKEND_CHECKS)
async def test_memory_keeps_its_promises(check: Check) -> None:
    await check(make)


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_memory_keeps_its_promises_in_virtual_time(seed: int | None) -> None:
    run(check_backend, make, seed=seed)
