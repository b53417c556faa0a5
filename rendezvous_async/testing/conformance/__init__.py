"""The conformance kit: one check for every guarantee in ``rendezvous_async.backends.base``, for any backend.

Check your own backend with one call::

    @asynccontextmanager
    async def make(run_id):
        async with open_backend("tcp://127.0.0.1:29400", run_id=run_id) as backend:
            yield backend

    await check_backend(make)

or with pytest, one test for each guarantee::

    @pytest.mark.parametrize("check", BACKEND_CHECKS)
    async def test_it_keeps_its_promises(check):
        await check(make)

The checks work in real and in virtual time, and against a shared store: each uses its own run id, and clears it at the
end. Nothing here looks inside a backend, and nothing sleeps in the hope that something has happened.
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
"""Every check, in the order of the modules; ``await check(make)`` runs one."""


async def check_backend(make: Make) -> None:
    """Run every check on a backend.

    Args:
        make: Takes a run id and returns an async context manager that yields an open backend for that run. A second
            call gives a second client of the same store.

    Raises:
        AssertionError: A check failed; the message has its name, the broken guarantee, and what was seen instead.
    """
    for check in BACKEND_CHECKS:
        await check(make)
