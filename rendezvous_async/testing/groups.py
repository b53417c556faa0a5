"""Groups of tasks and callbacks: simulated processes, which can be frozen and killed.

A group holds back or drops its own jobs; when to run the others is the loop's affair. What is left of a killed group
(suspended tasks and async generators) is held to the very end, since Python runs their ``finally`` when it collects
them. At the end, when all others are gone and the clock stands still for good, its tasks are cancelled until they
give up: every await raises, so that what they do while they go reaches nobody.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import Any, TypeVar
from weakref import WeakSet

from rendezvous_async.testing.jobs import Job

__all__ = ["GROUP", "GroupTask", "Groups", "group_of", "take_unseen_errors"]

T = TypeVar("T")

GROUP: ContextVar[Hashable | None] = ContextVar("rendezvous_async.testing.group", default=None)
"""Which simulated process the running code belongs to; None is the world outside of all of them."""

MAX_CANCELLATIONS = 1000
"""How often a killed task is told to end before it is left to the garbage collector."""


class GroupTask(asyncio.Task[T]):
    """A task that knows its group, and its place in the order in which tasks were made."""

    number: int
    context: Context
    abandoned: bool

    def __init__(self, coro: Coroutine[Any, Any, T], **options: Any) -> None:
        super().__init__(coro, **options)
        _tasks.add(self)

    @property
    def group(self) -> Hashable | None:
        return self.context.get(GROUP)


_tasks: WeakSet[GroupTask[Any]] = WeakSet()


def take_unseen_errors(loop: asyncio.AbstractEventLoop) -> list[tuple[Hashable | None, BaseException]]:
    """Return what tasks failed with that nobody has asked for, each with its group, in the order of their making.

    It reads the flag by which asyncio itself knows that an exception was never retrieved: nothing public tells.
    """
    failed = [task for task in _tasks if task._log_traceback and task.get_loop() is loop]
    failed.sort(key=lambda task: task.number)
    return [(task.group, error) for task in failed if (error := task.exception()) is not None]


def group_of(thing: object) -> Hashable | None:
    """Return the group of a task or of a callback's handle; None if it has none."""
    context = getattr(thing, "context", None)
    return context.get(GROUP) if isinstance(context, Context) else None


class Groups:
    """Which groups are frozen, which are dead, and what they have left."""

    def __init__(self) -> None:
        self.frozen: dict[Hashable, list[Job]] = {}
        self.suspended: dict[Hashable, float] = {}
        self.slept: dict[Hashable | None, float] = {}
        self.killed: set[Hashable] = set()
        self.burying = False
        self.ended = False
        self._dead: list[asyncio.Task[Any]] = []
        self._dead_generators: list[AsyncGenerator[Any, Any]] = []
        self._last_steps: list[Job] = []
        self._generators: dict[Hashable, WeakSet[AsyncGenerator[Any, Any]]] = {}
        self._register: Callable[[AsyncGenerator[Any, Any]], None] | None = None

    def hold(self, job: Job) -> bool:
        """Tell whether a job must not run now, and see to it."""
        group = job.context.get(GROUP)
        if group in self.frozen:
            self.frozen[group].append(job)
            return True
        if group in self.killed and not self.ended:
            self.drop(job)
            return True
        return False

    def wake(self, group: Hashable, now: float) -> float:
        """Note for how long a group was suspended, and return it; its clock is behind by that from now on."""
        slept = now - self.suspended.pop(group, now)
        if slept:
            self.slept[group] = self.slept.get(group, 0.0) + slept
        return slept

    def drop(self, job: Job) -> None:
        """Forget a job of a killed group; an error that it should have been told counts as told."""
        for arg in job.args:
            if isinstance(arg, asyncio.Future) and arg.done() and not arg.cancelled():
                arg.exception()
        if isinstance(getattr(job.callback, "__self__", None), GroupTask):
            self._last_steps.append(job)  # without it, the task could not even be cancelled

    def kill(self, group: Hashable, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Let nothing of a group run any more."""
        self.killed.add(group)
        for job in self.frozen.pop(group, ()):
            self.drop(job)
        self._dead_generators.extend(self._generators.pop(group, ()))
        for task in tasks:
            if isinstance(task, GroupTask) and task.group == group:
                self.abandon(task)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Hold a task that will not run again, to the end."""
        self._dead.append(task)
        if isinstance(task, GroupTask):
            task.abandoned = True

    def is_dead(self, task: object) -> bool:
        """Tell whether a task was killed, or abandoned."""
        return isinstance(task, GroupTask) and (task.abandoned or task.group in self.killed)

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
            if not self.ended and real_end is not None:
                real_end(generator)

        sys.set_asyncgen_hooks(firstiter=started, finalizer=finalized)

    def give_generators_back(self) -> None:
        """Leave the async generators of the groups that live to asyncio, for it to close them."""
        for group, generators in self._generators.items():
            if group not in self.killed and self._register is not None:
                for generator in generators:
                    self._register(generator)
        self._generators.clear()

    def bury(self, take_turn: Callable[[list[Job]], None]) -> None:
        """Bring what is left of killed groups to its end; ``take_turn`` runs these jobs and what is ready."""
        self.ended = True
        if not self._dead:
            return
        self.burying = True
        with warnings.catch_warnings(), _no_new_coroutines():
            warnings.simplefilter("ignore")
            for task in self._dead:
                _close_unstarted(task)
            for _ in range(MAX_CANCELLATIONS):
                pending = [task for task in self._dead if not task.done()]
                if not pending:
                    break
                for task in pending:
                    task.cancel()
                steps, self._last_steps = self._last_steps, []
                take_turn(steps)
            self._dead.clear()
            self._dead_generators.clear()
        self.burying = False


def _close_unstarted(task: asyncio.Task[Any]) -> None:
    """Close the coroutine that a task would have run, had it begun: anyio hands it over inside one of its own."""
    outer = task.get_coro()
    if iscoroutine(outer) and getcoroutinestate(outer) == CORO_CREATED:
        found = gc.get_referents(outer)
        for _ in range(2):
            found = gc.get_referents(*found)
            for thing in found:
                if iscoroutine(thing) and thing is not outer and getcoroutinestate(thing) == CORO_CREATED:
                    thing.close()


@contextmanager
def _no_new_coroutines() -> Iterator[None]:
    """Close the coroutines that are made meanwhile and never start: Python would complain of them much later.

    A ``finally`` makes them, to hand them to a task that is as dead as its own. While collection is off, all new
    objects are in the youngest generation.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        old = [thing for thing in gc.get_objects(generation=0) if iscoroutine(thing)]
        yield
        known = set(map(id, old))
        for thing in gc.get_objects(generation=0):
            if iscoroutine(thing) and id(thing) not in known and getcoroutinestate(thing) == CORO_CREATED:
                thing.close()
    finally:
        if was_on:
            gc.enable()
