"""The conformance kit: every promise of ``rendezvous_async.backends.base``, as checks that any backend can be put to.

A backend of your own is proved by one call::

    @asynccontextmanager
    async def make(run_id):
        async with open_backend("tcp://127.0.0.1:29400", run_id=run_id) as backend:
            yield backend

    await check_backend(make)

or, one test for each promise, with pytest::

    @pytest.mark.parametrize("check", BACKEND_CHECKS)
    async def test_it_keeps_its_promises(check):
        await check(make)

The checks work in real and in virtual time, against a store that others use too: each takes a run id of its own, and
clears it at the end. Nothing here looks inside a backend, and nothing sleeps in the hope that something has happened.
"""

from __future__ import annotations

from rendezvous_async.testing.conformance import cancellation, classic, commits, names, sessions, watches
from rendezvous_async.testing.conformance.check import Check, Make

__all__ = ["BACKEND_CHECKS", "Check", "Make", "check_backend"]

BACKEND_CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (commits, names, sessions, watches, classic, cancellation)
    for value in vars(module).values()
    if isinstance(value, Check)
)
"""Every check, in the order of the modules and in each of them; ``await check(make)`` runs one."""


async def check_backend(make: Make) -> None:
    """Put a backend to every check.

    Args:
        make: Called with a run id, returns an async context manager that yields an open backend for that run. Called
            again, it gives a second client of the same store.

    Raises:
        AssertionError: It names the check, the promise that was broken, and what was seen instead.
    """
    for check in BACKEND_CHECKS:
        await check(make)
