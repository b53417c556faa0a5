"""One process's copy of the value, and the one task that reads and replaces it.

Calls are gathered. Those that come while the store is busy are made on one draft of the next value, which replaces the
last one in one compare-and-set (group commit). If another process was faster, the answer has its value, and the same
calls are made again on that. Calls that change nothing are answered once a read that was sent after them has confirmed
the value that they were made on.

A write without an answer is sent again unchanged: the token lets it happen only once, and its mark in the value shows
that it did. The same task reads the value now and then, pushes what has changed, and ends sessions of silent owners.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.aio.signal import Latch, Notice
from rendezvous_async.backends.cas.calls import CasCall, may_recover, new_epoch, too_large, wanted
from rendezvous_async.backends.cas.image import Draft, Image
from rendezvous_async.backends.cas.pace import QUICKEST, Pace
from rendezvous_async.backends.cas.value import FencedValue
from rendezvous_async.backends.driver import closed_error
from rendezvous_async.backends.observer import Observer
from rendezvous_async.backends.outage import Outage
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError

__all__ = ["Replica"]

logger = logging.getLogger("rendezvous_async.cas")

MAX_BATCH = 1024
MAX_FAILURES = 16
MARK_SIZE = 8
OBSERVE_EVERY = 0.1
"""Lower bound on the time between two reads to observe sessions, as a fraction of the shortest TTL."""
END_WITHIN = 0.05
"""Upper bound on the random delay before a silent session is ended: all observers notice it at the same moment."""

T = TypeVar("T")


class Replica:
    """The copy, and its task.

    Args:
        value: The store.
        rng: The source of epochs, marks and delays.
        outage: Where it is reported that the store does not answer.
        limit: Upper bound on the bytes of the value.
        timeout: Seconds after which a call without an answer fails.
        call_timeout: Seconds after which a call to the store counts as failed.

    Attributes:
        failure: What is wrong with the value, as long as something is.
        begun: The number of calls to the store so far.
        seen: The number of the last call whose answer is in the image.
        checked_at: When that call was sent.
    """

    def __init__(
        self, value: FencedValue, rng: Random, outage: Outage, *, limit: int, timeout: float, call_timeout: float
    ) -> None:
        self.failure: RendezvousError | None = None
        self.begun = self.seen = 0
        self.checked_at = -math.inf
        self._value = value
        self._rng = rng
        self._outage = outage
        self._log = logging.LoggerAdapter(logger, outage.fields)
        self._limit = limit
        self._timeout = timeout
        self._call_timeout = call_timeout
        self._pace = Pace(rng)
        self._observer = Observer()
        self._image = Image.empty(new_epoch(rng))
        self._token: Any = None
        self._changed_at, self._check_at = -math.inf, math.inf
        self._calls: list[CasCall] = []
        self._watchers: dict[Callable[[], None], None] = {}
        self._owned: dict[str, Latch] = {}
        self._ending: CasCall | None = None
        self._is_answered = False
        self._to_see = 0
        self._woken = Notice()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Replica of {self._value.name} {self._image!r}>"

    @property
    def image(self) -> Image:
        """The value as last seen."""
        return self._image

    # For the driver

    async def call(
        self,
        work: Callable[[Draft], T],
        *,
        writes: bool = True,
        within: float = 0.0,
        undo: Callable[..., None] | None = None,
    ) -> T:
        """Do some work on the value; return its result once it counts.

        Args:
            work: Done on a draft, perhaps several times.
            writes: Whether it may change something.
            within: Seconds for which it may wait to share a write with other calls.
            undo: Undoes the result on a later draft if the work was done after its caller had given up.

        Raises:
            RendezvousConnectionError: No answer in time.
        """
        if self._is_closed:
            raise closed_error(self._value.name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._start()
        self._calls.append(CasCall(work, clock.now() + within, writes=writes, future=future, undo=undo))
        self._woken.fire()
        timer = loop.call_later(self._timeout, self._give_up, future)
        try:
            return await future
        finally:
            timer.cancel()

    def add_watcher(self, look: Callable[[], None]) -> int:
        """Call ``look`` after each read of the value; return the number of the first read that is recent enough."""
        self._start()
        self._watchers[look] = None
        self._to_see = self.begun + 1
        self._check_at = -math.inf
        self._woken.fire()
        return self._to_see

    def remove_watcher(self, look: Callable[[], None]) -> None:
        self._watchers.pop(look, None)

    def own(self, session: str, lost: Latch) -> None:
        """Set ``lost`` when the session has ended."""
        self._owned[session] = lost

    def disown(self, session: str) -> None:
        self._owned.pop(session, None)

    async def aclose(self) -> None:
        """Stop the task; pending calls fail."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._value.aclose()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"{self!r}")  # noqa: TID251 - its owner; see aclose()

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            why = self._outage.cause or "it is slow, or too many write to it"
            future.set_exception(
                RendezvousConnectionError(f"no answer from {self._value.name} in {self._timeout:g} s: {why}")
            )

    # The task

    async def _run(self) -> None:
        calls: list[CasCall] = []
        why: RendezvousError = closed_error(self._value.name)
        try:
            while True:
                calls = await self._next_calls()
                try:
                    await self._make(calls)
                except RendezvousError as error:
                    self._refuse(calls, error)
                self._look_after()
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
        except Exception as error:
            self._log.exception("the task of the %s backend failed", self._value.name)
            why = RendezvousConnectionError(f"the {self._value.name} backend failed: {error!r}")
        finally:
            self._is_closed = True
            self.failure = why
            for call in (*calls, *self._calls):
                call.fail(why)
            self._tell_watchers()

    async def _next_calls(self) -> list[CasCall]:
        """Wait until a call is due and return all pending calls, or until the next read is due and return none."""
        while True:
            now, due = clock.now(), min([call.due for call in self._calls], default=math.inf)
            if due <= now:
                return self._take()
            if self._check_at <= now:
                return []
            left = min(due, self._check_at) - now
            await self._woken.wait(None if left == math.inf else left)

    def _take(self) -> list[CasCall]:
        taken, self._calls = self._calls[:MAX_BATCH], self._calls[MAX_BATCH:]
        return taken

    async def _make(self, calls: list[CasCall]) -> None:
        """Make calls together, with those that come while they lose; without any calls, read the value.

        Raises:
            RendezvousError: The value is damaged, or the fate of the calls is unknown.
        """
        is_fresh = not any(call.writes for call in calls) and await self._read(calls)
        lost = 0
        while is_fresh or wanted(calls):
            draft = Draft(self._image)
            made = wanted(calls)
            for call in made:
                call.make(draft)
            if draft.is_changed:
                image = draft.image(self._rng.randbytes(MARK_SIZE))
                if made and len(image.data) > self._limit and len(image.snapshot) > len(self._image.snapshot):
                    return await self._make_apart(made, len(image.data))
                if await self._write(image, made):
                    return self._settle(made)
                is_fresh, lost = self._is_answered, lost + 1
                await asyncio.sleep(self._pace.backoff(lost))
                if self._calls and len(calls) < MAX_BATCH:
                    calls += self._take()
                    is_fresh = False
            else:
                draft.drop()
                if is_fresh:
                    return self._settle(made)
                is_fresh = await self._read(calls)
        return None

    async def _make_apart(self, calls: list[CasCall], size: int) -> None:
        """Make calls that are too large together one by one; refuse one that is too large alone."""
        if len(calls) > 1:
            for call in calls:
                await self._make([call])
        else:
            calls[0].fail(too_large(self._value.name, size, self._limit))

    def _settle(self, calls: list[CasCall]) -> None:
        """Answer calls that were made; undo those that no task waits for."""
        for call in calls:
            if call.is_wanted:
                call.answer()
            elif call.undo is not None and call.error is None:
                self._calls.append(CasCall(partial(call.undo, result=call.result), clock.now()))

    def _refuse(self, calls: list[CasCall], error: RendezvousError) -> None:
        """Fail calls; watches fail too, unless a retry may help."""
        for call in calls:
            call.fail(error)
        if not may_recover(error):
            self.failure = error
            self._is_answered = False
            self._tell_watchers()

    # The store

    async def _read(self, calls: list[CasCall]) -> bool:
        """Read the value; False if there was no answer, and no call waits for one any more."""
        began = clock.now()
        found, is_answered, _ = await self._ask(self._value.read, calls)
        if is_answered:
            self._see(found, began)
        return is_answered

    async def _write(self, image: Image, calls: list[CasCall]) -> bool:
        """Replace the last image; False if the store holds another one instead.

        Raises:
            RendezvousConnectionError: It may or may not have been written.
        """
        began = clock.now()
        answer, is_answered, failures = await self._ask(partial(self._value.write, image.data, self._token), calls)
        if not is_answered:
            self._undo_if_made(image, calls)
            return False
        if answer is not None and answer[2]:
            self._take_over(image, answer[1], began)
            return True
        self._see(None if answer is None else answer[:2], began)
        if self._image.epoch != image.epoch:
            return False
        is_made = self._image.has_mark(image.number, image.mark)
        if is_made is None and failures:
            raise RendezvousConnectionError(
                f"{self._value.name} did not answer for so long that nobody knows whether it took a write"
            )
        return bool(is_made)

    def _undo_if_made(self, image: Image, calls: list[CasCall]) -> None:
        """Undo a write without an answer if it turns out to have been made."""
        undone = [partial(call.undo, result=call.result) for call in calls if call.undo and call.error is None]

        def undo(draft: Draft) -> None:
            if draft.base.has_mark(image.number, image.mark):
                for each in undone:
                    each(draft)

        if undone:
            self._calls.append(CasCall(undo, clock.now()))

    async def _ask(self, ask: Callable[[], Awaitable[T]], calls: list[CasCall]) -> tuple[T | None, bool, int]:
        """Call the store until it answers, or no call waits for the answer any more.

        Returns:
            The answer, whether there is one, and the number of unanswered calls.
        """
        failures = 0
        while True:
            self.begun += 1
            began = clock.now()
            try:
                with answer_within(self._call_timeout, f"a call to {self._value.name}"):
                    answer = await ask()
            except Exception as error:
                if isinstance(error, RendezvousError) and not may_recover(error):
                    raise
                self._is_answered = False
                self._outage.failed(str(error) if isinstance(error, RendezvousError) else repr(error))
            else:
                self._is_answered = True
                self._pace.took(clock.now() - began)
                self._outage.ended()
                return answer, True, failures
            failures += 1
            await asyncio.sleep(self._pace.after_failures(failures))
            if not wanted(calls):
                return None, False, failures

    def _see(self, found: tuple[bytes, Any] | None, began: float) -> None:
        """Take over what the store holds.

        If the value is gone or has gone back to an earlier one, a new history begins, with another epoch, as soon as it
        is written. If only a stale copy was read, that write loses.
        """
        known = self._image
        if found is None:
            self._image = Image.empty(new_epoch(self._rng)) if known.is_written else known
            self._token = None
            return
        data, token = found
        image = known if data == known.data else Image.decode(data, known)
        if image.epoch == known.epoch and image.number < known.number:
            self._log.warning("%s went back from write %d to %d", self._value.name, known.number, image.number)
            self._image, self._token = image.renamed(new_epoch(self._rng), known.number), token
        else:
            self._take_over(image, token, began)

    def _take_over(self, image: Image, token: Any, began: float) -> None:
        if image.snapshot != self._image.snapshot:
            self._changed_at = clock.now()
        self._image, self._token = image, token
        self.failure = None
        self.seen, self.checked_at = self.begun, began
        for session in [each for each in self._owned if each not in image.beats]:
            self._owned.pop(session).set()
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        for look in tuple(self._watchers):
            look()

    def _look_after(self) -> None:
        """Observe the sessions, and decide when to read the value again."""
        now = clock.now()
        pause = self._pace.pause(now - self._changed_at, len(self._image.beats))
        again = now + pause if self._watchers else math.inf
        if not self._is_answered:
            again = now + self._pace.after_failures(MAX_FAILURES)
        elif self._image.is_written:
            sessions = self._image.table.open_sessions()
            over, observe_at = self._observer.observe(sessions, self._image.look, now)
            if sessions:  # In groups: each session has its own turn.
                again = min(again, max(observe_at, now + OBSERVE_EVERY * min([ttl for _, ttl in sessions])))
            if over and self._ending not in self._calls:
                self._log.info("%s: ending silent sessions: %s", self._value.name, ", ".join(over))
                due = now + END_WITHIN * self._rng.random()
                self._ending = CasCall(lambda draft: draft.end_silent(over), due)
                self._calls.append(self._ending)
        self._check_at = now if self.seen < self._to_see else max(again, now + QUICKEST)
