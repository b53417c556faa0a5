"""Groups of tasks and callbacks: simulated processes, which can be frozen and killed.

A group holds back or drops its own jobs; when to run the others is the loop's affair. What is left of a killed group
(suspended coroutines and async generators) is held to the very end, since Python runs their ``finally`` when it
collects them. The end is when the loop is closed: then nothing that they do can reach anybody.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from contextvars import Context, ContextVar
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import Any, TypeVar
from weakref import WeakSet

from rendezvous_async.testing.jobs import Job

__all__ = ["GROUP", "GroupTask", "Groups"]

T = TypeVar("T")

GROUP: ContextVar[Hashable | None] = ContextVar("rendezvous_async.testing.group", default=None)
"""Which simulated process the running code belongs to; None is the world outside of all of them."""

MAX_THROWS = 1000


class GroupTask(asyncio.Task[T]):
    """A task that knows its group, and its place in the order in which tasks were made."""

    number: int
    group: Hashable | None
    context: Context
    buried: bool


class Groups:
    """Which groups are frozen, which are dead, and what they have left."""

    def __init__(self) -> None:
        self.frozen: dict[Hashable, list[Job]] = {}
        self.killed: set[Hashable] = set()
        self._dead: list[object] = []
        self._generators: dict[Hashable, WeakSet[AsyncGenerator[Any, Any]]] = {}
        self._register: Callable[[AsyncGenerator[Any, Any]], None] | None = None
        self._ended = False

    def hold(self, job: Job) -> bool:
        """Tell whether a job must not run now, and see to it."""
        group = job.context.get(GROUP)
        if group in self.frozen:
            self.frozen[group].append(job)
            return True
        if group in self.killed:
            self.drop(job)
            return True
        return False

    def drop(self, job: Job) -> None:
        """Forget a job of a killed group; an error that it should have been told counts as told."""
        for arg in job.args:
            if isinstance(arg, asyncio.Future) and arg.done() and not arg.cancelled():
                arg.exception()

    def kill(self, group: Hashable, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Let nothing of a group run any more."""
        self.killed.add(group)
        for job in self.frozen.pop(group, ()):
            self.drop(job)
        self._dead.extend(self._generators.pop(group, ()))
        for task in tasks:
            if isinstance(task, GroupTask) and task.group == group:
                self.abandon(task)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that will not run again, to the end."""
        self._dead.append(task)

    def is_dead(self, subject: object) -> bool:
        """Tell whether a task was killed, or else abandoned at the end."""
        return isinstance(subject, GroupTask) and (subject.buried or subject.group in self.killed)

    def hook_generators(self) -> None:
        """Know the async generators of groups here, and not in asyncio, which would close those of killed ones."""
        # Taken apart, since the garbage collector does not see into the tuple that holds them.
        real_start, real_end = sys.get_asyncgen_hooks()
        self._register = real_start

        def started(generator: AsyncGenerator[Any, Any]) -> None:
            group = GROUP.get()
            if group is not None:
                self._generators.setdefault(group, WeakSet()).add(generator)
            elif real_start is not None:
                real_start(generator)

        def finalized(generator: AsyncGenerator[Any, Any]) -> None:
            if not self._ended and real_end is not None:
                real_end(generator)

        sys.set_asyncgen_hooks(firstiter=started, finalizer=finalized)

    def give_generators_back(self) -> None:
        """Leave the async generators of the groups that live to asyncio, for it to close them."""
        for group, generators in self._generators.items():
            if group not in self.killed and self._register is not None:
                for generator in generators:
                    self._register(generator)
        self._generators.clear()

    def bury(self) -> None:
        """Close what is left of killed groups; to be called when nothing can be scheduled any more."""
        self._ended = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that a finally makes, and can no longer start
            for task in self._dead:
                if isinstance(task, GroupTask):
                    task.buried = True
                    task.context.run(_exhaust, task.get_coro())
            self._dead.clear()


def _exhaust(coroutine: Any) -> None:
    """Bring a coroutine to its end without letting it wait for anything."""
    if iscoroutine(coroutine) and getcoroutinestate(coroutine) == CORO_CREATED:
        coroutine.close()
        return
    try:
        for _ in range(MAX_THROWS):
            coroutine.throw(GeneratorExit)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its end, in whatever way
        return
