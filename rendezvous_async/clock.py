"""Time enters here and nowhere else: the event loop's own clock, and how long an answer may take.

The clock is the loop's: monotonic, never compared with another machine's, and virtual under test.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple

import anyio

from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Patience", "answer_within", "now"]


def now() -> float:
    """Return the time in seconds; the same as ``anyio.current_time()``, which costs six times as much."""
    return asyncio.get_running_loop().time()


class Patience(NamedTuple):
    """How long to wait for the backend's answer to a call, and what the call is for."""

    seconds: float
    what: str

    def error(self) -> RendezvousConnectionError:
        """Return what to raise when no answer came: what was asked for may or may not have happened."""
        return RendezvousConnectionError(f"{self.what}: the backend did not answer within {self.seconds:g} s")


class answer_within:
    """Bound any calls to the backend in a block; see ``Patience``."""

    __slots__ = ("_patience", "_scope")

    def __init__(self, seconds: float, what: str) -> None:
        self._patience = Patience(seconds, what)

    def __enter__(self) -> None:
        self._scope = anyio.CancelScope(deadline=now() + self._patience.seconds)
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallow = self._scope.__exit__(kind, error, traceback)
        if self._scope.cancelled_caught:
            raise self._patience.error() from None
        return swallow
