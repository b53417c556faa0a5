"""The TCP backend keeps every promise of the contract, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.tcp import serve
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check


@pytest.mark.parametrize("check", BACKEND_CHECKS)
async def test_tcp_keeps_its_promises(check: Check) -> None:
    async with serve(port=0) as server:

        @asynccontextmanager
        async def make(run_id: str) -> AsyncIterator[Backend]:
            async with open_backend(server.endpoint, run_id=run_id, is_host=False) as backend:
                yield backend

        await check(make)
