"""All that one process does in one directory, on one thread: the log, the lock, the sessions' files, the notices.

A file system call may hang, so none is made on the event loop. Backends hand in jobs; the thread takes all that wait,
and answers them on their own loops. Jobs that write go together: one lock, one append, one sync for as many as are
there. Jobs that only read take no lock: the log is followed up to its end, which is as new as a read must be.

The thread never blocks on the lock. Whoever holds it may be stopped for an hour, and meanwhile our own sessions must
show life and reads must be served; so a second thread, started when it is first needed, waits for the lock in its place.

Nothing in here knows of runs, and nothing outside touches the table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rendezvous_async.backends.base import Commit, Condition, Entry, Listing, Token, Write, closed_error
from rendezvous_async.backends.fanout import Fanout
from rendezvous_async.backends.file.directory import Directory, FileLock, explain
from rendezvous_async.backends.file.life import Lives, Look, Observer
from rendezvous_async.backends.file.notify import CLOSE_WRITE, MODIFY, MOVED_TO, Inotify, open_inotify
from rendezvous_async.backends.frames import Committed, Ended, Opened, Record
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.table import Table
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousSessionError

__all__ = ["Change", "Hub", "Job", "Options", "acquire_hub", "release_hub"]

logger = logging.getLogger(__name__)

NOTIFIED_CHECK = 1.0
"""Seconds between checks where the kernel tells of changes, in case it once does not."""
QUICKEST_CHECK = 0.005
EAGERNESS = 0.1
"""Without notices: how long to wait for the next change, as a part of how long ago the last one was."""
UNFINISHED = 1.0
"""Seconds after which a frame that stays unfinished is looked into under the lock."""
MAX_BATCH = 1024


class Options(msgspec.Struct, frozen=True):
    """How to use a directory; all backends of a process on one directory must agree.

    Attributes:
        fsync: Whether a commit is on the disk before it is acknowledged.
        inotify: Whether to have the kernel tell of changes.
        check: Seconds between checks for changes, at most, where the kernel does not tell.
    """

    fsync: bool = True
    inotify: bool = True
    check: float = 0.25


class Change:
    """What the jobs of one locked batch do: records to append, and what follows if that works, or fails."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.afterwards: list[Callable[[], None]] = []
        self.undo: list[Callable[[], None]] = []


class Job:
    """A piece of work for the thread, and the future that waits for its answer.

    Attributes:
        work: Runs on the thread; with ``locked`` inside a batch that has the lock, else it must leave the change empty.
        abandoned: Nobody waits any more; work that has not begun is left out.
    """

    __slots__ = ("abandoned", "future", "locked", "work")

    def __init__(self, work: Callable[[Change], Any], future: asyncio.Future[Any] | None, *, locked: bool) -> None:
        self.work = work
        self.future = future
        self.locked = locked
        self.abandoned = False


class _NeedsLock(Exception):
    """Raised by a job without the lock: do it again with the lock."""


