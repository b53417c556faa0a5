"""Pytest fixtures; load them with ``pytest_plugins = ["rendezvous_async.testing.fixtures"]`` in a conftest.

* ``virtual`` runs a coroutine function in virtual time; ``--rdzv-seed`` sets the seed.
* ``memory_backends`` opens backends of one in-memory store, and closes them at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest

from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.memory import MemoryDriver, MemoryServer
from rendezvous_async.testing.loop.clock import run

__all__ = ["memory_backends", "virtual"]

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rdzv-seed", type=int, default=7, help="seed of simulated interleavings (rendezvous_async)")


@pytest.fixture
def virtual(request: pytest.FixtureRequest) -> Callable[[Callable[[], Coroutine[Any, Any, T]]], T]:
    """Return a function that runs a coroutine function in virtual time."""
    seed: int = request.config.getoption("--rdzv-seed")
    return lambda function: run(function, seed=seed)


@pytest.fixture
async def memory_backends() -> AsyncIterator[Callable[[str], Backend]]:
    """Return a function that opens another backend of one store, for a run id."""
    server = MemoryServer()
    async with AsyncExitStack() as stack:

        def open_one(run_id: str) -> Backend:
            backend = Backend(MemoryDriver(server), run_id)
            stack.push_async_callback(backend.aclose)
            return backend

        yield open_one
