"""The rendezvous as a user holds it: join, leave, close.

``join`` runs in the user's task and only waits: the session, the watch and the coordinator are tasks of the
rendezvous's ``Owner``, which also cleans up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

import anyio

from rendezvous_async import clock
from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.outage import Outage
from rendezvous_async.clock import answer_within
from rendezvous_async.control import close_run, evict_node, read_status
from rendezvous_async.core.diagnosis import Status
from rendezvous_async.core.rules import Change, Joined, Mismatch, Pending, Shut, admit
from rendezvous_async.core.state import LIFE_LENGTH, STATE, Last, Node
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousSessionError,
    RendezvousTimeoutError,
)
from rendezvous_async.events import Event, EventKind
from rendezvous_async.membership import Membership
from rendezvous_async.owner import Owner
from rendezvous_async.participant import Participant
from rendezvous_async.settings import Endpoint
from rendezvous_async.world import World

__all__ = ["Rendezvous", "Worlds"]

_log = logging.getLogger("rendezvous_async.node")

FIRST_RETRY = 0.05
LAST_RETRY = 1.0
MAX_TROUBLES = 5


class Rendezvous:
    """A node's place in a run; made by ``connect``, used as an async context manager.

    Attributes:
        run_id: Which run.
        node: This node's id.
        settings: What this node wants the run to be.
        world: The world of the last ``join()``; None before the first.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint | None,
        options: dict[str, Any],
        backend: Backend | None,
        run_id: str,
        who: Participant,
        identity: Node,
    ) -> None:
        self.run_id = run_id
        self.node = who.node
        self.settings = who.settings
        self.world: World | None = None
        self._endpoint = endpoint
        self._options = options
        self._backend = backend
        self._who = who
        self._identity = identity
        self._outage = Outage(f"run {run_id!r}: node {who.node}", endpoint or "the backend")
        self._joining = False
        self._until = math.inf
        self._record: Node | None = None
        self._life = ""
        self._was_here = False
        self._reported: Change | None = None
        self._lost: Membership | None = None
        self._owner: Owner | None = None

    def __repr__(self) -> str:
        if self._owner is None or self._owner.is_stopping:
            state = "not entered" if self._owner is None else "left"
        else:
            state = "not joined" if self.world is None else repr(self.world)
        return f"<Rendezvous run={self.run_id!r} node={self.node!r} {state}>"

    async def __aenter__(self) -> Rendezvous:
        if self._owner is not None:
            raise RuntimeError(f"{self!r} can be entered only once; call connect() again")
        clock.check_asyncio()
        self._owner = Owner(
            f"run {self.run_id!r}: node {self.node}",
            self._who.timeouts,
            self._open_backend,
            self._backend,
            self._open_membership,
            self._who.events.end,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._owner is not None
        await self._owner.stop()

    # What a user calls

    async def join(self) -> World:
        """Arrive at the barrier and wait until a round has formed with this node in it.

        A member that calls it again returns to the barrier: its round ends for it, and it is in the next one. If the
        session is lost meanwhile, it arrives again, within the same time.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousGracefulExitError: The same, while this node was a spare.
            RendezvousTimeoutError: No round formed within ``timeouts.join``; the text says who is missing.
            RendezvousSettingsError: The run has other settings, and they hold.
            RendezvousDisplacedError: Another live node has joined with this node's id.
            RendezvousConnectionError: The backend will not have this node: wrong secret, wrong certificate.
        """
        owner = await self._entered()
        if self._joining:
            raise RuntimeError(f"{self!r}: join() is already under way")
        self._joining = True
        _log.info("run %r: node %s is joining", self.run_id, self.node)
        world: World | None = None
        try:
            world = await self._join(owner)
            self.world, self._reported = world, None
            self._who.events.emit(EventKind.JOINED, world.round, f"rank {world.rank} of {world.size}")
            return world
        finally:
            self._joining = False
            if world is None:
                await owner.see_through(owner.end_membership)

    def worlds(self) -> Worlds:
        """Return the worlds of this node, one after another, for ``async for``: a job's own loop.

        Each turn is a ``join()``, with its errors; a run that is closed ends the loop, for members and spares alike. To
        ask for the next world while the last one still holds is to return to the barrier. After a ``break`` or an
        exception this node is still in its world: ``leave()``, or leave the rendezvous.
        """
        return Worlds(self)

    async def leave(self) -> None:
        """Leave the run: at once for the others, who count this node as lost. ``join()`` may follow."""
        owner = await self._entered()
        if self._joining:
            raise RuntimeError(f"{self!r}: join() is under way; cancel it instead of leaving")
        await owner.see_through(owner.end_membership)
        self._who.events.emit(EventKind.LEFT, 0 if self.world is None else self.world.round)

    async def close(self, reason: str = "") -> None:
        """Close the run, for everyone and for good; it is no error if it is closed already.

        Raises:
            RendezvousConnectionError: The backend did not answer within ``timeouts.close``.
        """
        owner = await self._entered()
        self._who.events.emit(EventKind.CLOSING, detail=reason)
        with answer_within(self._who.timeouts.close, f"close run {self.run_id!r}"):
            backend = await owner.open_backend()
            await close_run(backend, reason, self.node, self.settings)
            state = await backend.get(STATE)
        if state is not None and owner.membership is not None:
            owner.membership.view.hear([state])  # Who closes it must not see its world go on till the push arrives.

    async def evict(self, node: str) -> bool:
        """Throw another node out; it learns that it is out, and may join again. False if it is not here."""
        owner = await self._entered()
        with answer_within(self._who.timeouts.close, f"evict node {node!r}"):
            return await evict_node(await owner.open_backend(), node)

    async def status(self) -> Status:
        """Read how the run stands; ``str()`` of it explains itself."""
        owner = await self._entered()
        with answer_within(self._who.timeouts.close, f"read the status of run {self.run_id!r}"):
            return await read_status(await owner.open_backend())

    def events(self) -> AsyncIterator[Event]:
        """Return what happens to this node from now on, until the rendezvous is left."""
        return self._who.events.read()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Let ``listener`` be called with each event in the very moment that it happens; an error is logged."""
        self._who.events.listen(listener)

    # Joining

    async def _join(self, owner: Owner) -> World:
        """Join, each step bounded by ``self._until``: a cancel scope around them costs more than any of them."""
        self._record = None
        self._until = clock.now() + self._who.timeouts.join
        delay = FIRST_RETRY
        troubles: dict[str, None] = {}  # Each once, in the order of their last occurrence.
        while True:
            try:
                membership = await owner.live_membership(self._until)
                record = self._record = self._record or self._fresh_record()
                self._report(membership)  # The first news may have come with the session.
                await membership.arrive(record, self._until)
                self._outage.ended()
                self._was_here = True
                world = await self._await_seat(owner, membership, record)
                if world is None:
                    raise await self._timed_out(owner, troubles)
                return world
            except RendezvousSessionError as error:
                trouble = str(error)
            except RendezvousConnectionError as error:
                if error.final:
                    raise
                trouble = str(error)
                self._outage.failed(self._outage.cause or trouble)
            troubles.pop(trouble, None)
            troubles[trouble] = None
            if len(troubles) > MAX_TROUBLES:
                del troubles[next(iter(troubles))]
            now = clock.now()
            if self._until == math.inf:  # A spare that sees nothing cannot know that the world is full.
                self._until = now + self._who.timeouts.join
            await anyio.sleep(max(0.0, min(delay * (0.5 + self._who.rng.random()), self._until - now)))
            if clock.now() >= self._until:
                raise await self._timed_out(owner, troubles)
            delay = min(2 * delay, LAST_RETRY)

    async def _await_seat(self, owner: Owner, membership: Membership, record: Node) -> World | None:
        """Wait until the head names an attempt that gave this arrival a seat; a spare's join clock stands still.

        Returns:
            None if that takes too long.
        """
        view = membership.view
        while True:
            membership.check()
            match admit(view.head, view.seat, record.arrival, self.settings, record.last):
                case Joined() as joined:
                    assert view.seat is not None
                    assert owner.backend is not None
                    return World(owner.backend, membership, self.node, joined, view.seat.attempt)
                case Shut(closed, spare):
                    kind = RendezvousGracefulExitError if spare else RendezvousClosedError
                    raise kind(closed.reason, closed.by, run_id=self.run_id)
                case Mismatch():
                    await membership.arrive(record, self._until)  # Until it is settled whose settings hold.
                    continue
                case Pending(spare):
                    if spare:
                        self._until = math.inf
                    elif self._until == math.inf:
                        self._until = clock.now() + self._who.timeouts.join
            # It also fires when the membership is over, by its own clock too.
            if not await view.changed.wait(None if self._until == math.inf else self._until - clock.now()):
                return None

    def _fresh_record(self) -> Node:
        last = None if self.world is None else Last(self.world.round, self.world.rank)
        identity = self._identity
        fresh = self._who.fresh_id()
        self._life = self._life or fresh[:LIFE_LENGTH]
        return Node(
            arrival=self._life + fresh[LIFE_LENGTH:],
            fingerprint=identity.fingerprint,
            last=last,
            address=identity.address,
            labels=identity.labels,
        )

    async def _timed_out(self, owner: Owner, troubles: Iterable[str]) -> RendezvousTimeoutError:
        """Return the error of a join that took too long, with what can be found out about why."""
        message = f"run {self.run_id!r}: no round with node {self.node} formed within {self._who.timeouts.join:g} s"
        if self._outage.cause:
            return RendezvousTimeoutError(f"{message}\n  {self._outage}")
        status: Status | None = None
        if owner.backend is not None:
            try:
                with answer_within(self._who.timeouts.heartbeat, "read the status"):
                    status = await read_status(owner.backend)
            except RendezvousError as error:
                troubles = (*troubles, str(error))
        return RendezvousTimeoutError("\n  ".join([message, *troubles]), status)

    # For the owner

    async def _open_backend(self) -> Backend:
        assert self._endpoint is not None
        return await start_backend(self._endpoint, self.run_id, outage=self._outage, **self._options)

    async def _open_membership(self, backend: Backend) -> Membership:
        assert self._owner is not None
        self._record = self._fresh_record()  # A new session is a new arrival.
        membership = await Membership.open(
            backend, self._who, self._owner.start, self._record, self._until, self._was_here
        )
        _log.debug("run %r: node %s opened session %s", self.run_id, self.node, membership.session.id)
        membership.view.changed.call(partial(self._report, membership))
        return membership

    def _report(self, membership: Membership) -> None:
        """Tell of what has happened to the world. At the barrier this node has none, and only a close is news."""
        if self._owner is None or self._owner.membership is not membership:
            return
        head = membership.view.head
        world = None if self._joining else self.world
        if head is not None and head.closed is not None:
            change: Change | None = Change.CLOSED
        else:
            change = None if world is None else world.change
        if change is not None and change is not self._reported:
            self._who.events.emit(EventKind(change.value), 0 if world is None else world.round)
            self._reported = change
        if membership.error is not None and membership is not self._lost:
            self._lost = membership
            self._who.events.emit(EventKind.SESSION_LOST, detail=str(membership.error))

    async def _entered(self) -> Owner:
        if self._owner is None or self._owner.is_stopping:
            raise RuntimeError(f"{self!r}: use it inside its 'async with' block")
        await self._owner.started()
        return self._owner


class Worlds(AsyncIterator[World]):
    """The worlds of a node, each by a ``join()`` of its own, until the run is closed. There is nothing to clean up."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous

    def __repr__(self) -> str:
        return f"<Worlds of {self._rendezvous!r}>"

    async def __anext__(self) -> World:
        try:
            return await self._rendezvous.join()
        except RendezvousClosedError as closed:
            raise StopAsyncIteration from closed
