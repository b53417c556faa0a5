"""The work of a virtual loop: jobs, and timers in the order of their due times."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from rendezvous_async.testing.loop.describe import describe_callback

__all__ = ["Job", "Timers"]

CLEAN_UP_AT = 64
"""Cancelled timers that may accumulate before a cleanup."""


class Job(asyncio.TimerHandle):
    """A scheduled callback, as returned by ``call_soon``, ``call_at`` and ``call_later``.

    The base class is there only for its type: its public methods are replaced, and nothing else of it is used.
    """

    __slots__ = ("args", "callback", "context", "due", "timers")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        due: float = 0.0,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.due = due
        self.timers: Timers | None = None

    def __repr__(self) -> str:
        return f"<Job {describe_callback(self.callback)}>"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.args = ()
            if self.timers is not None:
                self.timers.one_is_cancelled()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due

    def get_context(self) -> Context:
        return self.context


class Timers:
    """Jobs with a due time, the earliest first, then in creation order.

    Args:
        is_dropped: Tells of a job whether it is never to run.
    """

    def __init__(self, is_dropped: Callable[[Job], bool]) -> None:
        self._is_dropped = is_dropped
        self._heap: list[tuple[float, int, Job]] = []
        self._made = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, job: Job) -> None:
        self._made += 1
        job.timers = self
        heapq.heappush(self._heap, (job.due, self._made, job))

    def put_off(self, seconds: float, concerned: Callable[[Job], bool]) -> None:
        """Postpone some timers."""
        for _, _, job in self._heap:
            if concerned(job):
                job.due += seconds
        self._heap = [(job.due, number, job) for _, number, job in self._heap]
        heapq.heapify(self._heap)

    def one_is_cancelled(self) -> None:
        """Count a cancelled timer; remove all that are lost once these are the majority."""
        self._cancelled += 1
        if self._cancelled > CLEAN_UP_AT and self._cancelled * 2 > len(self._heap):
            self._heap = [item for item in self._heap if not self._is_lost(item[2])]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def clear(self) -> None:
        """Drop all timers."""
        self._heap.clear()
        self._cancelled = 0

    def next_due(self) -> float | None:
        """Return when the next timer is due; None if there is none."""
        while self._heap and self._is_lost(self._heap[0][2]):
            self._pop()
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[Job]:
        """Remove and return the jobs that are due."""
        jobs = []
        while self._heap and self._heap[0][0] <= now:
            job = self._pop()
            if not self._is_dropped(job):
                jobs.append(job)
        return jobs

    def _is_lost(self, job: Job) -> bool:
        return job.callback is None or self._is_dropped(job)

    def _pop(self) -> Job:
        job = heapq.heappop(self._heap)[2]
        job.timers = None
        if job.callback is None:
            self._cancelled -= 1
        return job
