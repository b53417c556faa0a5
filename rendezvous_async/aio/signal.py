"""Two ways to wait for something to happen: a ``Notice`` fires again and again, a ``Latch`` is set once.

A wait is a future, and a timer if it has an end. That is cheaper than a cancel scope around an event, since nothing is
raised and caught when the time is over; every node waits like this most of its life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Latch", "Notice"]

_Waiters: TypeAlias = "dict[asyncio.Future[bool], None]"


class Notice:
    """Says that something may have changed: wakes the waiters and runs the callbacks."""

    def __init__(self) -> None:
        self._waiters: _Waiters = {}
        self._callbacks: dict[Callable[[], None], None] = {}

    def fire(self) -> None:
        """Wake the tasks that wait now, then run the callbacks."""
        _wake(self._waiters)
        for callback in tuple(self._callbacks):
            callback()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next ``fire()``. Check your condition first, with no await in between.

        Returns:
            False if there was none within ``seconds``.
        """
        return await _wait_in(self._waiters, seconds)

    def call(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` at each ``fire()`` from now on."""
        self._callbacks[callback] = None

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Run ``callback`` at each ``fire()`` while the block lasts."""
        self.call(callback)
        try:
            yield
        finally:
            del self._callbacks[callback]


class Latch:
    """Says that something has happened. It is set once and stays set."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: _Waiters = {}
        self._callback: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Latch {'set' if self._is_set else 'not set'}>"

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set the latch, wake the waiters, run the callback."""
        self._is_set = True
        _wake(self._waiters)
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def call(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` when the latch is set, at once if it is. There is room for one callback."""
        if self._is_set:
            callback()
        else:
            self._callback = callback

    async def wait(self) -> None:
        """Wait until the latch is set."""
        if not self._is_set:
            await _wait_in(self._waiters, None)


async def _wait_in(waiters: _Waiters, seconds: float | None) -> bool:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[bool] = loop.create_future()
    timer = None if seconds is None else loop.call_later(seconds, _give_up, waiter)
    waiters[waiter] = None
    try:
        return await waiter
    finally:
        del waiters[waiter]
        if timer is not None:
            timer.cancel()


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


def _wake(waiters: _Waiters) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(True)
