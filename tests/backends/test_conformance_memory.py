"""The memory backend keeps every promise of the contract."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check


def make(run_id: str) -> AbstractAsyncContextManager[Backend]:
    return open_backend("memory://conformance", run_id=run_id)


@pytest.mark.parametrize("check", BACKEND_CHECKS)
async def test_memory_keeps_its_promises(check: Check) -> None:
    await check(make)
