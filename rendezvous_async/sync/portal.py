"""The one event loop of a process that the blocking interface runs on, in a background thread.

It starts with its first user and ends with its last: a ``Lease`` is one user's hold on it. What still holds a lease
when the process exits is told to say farewell, so that the other nodes need not wait for its session to run out. A
forked child has no loop: its parent's leases say so, and new ones start a loop of the child's own.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack, suppress
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from rendezvous_async.errors import RendezvousError

__all__ = ["Lease"]

_log = logging.getLogger("rendezvous_async.sync")

FAREWELL_SECONDS = 5.0
"""How long an exiting process may take to say farewell; then its sessions end by themselves."""

T = TypeVar("T")

Farewell = Callable[[], Awaitable[None]]


class Lease:
    """One user's hold on the process's loop.

    Args:
        owner: Who it is, for messages.
        farewell: Awaited on the loop when the process exits before ``release()``.
    """

    def __init__(self, owner: str, farewell: Farewell) -> None:
        self.farewell = farewell
        self._owner = owner
        self._pid = os.getpid()
        self._portal: BlockingPortal | None = _thread.enter(self)

    def __repr__(self) -> str:
        return f"<Lease of {self._owner}{' released' if self._portal is None else ''}>"

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run a coroutine function on the loop and wait for what it returns.

        When this thread is interrupted meanwhile (Ctrl+C, a signal whose handler raises), the coroutine is cancelled.
        """
        self.check_process()
        portal = self._portal
        if portal is None:
            raise RendezvousError(f"{self._owner} was shut down")
        future: Future[T] = portal.start_task_soon(function, *args)
        try:
            return future.result()
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
                "forked from it: make a new one in the child, or start children with spawn"
            )

    def release(self) -> None:
        """Let go of the loop, which ends with its last user; doing so twice is no error."""
        if self._portal is not None and os.getpid() == self._pid:
            self._portal = None
            _thread.leave(self)

    def abandon(self) -> None:
        """Say farewell and release, without waiting for it; from any thread, and from the garbage collector."""
        if self._portal is not None and os.getpid() == self._pid:
            _thread.call_soon(self._say_farewell_apart)

    def _say_farewell_apart(self) -> None:
        """Say farewell in a thread: the loop, where this is called, must not wait for itself."""
        with suppress(RuntimeError):  # The process is about to exit, and says farewell for all.
            threading.Thread(target=self._say_farewell, name="rendezvous_async farewell").start()

    def _say_farewell(self) -> None:
        try:
            self.call(self.farewell)
        except Exception as error:
            _log.info("%s was dropped, and could not say farewell: %s", self._owner, error)
        finally:
            self.release()


class _LoopThread:
    """The thread and its loop, while somebody holds a lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have something called in the loop's thread; it takes no lock, so that the garbage collector may ask."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # The loop is closed: the process said farewell for all.
                loop.call_soon_threadsafe(callback)

    def enter(self, lease: Lease) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                _hook_exit()
                self._start()
            assert self._portal is not None
            self._leases.add(lease)
            return self._portal

    def _start(self) -> None:
        """Start the loop from a thread that no signal interrupts: anyio would wait for ever for half a start."""

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
            starter.join()  # It is a moment; whoever comes next, or the end of the process, finds the loop.
            raise

    def leave(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)
            if not self._leases:
                self._portal = None
                self._stack.close()

    def say_farewell(self) -> None:
        """Let all who are left say farewell, and end the loop."""
        with self._lock:
            portal, self._portal = self._portal, None
            leases = tuple(self._leases)
        if portal is not None:
            farewells = [portal.start_task_soon(lease.farewell) for lease in leases]
            late = wait_for_all(farewells, FAREWELL_SECONDS).not_done
            portal.call(portal.stop, True)
            if not late:
                self._stack.close()


@functools.cache
def _hook_exit() -> None:
    """Have ``say_farewell`` called when the process exits; once, and a forked child inherits it.

    Like the standard library's executors, before threads are joined: worker threads of the loop wait for work until the
    loop ends, and atexit's own functions come only after they have been waited for.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(_say_farewell)


def _say_farewell() -> None:
    _thread.say_farewell()


def _forget_after_fork() -> None:
    global _thread
    # The parent's must not be collected here: it would try to stop a thread that this process does not have.
    _of_ancestors.append(_thread)
    _thread = _LoopThread()


_thread = _LoopThread()
_of_ancestors: list[_LoopThread] = []
os.register_at_fork(after_in_child=_forget_after_fork)


def _name_this_thread() -> None:
    """Name the loop's thread: the oldest anyio that we allow takes no name for it."""
    threading.current_thread().name = "rendezvous_async"
