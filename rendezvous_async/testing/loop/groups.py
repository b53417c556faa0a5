"""Groups of tasks and callbacks: simulated processes, which can be frozen and killed.

A group holds back or drops its own jobs; the loop decides when to run the others. The suspended tasks and async
generators of a killed group are kept until the end, since Python would run their ``finally`` on collection. When all
other tasks have ended and the clock has stopped, they are cancelled until they finish. Every await raises, so that
their cleanup has no effect on others.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import Any, TypeVar
from weakref import WeakSet

from rendezvous_async.testing.loop.jobs import Job

__all__ = ["GROUP", "GroupTask", "Groups", "group_of"]

T = TypeVar("T")

GROUP: ContextVar[Hashable | None] = ContextVar("rendezvous_async.testing.group", default=None)
"""The simulated process of the running code; None is the world outside of all groups."""

MAX_CANCELLATIONS = 1000
"""How often a killed task is cancelled before it is left to the garbage collector."""


class GroupTask(asyncio.Task[T]):
    """A task that knows its group and its creation order."""

    number: int
    context: Context
    abandoned: bool

    def __init__(self, coro: Coroutine[Any, Any, T], **options: Any) -> None:
        super().__init__(coro, **options)

    @property
    def group(self) -> Hashable | None:
        return self.context.get(GROUP)


def group_of(thing: object) -> Hashable | None:
    """Return the group of a task or a handle; None if it has none."""
    context = getattr(thing, "context", None)
    return context.get(GROUP) if isinstance(context, Context) else None


class Groups:
    """The frozen and killed groups, and what remains of them."""

    def __init__(self) -> None:
        self.frozen: dict[Hashable, list[Job]] = {}
        self.suspended: dict[Hashable, float] = {}
        self.slept: dict[Hashable | None, float] = {}
        self.killed: set[Hashable] = set()
        self.burying = False
        self.ended = False
        self._tasks: dict[Hashable, WeakSet[GroupTask[Any]]] = {}
        self._dead: list[asyncio.Task[Any]] = []
        self._dead_generators: list[AsyncGenerator[Any, Any]] = []
        self._last_steps: list[Job] = []
        self._generators: dict[Hashable, WeakSet[AsyncGenerator[Any, Any]]] = {}
        self._register: Callable[[AsyncGenerator[Any, Any]], None] | None = None

    def add(self, task: GroupTask[Any]) -> None:
        """Take a new task into its group."""
        group = task.group
        if group in self.killed:
            self.abandon(task)
        tasks = self._tasks.get(group)
        if tasks is None:
            tasks = self._tasks[group] = WeakSet()
        tasks.add(task)

    def take_unseen_errors(self) -> list[tuple[Hashable | None, BaseException]]:
        """Return the errors of tasks that were never retrieved, each with its group, in creation order.

        It reads the private flag by which asyncio knows that an exception was never retrieved; there is no public one.
        """
        failed = [task for tasks in self._tasks.values() for task in tasks if task._log_traceback]
        failed.sort(key=lambda task: task.number)
        return [(task.group, error) for task in failed if (error := task.exception()) is not None]

    def hold(self, job: Job) -> bool:
        """Hold back or drop a job of a frozen or killed group; return whether that was done."""
        group = job.context.get(GROUP)
        if group in self.frozen:
            self.frozen[group].append(job)
            return True
        if group in self.killed and not self.ended:
            self.drop(job)
            return True
        return False

    def wake(self, group: Hashable, now: float) -> float:
        """End a suspension and return its length; the group's clock lags by that from now on."""
        slept = now - self.suspended.pop(group, now)
        if slept:
            self.slept[group] = self.slept.get(group, 0.0) + slept
        return slept

    def drop(self, job: Job) -> None:
        """Drop a job of a killed group; an error that it would have handled counts as retrieved."""
        for arg in job.args:
            if isinstance(arg, asyncio.Future) and arg.done() and not arg.cancelled():
                arg.exception()
        if isinstance(getattr(job.callback, "__self__", None), GroupTask):
            self._last_steps.append(job)  # Without it, the task could not even be cancelled.

    def is_of_the_dead(self, job: Job) -> bool:
        """Tell whether a job belongs to a killed group."""
        return bool(self.killed) and job.context.get(GROUP) in self.killed

    def kill(self, group: Hashable) -> None:
        """Stop a group: nothing of it runs again."""
        self.killed.add(group)
        for job in self.frozen.pop(group, ()):
            self.drop(job)
        self._dead_generators.extend(self._generators.pop(group, ()))
        for task in sorted(self._tasks.get(group, ()), key=lambda task: task.number):
            if not task.done():
                self.abandon(task)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that will not run again until the end."""
        self._dead.append(task)
        if isinstance(task, GroupTask):
            task.abandoned = True

    def is_dead(self, task: object) -> bool:
        """Return whether a task was killed or abandoned."""
        return isinstance(task, GroupTask) and (task.abandoned or task.group in self.killed)

    def hook_generators(self) -> None:
        """Register the async generators of groups here; asyncio would close those of killed groups."""
        # Unpacked, since the garbage collector cannot traverse the tuple of hooks.
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
        """Return the async generators of live groups to asyncio, which closes them."""
        for group, generators in self._generators.items():
            if group not in self.killed and self._register is not None:
                for generator in generators:
                    self._register(generator)
        self._generators.clear()

    def bury(self, take_turn: Callable[[list[Job]], None]) -> None:
        """Finish the tasks of killed groups; ``take_turn`` runs the given jobs and whatever is ready."""
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
    """Close the coroutine of a task that never began; anyio wraps it in one of its own."""
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
    """Close coroutines that are created in the block and never start; Python would warn of them much later.

    A ``finally`` creates them for tasks of the same dead group. While garbage collection is off, all new objects are in
    the youngest generation.
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