class Hub:
    """The thread of one directory; made by ``acquire_hub``."""

    _log: Log
    _lives: Lives
    _lock: FileLock
    _inotify: Inotify | None = None

    def __init__(self, directory: Directory, options: Options) -> None:
        self.directory = directory
        self.options = options
        self.users = 0
        self.failure: RendezvousError | None = None
        self.checked_at = time.monotonic()
        self._mutex = threading.Lock()
        self._jobs: list[Job] = []
        self._is_awake = False
        self._dead: RendezvousError | None = None
        self._stopping = False
        self._finished: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._watchers: Fanout[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = Fanout()
        self._all_watchers: dict[tuple[asyncio.AbstractEventLoop, Callable[[], None]], None] = {}
        self._owners: dict[str, tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = {}
        # From here on only the thread's own.
        self._to_lock: list[Job] = []
        self._outbox: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._observer = Observer()
        self._sessions = 0
        self._marks: dict[int, str] = {}
        self._changed_at = self._check_at = time.monotonic()
        self._unfinished: tuple[int, float] | None = None
        self._compact_at = 0.0
        self._locker: queue.SimpleQueue[bool] | None = None
        self._is_waiting_for_lock = False
        self._has_lock = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"rendezvous {directory.path}", daemon=True)

    def __repr__(self) -> str:
        return f"<Hub {self.directory.path} users={self.users}>"

    # For the event loops

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Hand in a job; its future is answered on its own loop."""
        with self._mutex:
            dead = self._dead
            if dead is None:
                self._jobs.append(job)
                self._wake()
        if dead is not None and job.future is not None and not job.future.done():
            job.future.set_exception(dead)

    def add_watcher(self, names: Sequence[str], loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Call ``wake`` on ``loop`` whenever one of ``names`` may have changed."""
        with self._mutex:
            self._watchers.add(names, (loop, wake))
            self._all_watchers[(loop, wake)] = None

    def remove_watcher(self, names: Sequence[str], loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        with self._mutex:
            self._watchers.remove(names, (loop, wake))
            self._all_watchers.pop((loop, wake), None)

    def own(self, session: str, loop: asyncio.AbstractEventLoop, lost: Callable[[], None]) -> None:
        """Call ``lost`` on ``loop`` when the session has ended."""
        with self._mutex:
            self._owners[session] = (loop, lost)
            self._wake()

    def disown(self, session: str) -> None:
        with self._mutex:
            self._owners.pop(session, None)

    async def stop(self) -> None:
        """Let the thread end, and wait until it has let go of everything."""
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()
        with self._mutex:
            if self._dead is not None:
                return
            self._finished.append((loop, finished.set))
            self._stopping = True
            self._wake()
        await finished.wait()

    def _wake(self) -> None:
        """Wake the thread; with the mutex held."""
        if not self._is_awake:
            self._is_awake = True
            os.write(self._wake_write, b"!")

    # What jobs do, on the thread

    @property
    def table(self) -> Table:
        return self._log.table

    def get(self, key: str) -> Entry | None:
        return self.table.get(key)

    def list(self, name: str) -> Listing:
        return self.table.list(name)

    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        return self.table.changes(names, after)

    def commit(self, change: Change, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        commit = self.table.commit(writes, when)
        if commit.won and writes:
            change.records.append(Committed(writes, when))
        return commit

    def open_session(self, change: Change, ttl: float) -> str:
        session = self.table.open_session(ttl, 0.0)
        self._lives.create(session)
        change.undo.append(lambda: self._lives.remove(session))
        change.records.append(Opened(session, ttl))
        return session

    def end_session(self, change: Change, session: str) -> None:
        if self.table.end_session(session):
            change.records.append(Ended(session))
            change.afterwards.append(lambda: self._lives.remove(session))

    def keep_alive(self, session: str, ttl: float, *, locked: bool) -> None:
        """Show life; if that comes late, only the lock makes sure that nobody is about to end the session."""
        if self.table.has_session(session):
            in_time = self._lives.beat(session, ttl)
            if in_time or locked:
                # Somebody may have ended it on request meanwhile: an answer must not be older than the question.
                if not locked:
                    self._log.read_new()
                if self.table.has_session(session):
                    return
            else:
                raise _NeedsLock
        raise RendezvousSessionError(f"session {session} has ended")

    def let_go(self, session: str) -> None:
        """Give up a session without ending it; where a lock tells of the owner's life, others end it at once."""
        self._lives.let_go(session)

    def _end_silent(self, change: Change, over: dict[str, Look]) -> None:
        """End the sessions that look now, under the lock, as they looked when their time was over."""
        for session, look in over.items():
            if self.table.has_session(session) and self._lives.look(session) == look:
                logger.info(
                    "%s: session %s is over: %s", self.directory.path, session, "dead" if look.is_dead else "silent"
                )
                self.end_session(change, session)

    # The thread

    def _run(self) -> None:
        try:
            self._open()
            while not self._stopping:
                self._turn()
            dead: RendezvousError = closed_error("file")
        except RendezvousError as error:
            dead = error
        except OSError as error:
            dead = explain(self.directory.path, "use the directory", error)
        except Exception as error:
            logger.exception("%s: the thread of the file backend failed", self.directory.path)
            dead = RendezvousConnectionError(f"the file backend of {self.directory.path} failed: {error!r}")
        with self._mutex:
            self._dead = self.failure = dead
            jobs, self._jobs = self._jobs + self._to_lock, []
            finished = self._finished
        for job in jobs:
            self._answer(job, None, dead)
        self._wake_watchers(everyone=True)
        for loop, call in finished:
            self._outbox.setdefault(loop, []).append(call)
        self._close()
        self._deliver()

    def _open(self) -> None:
        directory = self.directory
        self._lives = Lives(directory.subdirectory("sessions"), directory.mode, is_local=directory.is_local)
        self._lock = directory.lock("lock")
        if self.options.inotify:
            self._inotify = open_inotify()
        if self._inotify is not None:
            self._poll.register(self._inotify.fd, select.POLLIN)
            for name, fd, mask in (
                ("log", directory.fd, MODIFY | MOVED_TO),
                ("sessions", self._lives.directory, CLOSE_WRITE),
            ):
                mark = self._inotify.add(fd, mask)
                if mark is not None:
                    self._marks[mark] = name
        self._lock.acquire(wait=True)
        try:
            self._log = Log.open(
                os.path.join(directory.path, "log"),
                directory=directory.fd,
                sync=self.options.fsync,
                mode=directory.mode,
            )
            self._lives.sweep(self.table.has_session)
        finally:
            self._lock.release()
        self.table.take_changed()

    def _close(self) -> None:
        for name in ("_log", "_lives", "_inotify"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()
        with self._mutex:
            if self._is_waiting_for_lock and not self._has_lock:
                pass  # the other thread closes it once it has it
            elif hasattr(self, "_lock"):
                self._lock.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
        if self._locker is not None:
            self._locker.put(False)
        self.directory.close()

    def _turn(self) -> None:
        ready = {fd for fd, _ in self._poll.poll(max(0.0, self._check_at - time.monotonic()) * 1000)}
        if self._wake_read in ready:
            os.read(self._wake_read, 64)
        with self._mutex:
            self._is_awake = False
            jobs, self._jobs = self._jobs, []
        noticed = False
        dying: set[str] = set()
        if self._inotify is not None and self._inotify.fd in ready:
            for mark, name in self._inotify.read():
                if self._marks.get(mark) == "sessions":
                    dying.add(name)
                else:
                    noticed = noticed or name == "log" or not name
        free = []
        for job in jobs:
            (self._to_lock if job.locked else free).append(job)
        fresh = False
        if self._to_lock and self._get_lock():
            try:
                fresh = self._write()
            finally:
                self._release_lock()
        if free or dying or noticed or time.monotonic() >= self._check_at:
            self._read(free, fresh)
            if dying:
                self._end({session: look for session in dying if (look := self._lives.look(session)).is_dead})
        self._announce()
        self._deliver()

    # Writing

    def _get_lock(self) -> bool:
        if self._is_waiting_for_lock:
            if self._has_lock:
                self._is_waiting_for_lock = self._has_lock = False
                return True
            return False
        if self._lock.acquire(wait=False):
            return True
        if self._locker is None:
            self._locker = queue.SimpleQueue()
            threading.Thread(
                target=_wait_for_lock,
                args=(weakref.ref(self), self._lock, self._locker),
                daemon=True,
                name=f"lock of {self.directory.path}",
            ).start()
        self._is_waiting_for_lock = True
        self._locker.put(True)
        return False

    def _granted(self) -> bool:
        """Called by the other thread when it has the lock; False if nobody wants it any more."""
        with self._mutex:
            if self._dead is not None:
                return False
            self._has_lock = True
            self._wake()
            return True

    def _release_lock(self) -> None:
        self._lock.release()

    def _write(self) -> bool:
        """Do the jobs that need the lock, which is held; return whether the table is now as new as can be."""
        batch, self._to_lock = self._to_lock[:MAX_BATCH], self._to_lock[MAX_BATCH:]
        if self._to_lock:
            with self._mutex:
                self._wake()
        change = Change()
        answers: list[tuple[Job, Any, BaseException | None]] = []
        log = self._log
        try:
            self._follow()
            log.trim()
            if log.broken:
                log.compact(self.table.snapshot())
            for job in batch:
                if job.abandoned:
                    continue
                try:
                    answers.append((job, job.work(change), None))
                except RendezvousSessionError as error:
                    answers.append((job, None, error))
            log.append(change.records)
        except (OSError, RendezvousError) as error:
            mapped = explain(self.directory.path, "write in", error) if isinstance(error, OSError) else error
            for undo in change.undo:
                undo()
            for job in batch:
                self._answer(job, None, mapped)
            self._roll_back()
            return False
        for call in change.afterwards:
            call()
        for answer in answers:
            self._answer(*answer)
        if log.is_long and time.monotonic() >= self._compact_at:
            self._announce()
            self._deliver()
            self._compact()
        return True

    def _compact(self) -> None:
        try:
            snapshot = self.table.snapshot()
            self._log.compact(snapshot)
            self._log.table = Table.restore(snapshot, 0.0)  # drops what the old table kept of sessions long gone
            self._lives.sweep(self.table.has_session)
        except (OSError, RendezvousError) as error:
            self._compact_at = time.monotonic() + 10.0
            logger.warning("%s: the log could not be compacted and grows on: %s", self.directory.path, error)

    def _roll_back(self) -> None:
        """Forget what was done to the table but not written."""
        try:
            self._log.reload()
        except (OSError, RendezvousError) as error:
            self._fail(error)
        self._wake_watchers(everyone=True)

    # Reading

    def _follow(self) -> None:
        """Read what others have appended."""
        revision = self.table.revision
        if self._log.read_new():
            self._wake_watchers(everyone=True)
        if self.table.revision != revision:
            self._changed_at = time.monotonic()

    def _read(self, jobs: list[Job], fresh: bool) -> None:
        """Do the jobs that need no lock, and look after the sessions if it is time."""
        now = time.monotonic()
        try:
            if not fresh:
                self._follow()
            self._look_into_unfinished(now)
        except (OSError, RendezvousError) as error:
            mapped = self._fail(error)
            for job in jobs:
                self._answer(job, None, mapped)
            self._check_at = now + self.options.check
            return
        if self.failure is not None:
            self.failure = None
            self._wake_watchers(everyone=True)
        self.checked_at = now
        nothing = Change()
        for job in jobs:
            if job.abandoned:
                continue
            try:
                self._answer(job, job.work(nothing), None)
            except _NeedsLock:
                job.locked = True
                self.submit(job)
            except (OSError, RendezvousError) as error:
                mapped = explain(self.directory.path, "use", error) if isinstance(error, OSError) else error
                self._answer(job, None, mapped)
        if now >= self._check_at or self.table.sessions != self._sessions:
            self._plan(now)

    def _plan(self, now: float) -> None:
        """Look at the sessions whose turn it is, and decide when to check again."""
        self._sessions = self.table.sessions
        over, again = self._observer.observe(self.table.open_sessions(), self._lives.look, now)
        self._end(over)
        if self.directory.is_local and "log" in self._marks.values():
            interval = NOTIFIED_CHECK
        else:
            interval = max(QUICKEST_CHECK, min(EAGERNESS * (now - self._changed_at), self.options.check))
        self._check_at = min(now + interval, max(again, now + QUICKEST_CHECK))

    def _end(self, over: dict[str, Look]) -> None:
        over = {session: look for session, look in over.items() if self.table.has_session(session)}
        if over:
            self.submit(Job(lambda change: self._end_silent(change, over), None, locked=True))

    def _look_into_unfinished(self, now: float) -> None:
        """Have a frame that stays unfinished looked into under the lock: its writer died, or it is damage."""
        if not self._log.unread:
            self._unfinished = None
        elif self._unfinished is None or self._unfinished[0] != self._log.unread:
            self._unfinished = (self._log.unread, now)
        elif now - self._unfinished[1] > UNFINISHED:
            self._unfinished = None
            self.submit(Job(lambda _: None, None, locked=True))

    def _fail(self, error: Exception) -> RendezvousError:
        """Note that the log cannot be followed; watches hear of it when it will not mend by itself."""
        mapped = explain(self.directory.path, "read the log in", error) if isinstance(error, OSError) else error
        assert isinstance(mapped, RendezvousError)
        is_final = not isinstance(mapped, RendezvousConnectionError) or self.directory.is_removed
        if is_final and str(self.failure) != str(mapped):
            self.failure = mapped
            self._wake_watchers(everyone=True)
        return mapped

    # Answering

    def _answer(self, job: Job, value: object, error: BaseException | None) -> None:
        future = job.future
        if future is None:
            if error is not None:
                logger.warning("%s: %s", self.directory.path, error)
            return
        self._outbox.setdefault(future.get_loop(), []).append(lambda: _resolve(future, value, error))

    def _announce(self) -> None:
        """Tell watchers what has changed, and owners that their sessions have ended."""
        self._wake_watchers(self.table.take_changed())
        with self._mutex:
            ended = [session for session in self._owners if not self.table.has_session(session)]
            for session in ended:
                loop, lost = self._owners.pop(session)
                self._outbox.setdefault(loop, []).append(lost)
        for session in ended:
            self._lives.let_go(session)

    def _wake_watchers(self, keys: Sequence[str] = (), *, everyone: bool = False) -> None:
        if not keys and not everyone:
            return
        with self._mutex:
            for loop, wake in tuple(self._all_watchers) if everyone else self._watchers.concerned(keys):
                self._outbox.setdefault(loop, []).append(wake)

    def _deliver(self) -> None:
        outbox, self._outbox = self._outbox, {}
        for loop, calls in outbox.items():
            try:
                loop.call_soon_threadsafe(_call_all, calls)
            except RuntimeError:  # that loop is closed; nobody waits there any more
                logger.debug("%s: a loop was closed before its answers came", self.directory.path)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _resolve(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _wait_for_lock(owner: weakref.ref[Hub], lock: FileLock, wanted: queue.SimpleQueue[bool]) -> None:
    while wanted.get():
        lock.acquire(wait=True)
        hub = owner()
        if hub is None or not hub._granted():
            lock.release()
            lock.close()
            return
        del hub


_hubs: dict[tuple[int, int], Hub] = {}
_registry = threading.Lock()


def acquire_hub(directory: Directory, options: Options) -> Hub:
    """Return this process's hub of a directory, started if there is none; the hub takes over ``directory``."""
    with _registry:
        hub = _hubs.get(directory.key)
        if hub is not None and hub._dead is None:
            directory.close()
            if hub.options != options:
                raise ValueError(f"{directory.path} is open in this process with {hub.options}, not {options}")
        else:
            hub = _hubs[directory.key] = Hub(directory, options)
            hub.start()
        hub.users += 1
        return hub


async def release_hub(hub: Hub) -> None:
    """Let go of a hub; with its last user it ends."""
    with _registry:
        hub.users -= 1
        if hub.users:
            return
        if _hubs.get(hub.directory.key) is hub:
            del _hubs[hub.directory.key]
    await hub.stop()


def _forget_after_fork() -> None:
    """A forked child has no threads, and must not keep its parent's locks alive."""
    global _registry
    _registry = threading.Lock()
    for hub in _hubs.values():
        hub._mutex = threading.Lock()
        hub._close()
        hub._dead = hub.failure = RendezvousConnectionError(
            f"the file backend of {hub.directory.path} was opened before this process was forked; open it after"
        )
    _hubs.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
