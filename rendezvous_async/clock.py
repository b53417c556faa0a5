"""Time enters here and nowhere else: the event loop's own clock, and how long an answer may take.

The clock is the loop's: monotonic, never compared with another machine's, and virtual under test.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import anyio

from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["answer_within", "now"]


def now() -> float:
    """Return the time in seconds; the same as ``anyio.current_time()``, which costs six times as much."""
    return asyncio.get_running_loop().time()


class answer_within:
    """Bound a call to the backend; no answer in time is a connection error: it may or may not have happened."""

    __slots__ = ("_scope", "_seconds", "_what")

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what

    def __enter__(self) -> None:
        self._scope = anyio.CancelScope(deadline=now() + self._seconds)
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallow = self._scope.__exit__(kind, error, traceback)
        if self._scope.cancelled_caught:
            raise RendezvousConnectionError(
                f"{self._what}: the backend did not answer within {self._seconds:g} s"
            ) from None
        return swallow
