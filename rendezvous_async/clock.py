"""Time enters here and nowhere else: the event loop's own clock, and how long an answer may take.

The clock is the loop's: monotonic, never compared with another machine's, and virtual under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import NamedTuple

import anyio

from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Alarm", "Patience", "answer_within", "now"]


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


class Alarm:
    """One timer for many things: it rings no later than the earliest of them, and is then set anew.

    It remembers by itself when it rings: uvloop's timers do not tell, and may be half a millisecond early.

    Args:
        ring: Called with the time, which is never before the one that was set, and with how late that is.
        context: What it runs in; by default that of whoever sets it.
    """

    __slots__ = ("_context", "_handle", "_ring", "at")

    def __init__(self, ring: Callable[[float, float], None], context: Context | None = None) -> None:
        self.at: float | None = None
        self._ring = ring
        self._context = context
        self._handle: asyncio.Handle | None = None

    def set_by(self, at: float) -> None:
        """Ring at that time, or before if it was set to."""
        if self.at is None or at < self.at:
            self.cancel()
            self.at = at
            self._handle = asyncio.get_running_loop().call_at(at, self._go, context=self._context)

    def cancel(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
        self.at = self._handle = None

    def _go(self) -> None:
        assert self.at is not None
        at, self.at, self._handle = self.at, None, None
        time = max(now(), at)
        self._ring(time, time - at)


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
