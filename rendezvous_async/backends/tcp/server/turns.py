"""Fair sharing of a server's event loop: long work is done in slices, and other work runs in between.

A turn of the loop must be short, whatever a peer requests. So long work (requests of one connection, pushes to many
watchers, sessions that end together) stops at the end of its slice and leaves the rest to later turns. Each turn does
one slice of that rest, after new input from the sockets. Work belongs to groups (the scopes of secrets), which are
served in rotation, so that a tenant with many connections does not delay another. One piece of work, such as a commit
or a listing, is never split: ``Limits`` bounds its size.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeVar

from rendezvous_async.aio import clock

__all__ = ["OWN_GROUP", "SLICE", "Turns", "Work"]

T = TypeVar("T")

SLICE: Final = 0.01
"""Seconds of one slice: short compared to a ping timeout, long compared to a turn of an idle loop."""

OWN_GROUP: Final = "/"
"""The group of the server's own work; no scope has this name."""

Work: TypeAlias = Callable[[float], bool]
"""Does at least one piece of work, stops at the given time, and returns whether there is more to do."""


class Turns:
    """The work that is left to later turns.

    Attributes:
        now: The clock for work; called for each request, at a third of the cost of ``clock.now``.
    """

    def __init__(self) -> None:
        self.now = clock.stopwatch()
        self._jobs: OrderedDict[str, deque[Work]] = OrderedDict()
        self._requests_end: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def end_of_slice(self) -> float:
        """Return the end of a slice that begins now."""
        return self.now() + SLICE

    def is_spent(self) -> bool:
        """Tell whether the requests of all connections have used up their slice in this turn of the loop."""
        if self._requests_end is None:
            self._requests_end = self.end_of_slice()
            asyncio.get_running_loop().call_soon(self._begin_turn)
            return False
        return self.now() >= self._requests_end

    def _begin_turn(self) -> None:
        self._requests_end = None

    def do(self, job: Work) -> None:
        """Do one slice of a job now and the rest later."""
        if job(self.end_of_slice()):
            self.do_later(job)

    def do_later(self, job: Work, group: str = OWN_GROUP) -> None:
        """Do a job in later turns; jobs of one group wait for each other."""
        if self._stopped:
            return
        self._jobs.setdefault(group, deque()).append(job)
        if self._timer is None:
            self._set_timer()

    def for_each(self, items: Iterable[T], act: Callable[[T], object]) -> None:
        """Call ``act`` with each item, in slices."""
        rest = iter(items)

        def go_on(end: float) -> bool:
            for item in rest:
                act(item)
                if self.now() >= end:
                    return True
            return False

        self.do(go_on)

    def stop(self) -> None:
        """Drop all remaining work."""
        self._stopped = True
        self._jobs.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _go(self) -> None:
        end = self.end_of_slice()
        try:
            while self._jobs:
                group, jobs = next(iter(self._jobs.items()))
                job = jobs.popleft()
                if job(end):
                    jobs.append(job)
                if group in self._jobs:  # unless stopped meanwhile
                    self._jobs.move_to_end(group)
                    if not jobs:
                        del self._jobs[group]
                if self.now() >= end:
                    break
        finally:
            self._timer = None
            if self._jobs:
                self._set_timer()

    def _set_timer(self) -> None:
        # Not call_soon(): that would run before the sockets in the next turn.
        self._timer = asyncio.get_running_loop().call_later(0, self._go)
