"""The plugin that pytest loads by itself: fixtures to test with simulated nodes, and ``--rdzv-seed``.

* ``virtual`` runs a coroutine function in virtual time; ``--rdzv-seed`` sets the seed. A failing test shows it.
* ``memory_backends`` opens backends of one in-memory store. They need no closing: nothing of them outlives the loop.

pytest imports this module for everybody who has the library installed, so it imports what it needs when a test uses it.
It needs no other plugin: neither fixture is async. ``-p no:rendezvous_async.pytest_plugin`` turns it off.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from rendezvous_async.backends.base import Backend

__all__ = ["memory_backends", "pytest_addoption", "virtual"]

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rendezvous_async")
    group.addoption("--rdzv-seed", type=int, default=7, metavar="N", help="seed of simulated interleavings (7)")


@pytest.fixture
def virtual(request: pytest.FixtureRequest) -> Callable[[Callable[[], Coroutine[Any, Any, T]]], T]:
    """Return a function that runs a coroutine function in virtual time."""
    from rendezvous_async.testing.loop.clock import run

    seed: int = request.config.getoption("--rdzv-seed")
    request.node.add_report_section("call", "rendezvous_async", f"virtual time ran with --rdzv-seed={seed}")
    return lambda function: run(function, seed=seed)


@pytest.fixture
def memory_backends() -> Callable[[str], Backend]:
    """Return a function that opens another backend of one store, for a run id."""
    from rendezvous_async.backends.base import Backend
    from rendezvous_async.backends.memory import MemoryDriver, MemoryServer

    server = MemoryServer()
    return lambda run_id: Backend(MemoryDriver(server), run_id)
