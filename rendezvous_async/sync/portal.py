"""The background thread with the event loop of the blocking interface, one per process.

It starts with the first ``LoopLease`` and ends with the last. When the process exits, each remaining lease awaits its
farewell, so that the other nodes need not wait for a session to expire. A forked child has no loop: leases from its
parent raise an error there, and new ones start a loop of the child's own.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack, suppress
from typing import Any, TypeVar
from weakref import finalize

from anyio.from_thread import BlockingPortal, start_blocking_portal

from rendezvous_async.errors import RendezvousError

__all__ = ["LoopLease"]

_log = logging.getLogger("rendezvous_async.sync")

FAREWELL_SECONDS = 5.0
"""How long an exiting process waits for its farewells; after that its sessions expire by themselves."""

T = TypeVar("T")

Farewell = Callable[[], Awaitable[None]]


class LoopLease:
    """One user's hold on the process's loop.

    Args:
        owner: The user's name for messages.
        farewell: Awaited on the loop if the process exits before ``release()``.
        fields: What log records carry in ``extra=``.
    """

    def __init__(self, owner: str, farewell: Farewell, fields: Mapping[str, object] | None = None) -> None:
        self.farewell = farewell
        self._owner = owner
        self._fields = fields
        self._pid = os.getpid()
        self._dropped: finalize[[], object] | None = None
        self._portal: BlockingPortal | None = _thread.enter(self)

    def __repr__(self) -> str:
        return f"<LoopLease of {self._owner}{' released' if self._portal is None else ''}>"

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run a coroutine function on the loop and return its result.

        If this thread is interrupted meanwhile (Ctrl+C, a signal handler that raises), the coroutine is cancelled.
        """
        self.check_process()
        portal = self._portal
        if portal is None:
            raise RendezvousError(f"{self._owner} was shut down")
        future: Future[Callable[[], T]] = portal.start_task_soon(_outcome_of, function, *args)
        try:
            return future.result()()
        except CancelledError:
            raise RendezvousError(f"{self._owner} was shut down while it was in use") from None
        except BaseException:
            future.cancel()
            raise

    def check_process(self) -> None:
        """Raise if this is not the process that took the lease."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self._owner} belongs to process {self._pid} and does not work in process {os.getpid()}, which was "
                "forked from it: create a new one in the child, or start children with spawn"
            )

    def end_with(self, holder: object) -> None:
        """Await the farewell and release when ``holder`` is garbage collected.

        Neither this lease nor its farewell may refer to ``holder``. At process exit, the lease handles the farewell.
        """
        self._dropped = finalize(holder, self.abandon)
        self._dropped.atexit = False

    def release(self) -> None:
        """Give up the loop, which ends with its last lease; a second call does nothing."""
        if self._dropped is not None:
            self._dropped.detach()
        if self._portal is not None and os.getpid() == self._pid:
            self._portal = None
            _thread.leave(self)

    def close(self) -> None:
        """Await the farewell and release; a second call does nothing."""
        self.check_process()
        if self._portal is not None:
            try:
                self.call(self.farewell)
            finally:
                self.release()

    def abandon(self) -> None:
        """Start the farewell and the release without waiting. Safe in any thread and in the garbage collector."""
        if self._portal is not None and os.getpid() == self._pid:
            _thread.call_soon(self._say_farewell_apart)

    def _say_farewell_apart(self) -> None:
        """Await the farewell in a thread: this runs on the loop, which must not wait for itself."""
        with suppress(RuntimeError):  # The process is exiting, which handles all farewells.
            threading.Thread(target=self._say_farewell, name="rendezvous_async farewell").start()

    def _say_farewell(self) -> None:
        try:
            self.call(self.farewell)
        except Exception as error:
            _log.info("%s was dropped, and its farewell failed: %s", self._owner, error, extra=self._fields)
        finally:
            self.release()


class _LoopThread:
    """The thread and its loop, as long as there are leases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: set[LoopLease] = set()
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Schedule a callback on the loop. Takes no lock, so the garbage collector may call it."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # The loop is closed: the process has handled all farewells.
                loop.call_soon_threadsafe(callback)

    def enter(self, lease: LoopLease) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                _hook_exit()
                self._start()
            assert self._portal is not None
            self._leases.add(lease)
            return self._portal

    def _start(self) -> None:
        """Start the loop from a thread that no signal interrupts: anyio hangs if its start is interrupted."""

        def start() -> None:
            portal = self._stack.enter_context(start_blocking_portal("asyncio"))
            portal.call(_name_this_thread)
            self._loop = portal.call(asyncio.get_running_loop)
            self._portal = portal

        starter = threading.Thread(target=start, name="rendezvous_async starter")
        starter.start()
        try:
            starter.join()
        except BaseException:
            starter.join()  # Brief; the next lease or the exit hook finds the loop.
            raise

    def leave(self, lease: LoopLease) -> None:
        with self._lock:
            self._leases.discard(lease)
            if not self._leases and self._portal is not None:  # Otherwise the process is exiting, which ends the loop.
                self._portal = None
                self._stack.close()

    def say_farewell(self) -> None:
        """Await the farewells of all remaining leases, and end the loop."""
        with self._lock:
            portal, self._portal = self._portal, None
            leases = tuple(self._leases)
        if portal is not None:
            farewells = [portal.start_task_soon(_outcome_of, lease.farewell) for lease in leases]
            late = wait_for_all(farewells, FAREWELL_SECONDS).not_done
            portal.call(portal.stop, True)
            if not late:
                self._stack.close()


@functools.cache
def _hook_exit() -> None:
    """Register ``say_farewell`` to run at process exit; once, since a forked child inherits it.

    It must run before threads are joined, as in the standard library's executors: the loop's worker threads run until
    the loop ends, and atexit functions run only after those threads have been joined.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(_say_farewell)


def _say_farewell() -> None:
    _thread.say_farewell()


def _forget_after_fork() -> None:
    global _thread
    # Keep the parent's object alive: collecting it would try to stop a thread that this process does not have.
    _of_ancestors.append(_thread)
    _thread = _LoopThread()


_thread = _LoopThread()
_of_ancestors: list[_LoopThread] = []
os.register_at_fork(after_in_child=_forget_after_fork)


async def _outcome_of(function: Callable[..., Awaitable[T]], *args: object) -> Callable[[], T]:
    """Await a call, and return what returns its result; an exit raised by it is raised there, and not on the loop."""
    try:
        result = await function(*args)
    except (SystemExit, KeyboardInterrupt) as error:
        return functools.partial(_raise, error)
    return lambda: result


def _raise(error: BaseException) -> Any:
    raise error


def _name_this_thread() -> None:
    """Name the loop's thread: the oldest supported anyio has no parameter for it."""
    threading.current_thread().name = "rendezvous_async"
