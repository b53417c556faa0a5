"""Messages between event loops and a thread: jobs go in, answers go back to the loops that wait for them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from rendezvous_async.errors import RendezvousError

__all__ = ["Inbox", "LoopCall", "Outbox", "ThreadJob"]

LoopCall: TypeAlias = tuple[asyncio.AbstractEventLoop, Callable[[], None]]
"""A loop, and a function to call on it."""


class ThreadJob:
    """A piece of work for the thread, and the future for its result, if any.

    Attributes:
        abandoned: Whether the caller no longer waits; then work that has not begun is skipped.
    """

    __slots__ = ("abandoned", "future", "locked", "work")

    def __init__(self, work: Callable[..., Any], future: asyncio.Future[Any] | None = None, *, locked: bool) -> None:
        self.work = work
        self.future = future
        self.locked = locked
        self.abandoned = False


class Inbox:
    """Jobs for a thread, from any thread; ``fd`` is readable if there are jobs to ``take``."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._jobs: list[ThreadJob] = []
        self._is_awake = False
        self._closed: RendezvousError | None = None
        self.fd, self._bell = os.pipe()
        os.set_blocking(self.fd, False)

    @property
    def closed(self) -> RendezvousError | None:
        """Why the inbox is closed; None if it is open."""
        return self._closed

    def put(self, job: ThreadJob) -> None:
        """Submit a job; if the inbox is closed, its future fails at once, so call it on the future's loop."""
        with self._mutex:
            if self._closed is None:
                self._jobs.append(job)
                self._ring()
                return
        if job.future is not None and not job.future.done():
            job.future.set_exception(self._closed)

    def wake(self) -> None:
        """Wake the thread without a job."""
        with self._mutex:
            if self._closed is None:
                self._ring()

    def take(self) -> list[ThreadJob]:
        """Return all pending jobs without waiting."""
        with self._mutex:
            if self._is_awake:
                os.read(self.fd, 1)
                self._is_awake = False
            jobs, self._jobs = self._jobs, []
        return jobs

    def close(self, why: RendezvousError) -> list[ThreadJob]:
        """Close the inbox; return the pending jobs."""
        with self._mutex:
            if self._closed is None:
                self._closed = why
                os.close(self.fd)
                os.close(self._bell)
            jobs, self._jobs = self._jobs, []
        return jobs

    def forget(self, why: RendezvousError) -> None:
        """Close the inbox in a forked child, even if another thread held its mutex during the fork."""
        self._mutex = threading.Lock()
        self.close(why)

    def _ring(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            os.write(self._bell, b"!")


class Outbox:
    """Calls for event loops, batched by a thread: one wake-up for each loop."""

    def __init__(self) -> None:
        self._calls: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}

    def add(self, call: LoopCall) -> None:
        loop, function = call
        self._calls.setdefault(loop, []).append(function)

    def answer(self, job: ThreadJob, value: object, error: BaseException | None = None) -> None:
        """Set the result of a job's future, if it has one."""
        future = job.future
        if future is not None:
            self.add((future.get_loop(), lambda: _resolve(future, value, error)))

    def send(self) -> None:
        """Send the collected calls; skip closed loops."""
        if not self._calls:
            return
        calls, self._calls = self._calls, {}
        for loop, functions in calls.items():
            if not loop.is_closed():
                try:
                    loop.call_soon_threadsafe(_call_all, functions)
                except RuntimeError:  # Closed since.
                    continue


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _resolve(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
