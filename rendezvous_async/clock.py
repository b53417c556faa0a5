"""Time enters here and nowhere else: two clocks, and how long an answer may take.

Both clocks are monotonic, never compared with another machine's, and virtual under test. They differ when the machine
is suspended:

* ``now()`` is the event loop's clock, which stands still meanwhile. It is for timers, and for patience with others: a
  server, an observer of files or a caller that slept must not conclude on waking that everybody else was silent.
* ``lease_now()`` goes on meanwhile. It is for what a node believes of itself: the others' clocks went on, so they may
  have formed the next round without it. Deadlines of sessions are by this clock.

Timers stand still as well. So a node looks at its deadline before it uses its world, and its next keep-alive, which is
late by less than an interval after waking, tells everybody who only waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import NamedTuple

import anyio

from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Alarm", "Patience", "answer_within", "check_asyncio", "lease_now", "now"]

_COUNTS_SUSPENSION = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock of its own for that. On macOS and BSD the monotonic one does it."""


def check_asyncio() -> None:
    """Raise unless an asyncio event loop runs here: sockets and timers are asyncio's own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "rendezvous_async needs asyncio, and no asyncio event loop is running here: start your program with "
            "asyncio.run(main()) or anyio.run(main); it does not run under trio"
        ) from None


def now() -> float:
    """Return the time in seconds; the same as ``anyio.current_time()``, which costs six times as much."""
    return asyncio.get_running_loop().time()


def lease_now(loop: asyncio.AbstractEventLoop | None = None) -> float:
    """Return the time in seconds by a clock that also counts while the machine is suspended.

    It shows what ``now()`` shows as long as the machine has not been suspended since this process began.

    Args:
        loop: For other threads: whose time to return. A loop in virtual time has a ``lease_time()``.
    """
    virtual = getattr(loop or asyncio.get_running_loop(), "lease_time", None)
    return _awake_and_asleep() - _SLEPT_BEFORE if virtual is None else float(virtual())


def _awake_and_asleep() -> float:
    return time.clock_gettime(_COUNTS_SUSPENSION)


_SLEPT_BEFORE = _awake_and_asleep() - time.monotonic()


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
