"""The thread on which one process works in one directory.

A file system call may hang, so none is made on the event loop. Drivers submit jobs; the thread takes all that are
pending, and answers them on their own loops. Jobs that write are batched: one lock, one append and one fsync for all of
them. Jobs that only read need no lock: they follow the log to its end, which is as fresh as a read must be.

The thread never waits for the lock. Its holder may be stopped for an hour, and meanwhile this process's sessions must
beat and reads must be served.

Changes by other processes are noticed by inotify, where it works, and by polling: soon after the last change, then less
and less often, down to a minimum rate. The same check watches the sessions.
"""

from __future__ import annotations

import asyncio
import logging
import select
import threading
import time
from collections.abc import Callable, Sequence

from rendezvous_async.backends.driver import closed_error
from rendezvous_async.backends.file.directory import Directory, explain
from rendezvous_async.backends.file.ledger import HeldByAnother, Ledger, LedgerChange, NeedsLock
from rendezvous_async.backends.file.life import Lives
from rendezvous_async.backends.file.lock import FileLock, PatientLock
from rendezvous_async.backends.file.mail import Inbox, LoopCall, Outbox, ThreadJob
from rendezvous_async.backends.file.notify import CLOSE_WRITE, MODIFY, MOVED_TO, Inotify, open_inotify
from rendezvous_async.backends.file.options import FileOptions
from rendezvous_async.backends.observer import Look, Observer
from rendezvous_async.backends.table.fanout import Fanout
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError

__all__ = ["Hub"]

logger = logging.getLogger("rendezvous_async.file")

CALM_CHECK = 1.0
"""Seconds between checks without watchers, or where inotify works, in case it misses a change."""
QUICKEST_CHECK = 0.005
EAGERNESS = 0.1
"""Otherwise the interval is this fraction of the time since the last change."""
BREATH = 0.001
BREATH_PER_SESSION = 0.00005
MAX_BREATH = 0.01
"""Seconds between two reads of inotify events, so that a burst of changes does not wake the thread for each."""
UNFINISHED = 1.0
"""Seconds until an incomplete frame at the end of the log is examined under the lock."""
MAX_BATCH = 1024


