"""Virtual time: an asyncio loop on which an hour takes a moment, and one seed reproduces one interleaving.

``run(main, seed=7)`` is ``asyncio.run`` on such a loop. Nothing sleeps: when no callback is ready, the clock jumps to
the next timer. The seed determines the order of callbacks that are ready at the same time (without a seed they run in
scheduling order, as in asyncio).

A callback or task belongs to the **group** in the context variable ``GROUP`` at its creation: a simulated process.
``freeze`` stops a group like SIGSTOP: its callbacks and timers are held back, and run late after ``thaw``. ``suspend``
stops it like a sleeping machine: its clock and timers stop too, and continue after ``thaw``; only ``lease_time()``
shows how much time has passed. ``kill`` stops it like SIGKILL: nothing of it ever runs again, not even a ``finally``.
Whatever must outlive a group, such as a server whose methods its tasks call, must set its timers in its own context.

The loop keeps its own queue and timers, and runs them inside the ``select`` call in which asyncio's loop would block.
It uses public asyncio API only. Real I/O and ``call_soon_threadsafe`` work, but the clock does not wait for them: every
timer overtakes a worker thread. asyncio's transports rely on the order of callbacks, so use no seed with real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Generator, Hashable
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple, cast

import anyio

from rendezvous_async.testing.loop.describe import check_no_loop, describe_callback, describe_task
from rendezvous_async.testing.loop.groups import GROUP, Groups, GroupTask
from rendezvous_async.testing.loop.jobs import Job, Timers
from rendezvous_async.testing.loop.selector import ReadyKeys, WorldSelector
from rendezvous_async.testing.loop.sockets import SocketsLoop

__all__ = ["GROUP", "DeadlockError", "LivelockError", "VirtualLoop", "VirtualTimeError", "run", "virtual_loop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GRACE = 0.5
SPIN_LIMIT = 1_000_000
POLL_EVERY = 256
"""Turns of a busy loop between two polls of real I/O."""


class VirtualTimeError(RuntimeError):
    """The program on a virtual loop cannot make progress."""


class DeadlockError(VirtualTimeError):
    """Every task is blocked, and no timer or I/O can wake one."""


class LivelockError(VirtualTimeError):
    """Callbacks run endlessly while the clock stands still."""


class VirtualLoop(SocketsLoop):
    """An event loop in virtual time; ``run`` creates one, uses it and cleans up.

    Args:
        seed: Determines the order of callbacks that are ready together; None keeps scheduling order.
        start: The initial time.
        grace: Real seconds to wait for a call from a thread before a blocked loop counts as deadlocked.
        spin_limit: The number of callbacks that may run while the clock stands still.
    """

    def __init__(
        self, seed: int | None = None, *, start: float = 0.0, grace: float = GRACE, spin_limit: int = SPIN_LIMIT
    ) -> None:
        self._now = start
        self._random = None if seed is None else random.Random(seed)
        self._grace = grace
        self._spin_limit = spin_limit
        self._jobs: list[Job] = []
        self._groups = Groups()
        self._timers = Timers(self._groups.is_of_the_dead)
        self._made = 0
        self._spun = 0
        self._hooked = False
        self._halted = False
        self._called_in = False
        self._shut = False
        self._world = WorldSelector()
        super().__init__(self._world)
        self._own_files = len(self._world.get_map())
        self._world.wait = self._wait

    def __repr__(self) -> str:
        return f"<VirtualLoop t={self._now:g} ready={len(self._jobs)} timers={len(self._timers)}>"

    # Groups

    def start(
        self, group: Hashable, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts, name: str | None = None
    ) -> asyncio.Task[T]:
        """Start the first task of a group; whatever it starts belongs to the group too."""
        context = copy_context()
        context.run(GROUP.set, group)
        return self.create_task(context.run(function, *args), name=name, context=context)

    def freeze(self, group: Hashable) -> None:
        """Hold back every callback and timer of ``group`` until ``thaw``; a running task runs to its next await."""
        if group is None:
            raise ValueError("None is the world outside of all groups; it cannot be frozen")
        if group not in self._groups.killed:
            self._groups.frozen.setdefault(group, [])

    def suspend(self, group: Hashable) -> None:
        """Freeze a group and stop its clock until ``thaw``; a group that is already frozen is not suspended."""
        if not self.is_frozen(group):
            self.freeze(group)
            self._groups.suspended[group] = self._now

    def thaw(self, group: Hashable) -> None:
        """Resume a frozen or suspended group: what was held back becomes ready."""
        slept = self._groups.wake(group, self._now)
        for job in self._groups.frozen.pop(group, ()):
            if slept and job.due and not job.cancelled():
                self._timers.add(job)  # It is due by the loop's clock, not by the group's.
            else:
                self._jobs.append(job)
        if slept:
            self._timers.put_off(slept, lambda job: job.context.get(GROUP) == group)

    def kill(self, group: Hashable) -> None:
        """Drop every callback of ``group``, now and later; a running task runs to its next await."""
        if group is None:
            raise ValueError("None is the world outside of all groups; it cannot be killed")
        self._groups.kill(group)

    def is_frozen(self, group: Hashable) -> bool:
        """Return whether a group is frozen."""
        return group in self._groups.frozen

    def is_killed(self, group: Hashable) -> bool:
        """Return whether a group was killed; None never is."""
        return group in self._groups.killed

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that can still run, in the order of their creation."""
        tasks = [task for task in asyncio.all_tasks(self) if not self._groups.is_dead(task)]
        return sorted(tasks, key=lambda task: getattr(task, "number", 0))

    def take_unseen_errors(self) -> list[tuple[Hashable | None, BaseException]]:
        """Return the errors of tasks that nobody has asked for, each with its group."""
        return self._groups.take_unseen_errors()

    # The interface of an asyncio loop

    def time(self) -> float:
        return self._now - self._groups.slept.get(GROUP.get(), 0.0) if self._groups.slept else self._now

    def lease_time(self) -> float:
        """Return the time of a clock that does not stop while the calling group is suspended."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._shut:
            raise RuntimeError("Event loop is closed")
        job = Job(callback, args, context)
        self._jobs.append(job)
        return job

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._shut:
            raise RuntimeError("Event loop is closed")
        job = Job(callback, args, context, when + (self._now - self.time()))
        self._timers.add(job)
        return job

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        job = Job(callback, args, context)
        super().call_soon_threadsafe(self._take_in, job)
        self._called_in = True
        return job

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: Any = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        if self.get_task_factory() is not None:
            return super().create_task(coro, name=name, context=context)
        if self._shut:
            raise RuntimeError("Event loop is closed")
        context = copy_context() if context is None else context
        self._made += 1
        name = f"Task-{self._made}" if name is None else name  # asyncio counts across all loops: not reproducible
        task = GroupTask(cast("Coroutine[Any, Any, T]", coro), loop=self, name=name, context=context)
        task.number = self._made
        task.context = context
        task.abandoned = False
        self._groups.add(task)
        return task

    def run_forever(self) -> None:
        self._hooked = False
        try:
            super().run_forever()
        finally:
            self._halted = False

    def stop(self) -> None:
        self._halted = True
        super().stop()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        subject = context.get("task") or context.get("future")
        if not (self._groups.burying or self._groups.is_dead(subject)):
            super().call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        self._groups.give_generators_back()
        await super().shutdown_asyncgens()

    def close(self) -> None:
        if not self._shut and not self.is_running():
            self._groups.frozen.clear()
            self._groups.bury(self._take_last_turn)
            self._shut = True
            self._jobs.clear()
            self._timers.clear()
        super().close()

    def wind_up(self) -> None:
        """Cancel the remaining tasks and let them finish, as ``asyncio.run`` does; killed groups stay dead."""
        for group in tuple(self._groups.frozen):
            self.thaw(group)
        left = self.tasks()
        try:
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.wait(left))
            self.run_until_complete(self.shutdown_asyncgens())
            self.run_until_complete(self.shutdown_default_executor())
        finally:
            for task in left:
                if not task.done():
                    self._groups.abandon(task)
                elif not task.cancelled() and (error := task.exception()) is not None:
                    message = "unhandled exception during run() shutdown"
                    self.call_exception_handler({"message": message, "exception": error, "task": task})

    # The virtual loop

    def _take_in(self, job: Job) -> None:
        self._jobs.append(job)

    def _take_last_turn(self, jobs: list[Job]) -> None:
        self._jobs.extend(jobs)
        self.call_soon(self.stop)
        self.run_forever()

    def _wait(self, timeout: float | None) -> ReadyKeys:
        """Run the simulation until asyncio's part of the loop has something to do."""
        if not self._hooked:
            self._groups.hook_generators()
            self._hooked = True
        turns = 0
        stuck = False
        while turns < POLL_EVERY:
            was_stuck, stuck = stuck, self._is_stuck()
            if self._jobs and not (was_stuck and stuck):
                self._turn()
                turns += 1
            elif timeout is None and not self._called_in:
                if self._has_files() and (events := self._world.real.select(0)):
                    return events
                due = self._timers.next_due()
                if due is None:
                    return self._wait_for_real()
                if due > self._now:
                    self._now, self._spun = due, 0
                self._jobs.extend(self._timers.take(self._now))
                stuck = False  # What is due now must run once, whatever it is.
            if timeout is not None or self._halted or self._called_in:
                break
        self._called_in = False
        return self._world.real.select(0)

    def _turn(self) -> None:
        """Run what is ready now; what becomes ready meanwhile waits for the next turn."""
        jobs, self._jobs = self._jobs, []
        if self._random is not None and len(jobs) > 1:
            draw = self._random.random
            jobs.sort(key=_place)
            jobs.sort(key=lambda _: draw())
        self._spun += len(jobs)
        if self._spun > self._spin_limit:
            spun, self._spun, self._jobs = self._spun, 0, jobs
            raise LivelockError(
                f"{spun} callbacks have run while the clock stood still at {self._now:g}; the next ones are\n  "
                + "\n  ".join(describe_callback(job.callback) for job in jobs[:10])
            )
        groups, left = self._groups, iter(jobs)
        for job in left:
            callback = job.callback
            if callback is None or ((groups.frozen or groups.killed) and groups.hold(job)):
                continue
            try:
                job.context.run(callback, *job.args)
            except (SystemExit, KeyboardInterrupt):
                self._jobs[:0] = left
                raise
            except BaseException as error:
                message = f"Exception in callback {describe_callback(callback)}"
                self.call_exception_handler({"message": message, "exception": error, "handle": job})
        # The traceback of a failed task refers to this frame, and these names refer to the task: a cycle that would
        # delay the report of its error until a garbage collection.
        del job, jobs, left, callback

    def _is_stuck(self) -> bool:
        """Return whether only cancel scopes are ready, which retry each turn while their tasks cannot run."""
        if not (self._groups.frozen or self._groups.killed):
            return False
        for job in self._jobs:  # Faster than all() in every turn: the first job usually decides.
            if job.callback is not None and not isinstance(getattr(job.callback, "__self__", None), anyio.CancelScope):
                return False
        return True

    def _has_files(self) -> bool:
        return len(self._world.get_map()) > self._own_files

    def _wait_for_real(self) -> ReadyKeys:
        """Wait for real files, sockets and threads; raise DeadlockError if there are none."""
        events = self._world.real.select(None if self._has_files() else self._grace)
        if events or self._called_in:
            self._called_in = False
            return events
        blocked = []
        for task in self.tasks():
            group = getattr(task, "group", None)
            frozen = " (frozen)" if group in self._groups.frozen else ""
            blocked.append(("" if group is None else f"group {group}{frozen}: ") + describe_task(task))
        raise DeadlockError(
            f"at {self._now:g} every task is blocked, and no timer or I/O can wake one:\n  " + "\n  ".join(blocked)
        )


