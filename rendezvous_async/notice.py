"""Waiting for something to happen, cheaply: every node does little else.

A future, and a timer if the wait has an end, instead of a cancel scope around an event: nothing is raised and caught
when the time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Latch", "Notice"]

_Waiters: TypeAlias = "dict[asyncio.Future[bool], None]"


class Notice:
    """Something may have changed: wakes all that wait for it, and calls all that asked to be called."""

    def __init__(self) -> None:
        self._waiters: _Waiters = {}
        self._callbacks: dict[Callable[[], None], None] = {}

    def fire(self) -> None:
        """Wake everybody who waits now, and call the callbacks."""
        _wake(self._waiters)
        for callback in tuple(self._callbacks):
            callback()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next ``fire()``; look at what you wait for first, with no await in between.

        Returns:
            False if that did not come within ``seconds``.
        """
        return await _wait_in(self._waiters, seconds)

    def call(self, callback: Callable[[], None]) -> None:
        """Let ``callback`` be called at each ``fire()`` from now on."""
        self._callbacks[callback] = None

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Let ``callback`` be called at each ``fire()``, for as long as the block lasts."""
        self.call(callback)
        try:
            yield
        finally:
            del self._callbacks[callback]


class Latch:
    """Something has happened, once and for good."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: _Waiters = {}
        self._callback: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Latch {'set' if self._is_set else 'not set'}>"

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Let it have happened: wake everybody who waits, and call who asked for it."""
        self._is_set = True
        _wake(self._waiters)
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def call(self, callback: Callable[[], None]) -> None:
        """Let ``callback``, the only one, be called once when it happens; at once if it has."""
        if self._is_set:
            callback()
        else:
            self._callback = callback

    async def wait(self) -> None:
        """Wait until it has happened."""
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
