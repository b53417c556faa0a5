"""Time enters here and nowhere else: two clocks, the time of day, and timers.

Both clocks are monotonic, never compared with another machine's, and virtual under test. They differ when the machine
is suspended:

* ``now()`` is the event loop's clock, which stands still during a suspension. It is for timers and for judging others:
  a server, an observer of files or a caller that slept must not conclude on waking that all others were silent.
* ``lease_now()`` keeps counting. It is for what a node believes of itself: the clocks of the others kept running, so
  they may have formed the next round without it. Deadlines of sessions use this clock.

Timers stand still as well. So a node checks its deadline before it uses its world. Tasks that only wait are told by the
next keep-alive, which runs less than an interval after waking.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context

__all__ = ["Alarm", "check_asyncio", "lease_now", "now", "stopwatch", "wall"]

_COUNTS_SUSPENSION = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a separate clock that counts suspensions. On macOS and BSD the monotonic clock does."""


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
    """Return the loop's time in seconds, as ``anyio.current_time()`` does at six times the cost."""
    return asyncio.get_running_loop().time()


def stopwatch() -> Callable[[], float]:
    """Return ``now`` of the running loop as a clock for short work: uvloop's own counts whole milliseconds."""
    loop = asyncio.get_running_loop()
    return loop.time if hasattr(loop, "lease_time") else time.monotonic


def lease_now(loop: asyncio.AbstractEventLoop | None = None) -> float:
    """Return the time in seconds by a clock that also counts while the machine is suspended.

    It shows what ``now()`` shows as long as the machine has not been suspended since this process began.

    Args:
        loop: For other threads: whose time to return. A loop in virtual time has a ``lease_time()``.
    """
    virtual = getattr(loop or asyncio.get_running_loop(), "lease_time", None)
    return _awake_and_asleep() - _SLEPT_BEFORE if virtual is None else float(virtual())


def wall() -> float:
    """Return the time of day in seconds since 1970, for people to read: nothing is decided by it.

    Virtual time begins in 1970.
    """
    virtual = hasattr(asyncio.get_running_loop(), "lease_time")
    return lease_now() if virtual else time.time()  # noqa: TID251 - the one place


def _awake_and_asleep() -> float:
    return time.clock_gettime(_COUNTS_SUSPENSION)


_SLEPT_BEFORE = _awake_and_asleep() - time.monotonic()


class Alarm:
    """One timer for many deadlines: it rings no later than the earliest of them, and must be set again then.

    It remembers the time that it was set to: uvloop's timers do not tell, and may be half a millisecond early.

    Args:
        ring: Called with the time, never earlier than the one that was set, and with how late that is.
        context: What it runs in; by default the context of the caller that sets it.
    """

    __slots__ = ("_context", "_handle", "_ring", "at")

    def __init__(self, ring: Callable[[float, float], None], context: Context | None = None) -> None:
        self.at: float | None = None
        self._ring = ring
        self._context = context
        self._handle: asyncio.Handle | None = None

    def set_by(self, at: float) -> None:
        """Ring at that time, or earlier if it is set to an earlier time already."""
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