def _place(job: Job) -> int:
    """Return the order of a job before the seed shuffles: anyio cancels tasks in the random order of a set."""
    place: int = getattr(getattr(job.callback, "__self__", None), "number", 0)
    return place


def virtual_loop() -> VirtualLoop:
    """Return the running loop; raise RuntimeError if it is not virtual."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(f"this needs virtual time: run it with rendezvous_async.testing.run, not on {loop!r}")
    return loop


def run(
    function: Callable[[*Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
    seed: int | None = None,
    start: float = 0.0,
    grace: float = GRACE,
    spin_limit: int = SPIN_LIMIT,
) -> T:
    """Run a coroutine function to completion in virtual time, as ``asyncio.run`` does in real time.

    The other arguments are those of ``VirtualLoop``.

    Raises:
        DeadlockError: Every task is blocked.
        LivelockError: Callbacks run endlessly while the clock stands still.
        RuntimeError: A loop is running here already: an async test for example.
    """
    check_no_loop()
    loop = VirtualLoop(seed, start=start, grace=grace, spin_limit=spin_limit)
    try:
        runner = asyncio.Runner(loop_factory=lambda: loop)  # For its handling of Ctrl+C; the loop does its own cleanup.
        try:
            result = runner.run(function(*args))
        except BaseException:
            with contextlib.suppress(VirtualTimeError):  # Report the first error.
                loop.wind_up()
            raise
        loop.wind_up()
        return result
    finally:
        loop.close()
