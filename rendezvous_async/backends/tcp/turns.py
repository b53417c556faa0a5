"""How a server shares its event loop: long work is done in slices, between which everybody else is served.

A turn of the loop must be short, whatever one peer has asked for. So whoever has a lot to do (requests of one
connection, pushes to many, sessions that end together) works until the end of its slice, and leaves the rest to a later
turn. What is left is done a slice in each turn, after what has arrived on the sockets: the groups that work belongs to
(the scopes of secrets) take turns, so that a tenant with many connections does not keep another waiting.
One piece of work, such as a commit or a listing, is not cut: ``Limits`` bounds its size.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeVar

__all__ = ["OWN_GROUP", "SLICE", "Job", "Turns"]

T = TypeVar("T")

SLICE: Final = 0.01
"""Seconds of one slice: short next to the time that a ping may take, long next to a turn of an idle loop."""

OWN_GROUP: Final = "/"
"""What the server does for everybody; no scope is called that."""

Job: TypeAlias = Callable[[float], bool]
"""Works until that time, and does at least one piece; returns whether there is more to do."""


class Turns:
    """The work that was left to later turns.

    Attributes:
        now: The running loop's clock; asked for each request, where ``clock.now`` would cost three times as much.
    """

    def __init__(self) -> None:
        self.now: Callable[[], float] = asyncio.get_running_loop().time
        self._jobs: OrderedDict[str, deque[Job]] = OrderedDict()
        self._requests_end: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def end_of_slice(self) -> float:
        """Return when a slice that begins now is over."""
        return self.now() + SLICE

    def is_spent(self) -> bool:
        """Tell whether requests have had their slice in this turn of the loop, all connections together."""
        if self._requests_end is None:
            self._requests_end = self.end_of_slice()
            asyncio.get_running_loop().call_soon(self._begin_turn)
            return False
        return self.now() >= self._requests_end

    def _begin_turn(self) -> None:
        self._requests_end = None

    def do(self, job: Job) -> None:
        """Do a job now, as far as a slice goes, and the rest later."""
        if job(self.end_of_slice()):
            self.do_later(job)

    def do_later(self, job: Job, group: str = OWN_GROUP) -> None:
        """Do a job in later turns; jobs of one group wait for each other."""
        if self._stopped:
            return
        self._jobs.setdefault(group, deque()).append(job)
        if self._timer is None:
            self._set_timer()

    def for_each(self, items: Iterable[T], act: Callable[[T], object]) -> None:
        """Do something with each of many things, now and in later turns."""
        rest = iter(items)

        def go_on(end: float) -> bool:
            for item in rest:
                act(item)
                if self.now() >= end:
                    return True
            return False

        self.do(go_on)

    def stop(self) -> None:
        """Leave what is left undone."""
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
                if group in self._jobs:  # Not if it was stopped.
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
        # Not call_soon(): that would go before the sockets in the next turn.
        self._timer = asyncio.get_running_loop().call_later(0, self._go)