class Hub:
    """The thread of one directory.

    Attributes:
        failure: Why the directory can no longer be used, unless the cause may be temporary.
        checked_at: When the log was last followed to its end, by the monotonic clock.
        users: The number of drivers that use it; see ``registry.py``.
    """

    ledger: Ledger

    def __init__(self, directory: Directory, options: FileOptions) -> None:
        self.directory = directory
        self.options = options
        self.users = 0
        self.failure: RendezvousError | None = None
        self.checked_at = time.monotonic()
        self.inbox = Inbox()
        self._mutex = threading.Lock()
        self._watchers: Fanout[LoopCall] = Fanout()
        self._everyone: dict[LoopCall, None] = {}
        self._owners: dict[str, LoopCall] = {}
        self._stopped: list[LoopCall] | None = None
        # The rest is used by the thread only.
        self._outbox = Outbox()
        self._to_lock: list[ThreadJob] = []
        self._observer = Observer()
        self._observed = 0
        self._changed_at = self._check_at = time.monotonic()
        self._listen_at = 0.0
        self._unfinished: tuple[int, float] | None = None
        self._inotify: Inotify | None = None
        self._of_log: int | None = None
        self._of_sessions: int | None = None
        self._parts: list[Ledger | Lives | PatientLock] = []
        self._thread = threading.Thread(target=self._run, name=f"rendezvous {directory.path}", daemon=True)

    def __repr__(self) -> str:
        return f"<Hub {self.directory.path} users={self.users}>"

    # Called from event loops

    def start(self) -> None:
        self._thread.start()

    def add_watcher(self, names: Sequence[str], watcher: LoopCall) -> None:
        """Call ``watcher`` whenever something under ``names`` may have changed."""
        with self._mutex:
            self._watchers.add(names, watcher)
            self._everyone[watcher] = None
        self.inbox.wake()

    def remove_watcher(self, names: Sequence[str], watcher: LoopCall) -> None:
        with self._mutex:
            self._watchers.remove(names, watcher)
            self._everyone.pop(watcher, None)

    def own(self, session: str, lost: LoopCall) -> None:
        """Call ``lost`` when the session has ended."""
        with self._mutex:
            self._owners[session] = lost
        self.inbox.wake()

    def disown(self, session: str) -> None:
        with self._mutex:
            self._owners.pop(session, None)

    async def stop(self) -> None:
        """Stop the thread, and wait until it has released everything."""
        done = asyncio.Event()
        with self._mutex:
            if self.inbox.closed is not None:
                return
            self._stopped = [*(self._stopped or ()), (asyncio.get_running_loop(), done.set)]
        self.inbox.wake()
        await done.wait()

    # The thread

    def _run(self) -> None:
        try:
            self._open()
            while self._stopped is None:
                self._turn()
            why: RendezvousError = closed_error("file")
        except (OSError, RendezvousError) as error:
            why = explain(self.directory.path, "use", error)
        except Exception as error:
            logger.exception("%s: the thread of the file backend failed", self.directory.path)
            why = RendezvousConnectionError(f"the file backend of {self.directory.path} failed: {error!r}")
        self.failure = why
        with self._mutex:
            jobs = self.inbox.close(why) + self._to_lock
            stopped = self._stopped or []
        for job in jobs:
            self._outbox.answer(job, None, why)
        self._wake_everyone()
        self._close()
        for call in stopped:
            self._outbox.add(call)
        self._outbox.send()
        if self._inotify is not None:
            self._inotify.close()  # Slow in the kernel, so done last.

    def _open(self) -> None:
        directory = self.directory
        lives = Lives(directory.subdirectory("sessions"), directory.mode, is_local=directory.is_local)
        self._parts.append(lives)
        self._poll, self._deaf_poll = select.poll(), select.poll()
        for poll in (self._poll, self._deaf_poll):
            poll.register(self.inbox.fd, select.POLLIN)
        if self.options.inotify and (inotify := open_inotify()) is not None:
            self._inotify = inotify
            self._poll.register(inotify.fd, select.POLLIN)
            self._of_sessions = inotify.add(lives.directory, CLOSE_WRITE)
        lock = FileLock.open("lock", directory.fd, directory.mode)
        self._lock = PatientLock(lock, self.inbox.wake)
        self._parts.append(self._lock)
        self.ledger = Ledger(directory, lives, lock, fsync=self.options.fsync)
        self._parts.append(self.ledger)

    def forget(self, why: RendezvousError) -> None:
        """Release everything in a forked child, which has none of the threads and shares all files."""
        self._mutex = threading.Lock()
        self.failure = why
        self.inbox.forget(why)
        for part in self._parts:
            if isinstance(part, PatientLock):
                part.abandon()
        self._close()
        if self._inotify is not None:
            self._inotify.close()

    def _close(self) -> None:
        for part in self._parts:
            part.close()
        self._parts.clear()
        self.directory.close()

    def _turn(self) -> None:
        ready = self._wait()
        self._subscribe()
        free: list[ThreadJob] = []
        for job in self.inbox.take():
            (self._to_lock if job.locked else free).append(job)
        is_noticed, dying = False, set[str]()
        if self._inotify is not None and self._inotify.fd in ready:
            is_noticed, dying = self._notices()
        is_fresh = False
        if self._to_lock and self._get_lock():
            try:
                is_fresh = self._write()
            finally:
                self.ledger.let_go()
                self._lock.release()
        if free or is_noticed or time.monotonic() >= self._check_at:
            self._read(free, is_fresh=is_fresh)
        if dying:
            looks = {session: self.ledger.lives.look(session) for session in dying}
            self._end({session: look for session, look in looks.items() if look.is_dead})
        self._announce()
        self._outbox.send()

    def _wait(self) -> list[int]:
        """Wait for jobs, inotify events or the next check; shortly after events, ignore further ones."""
        now = time.monotonic()
        until, poll = self._check_at, self._poll
        if now < self._listen_at:
            until, poll = min(until, self._listen_at), self._deaf_poll
        return [fd for fd, _ in poll.poll(max(0.0, until - now) * 1000)]

    def _subscribe(self) -> None:
        """Use inotify on the log only while there are watchers; otherwise it would wake the thread for nothing."""
        if self._inotify is None:
            return
        if self._everyone and self._of_log is None:
            self._of_log = self._inotify.add(self.directory.fd, MODIFY | MOVED_TO)
        elif not self._everyone and self._of_log is not None:
            self._inotify.remove(self._of_log)
            self._of_log = None

    def _notices(self) -> tuple[bool, set[str]]:
        """Read inotify events; return whether the log has changed, and the sessions whose files were closed."""
        assert self._inotify is not None
        self._listen_at = time.monotonic() + min(BREATH + BREATH_PER_SESSION * self.ledger.table.sessions, MAX_BREATH)
        is_noticed, dying = False, set()
        for mark, name in self._inotify.read():
            if mark == self._of_sessions:
                dying.add(name)
            else:
                is_noticed = is_noticed or name in ("log", "")
        return is_noticed, dying

    def _get_lock(self) -> bool:
        try:
            return self._lock.get()
        except OSError as error:
            for job in self._to_lock:
                self._outbox.answer(job, None, explain(self.directory.path, "lock", error))
            self._to_lock.clear()
            return False

    def _write(self) -> bool:
        """Do the jobs that need the lock, which is held; return whether the table is up to date."""
        batch, self._to_lock = self._to_lock[:MAX_BATCH], self._to_lock[MAX_BATCH:]
        if self._to_lock:
            self.inbox.wake()
        batch = [job for job in batch if not job.abandoned]
        try:
            self._note(self.ledger.settle)
            outcomes = self.ledger.write([job.work for job in batch])
        except HeldByAnother:
            self._to_lock = batch + self._to_lock
            self._check_at = min(self._check_at, time.monotonic() + QUICKEST_CHECK)
            return False
        except RendezvousError as error:
            self._fail(error)
            for job in batch:
                self._outbox.answer(job, None, error)
            self._wake_everyone()
            return False
        for job, (value, problem) in zip(batch, outcomes, strict=True):
            self._outbox.answer(job, value, problem)
        if self.ledger.is_long:
            self._announce()
            self._outbox.send()
            self.ledger.compact()
        return True

    def _read(self, jobs: list[ThreadJob], *, is_fresh: bool) -> None:
        """Do the jobs that need no lock, and the check if it is due."""
        now = time.monotonic()
        try:
            if not is_fresh:
                self._note(self.ledger.follow)
        except RendezvousError as error:
            self._fail(error)
            self._check_at = now + self.options.check
            for job in jobs:
                self._outbox.answer(job, None, error)
            return
        self.checked_at = now
        if self.failure is not None and not self.ledger.unread:
            self.failure = None
            self._wake_everyone()
        for job in jobs:
            self._do(job)
        self._check_at = min(self._check_at, now + self._interval(now))
        if now >= self._check_at or self.ledger.table.sessions != self._observed:
            self._check(now)

    def _do(self, job: ThreadJob) -> None:
        if job.abandoned:
            return
        try:
            self._outbox.answer(job, job.work(None))
        except NeedsLock:
            job.locked = True
            self.inbox.put(job)
        except (OSError, RendezvousError) as error:
            self._outbox.answer(job, None, explain(self.directory.path, "use", error))

    def _note(self, follow: Callable[[], bool]) -> None:
        revision = self.ledger.table.revision
        if follow():
            self._wake_everyone()
        if self.ledger.table.revision != revision:
            self._changed_at = time.monotonic()
            self._check_at = min(self._check_at, self._changed_at + self._interval(self._changed_at))

    # Checks

    def _check(self, now: float) -> None:
        """Check the sessions that are due and the end of the log; schedule the next check."""
        table = self.ledger.table
        self._observed = table.sessions
        over, again = self._observer.observe(table.open_sessions(), self.ledger.lives.look, now)
        self._end(over)
        unread = self.ledger.unread
        if not unread:
            self._unfinished = None
        elif self._unfinished is None or self._unfinished[0] != unread:
            self._unfinished = (unread, now)
        elif now - self._unfinished[1] > UNFINISHED:
            self._unfinished = None
            self.inbox.put(ThreadJob(lambda _: None, locked=True))
        self._check_at = min(now + self._interval(now), max(again, now + QUICKEST_CHECK))

    def _interval(self, now: float) -> float:
        if not self._everyone or (self._of_log is not None and self.directory.is_local):
            return CALM_CHECK
        return max(QUICKEST_CHECK, min(EAGERNESS * (now - self._changed_at), self.options.check))

    def _end(self, over: dict[str, Look]) -> None:
        over = {session: look for session, look in over.items() if self.ledger.table.has_session(session)}
        if over:

            def end(change: LedgerChange) -> None:
                self.ledger.end_silent(change, over)

            self.inbox.put(ThreadJob(end, locked=True))

    def _fail(self, error: RendezvousError) -> None:
        """Record a permanent error, and wake the watches so that they fail too."""
        if not isinstance(error, RendezvousConnectionError) or self.directory.is_removed:
            is_new = self.failure is None
            self.failure = error
            if is_new:
                self._wake_everyone()

    def _announce(self) -> None:
        """Notify the watchers of changes, and the owners of sessions that have ended."""
        table = self.ledger.table
        changed = table.take_changed()
        with self._mutex:
            if changed:
                for call in self._watchers.concerned(changed):
                    self._outbox.add(call)
            ended = [session for session in self._owners if not table.has_session(session)]
            for session in ended:
                self._outbox.add(self._owners.pop(session))
        for session in ended:
            self.ledger.lives.let_go(session)

    def _wake_everyone(self) -> None:
        with self._mutex:
            for call in self._everyone:
                self._outbox.add(call)
