"""The rendezvous as a user holds it: join, leave, close.

``join`` runs in the user's task and only waits: the session, the watch and the coordinator are tasks of the
``Supervisor``, which also cleans up.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import AsyncIterator, Iterable
from functools import partial
from types import TracebackType

import anyio

from rendezvous_async import admin
from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline, answer_within
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.options import BackendOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.core.diagnosis import Status
from rendezvous_async.core.history import HistoryRecord
from rendezvous_async.core.rules import Change, Joined, Mismatch, Pending, Shut, admit
from rendezvous_async.core.spec import Spec
from rendezvous_async.core.state import LIFE_LENGTH, STATE, Last, Node
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousSessionError,
    RendezvousTimeoutError,
)
from rendezvous_async.logs import ROUND
from rendezvous_async.node.events import Event, EventKind, Listener
from rendezvous_async.node.membership import Membership
from rendezvous_async.node.participant import Participant
from rendezvous_async.node.supervisor import Supervisor
from rendezvous_async.node.world import World
from rendezvous_async.settings import Endpoint, Settings
from rendezvous_async.texts import quoted

__all__ = ["Rendezvous", "Worlds"]

_log = logging.getLogger("rendezvous_async.node")

FIRST_RETRY = 0.05
LAST_RETRY = 1.0
MAX_TROUBLES = 5


class Rendezvous:
    """A node's place in a run; made by ``connect``, used as an async context manager.

    Attributes:
        run_id: The run's id.
        node: This node's id.
        settings: What this node brings. What holds now may have been changed by ``scale()``: see ``status()``.
        world: The world of the last ``join()``; None before the first.
    """

    def __init__(
        self, run_id: str, source: Endpoint | Backend, options: BackendOptions | None, who: Participant, identity: Node
    ) -> None:
        self.run_id = run_id
        self.node: str = who.node
        self.settings: Settings = who.settings
        self.world: World | None = None
        self._source = source
        self._options = options
        self._who = who
        self._identity = identity
        self._outage = Outage(
            f"run {run_id!r}: node {who.node}",
            source if isinstance(source, Endpoint) else "the backend",
            fields=who.fields,
        )
        self._joining = False
        self._life = ""
        self._reported: Change | None = None
        self._lost: Membership | None = None
        self._supervisor: Supervisor | None = None

    def __repr__(self) -> str:
        if self._supervisor is None or self._supervisor.is_stopping:
            state = "not entered" if self._supervisor is None else "left"
        else:
            state = "not joined" if self.world is None else repr(self.world)
        return f"<Rendezvous run={self.run_id!r} node={self.node!r} {state}>"

    async def __aenter__(self) -> Rendezvous:
        if self._supervisor is not None:
            raise RuntimeError(f"{self!r} can be entered only once; call connect() again")
        clock.check_asyncio()
        if "opentelemetry.trace" in sys.modules:  # Only a program that has imported it can want spans.
            from rendezvous_async.telemetry.spans import NodeSpans

            self.listen(NodeSpans(self.run_id, self.node))
        domain = self.settings.domain
        if domain and domain not in self._identity.labels:
            _log.warning(
                "run %r: node %s has no label %r, which names its domain, so it can only be a spare: give it one with "
                "labels= (rdzv launch --label, option label_%s)",
                *(self.run_id, self.node, domain, domain),
                extra=self._who.fields,
            )
        self._supervisor = Supervisor(self._who, self.run_id, self._source, self._options, self._outage)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._supervisor is not None
        await self._supervisor.stop()

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
        supervisor = await self._entered()
        if self._joining:
            raise RuntimeError(f"{self!r}: join() is already under way")
        self._joining = True
        _log.info("run %r: node %s is joining", self.run_id, self.node, extra=self._who.fields)
        self._who.events.emit(EventKind.JOINING, 0 if self.world is None else self.world.round)
        world: World | None = None
        why = "cancelled"
        try:
            world = await self._join(supervisor)
            self.world, self._reported, self._who.fields[ROUND] = world, None, world.round
            self._who.events.emit(EventKind.JOINED, world.round, f"rank {world.rank} of {world.size}")
            return world
        except RendezvousError as error:
            why = str(error)
            raise
        finally:
            self._joining = False
            if world is None:
                self._who.events.emit(EventKind.JOIN_FAILED, detail=why)
                await supervisor.see_through(supervisor.end_membership)

    def worlds(self) -> Worlds:
        """Return the worlds of this node, one after another, for ``async for``: a job's own loop.

        Each turn is a ``join()``, with its errors; a run that is closed ends the loop, for members and spares alike. A
        turn while the last world still holds returns this node to the barrier. After a ``break`` or an exception this
        node is still in its world: call ``leave()``, or leave the rendezvous.
        """
        return Worlds(self)

    async def leave(self) -> None:
        """Leave the run: at once for the others, who count this node as lost. ``join()`` may follow."""
        supervisor = await self._entered()
        if self._joining:
            raise RuntimeError(f"{self!r}: join() is under way; cancel it instead of leaving")
        await supervisor.see_through(supervisor.end_membership)
        self._who.events.emit(EventKind.LEFT, 0 if self.world is None else self.world.round)

    async def close(self, reason: str = "") -> None:
        """Close the run for everyone, finally. A run that is closed already stays as it is.

        Raises:
            ValueError: The reason is no string that can be stored.
            RendezvousConnectionError: The backend did not answer within ``timeouts.close``.
        """
        admin.check_reason(reason)
        supervisor = await self._entered()
        self._who.events.emit(EventKind.CLOSING, detail=reason)
        with answer_within(self._who.timeouts.close, f"close run {self.run_id!r}", supervisor.trouble):
            backend = await supervisor.open_backend()
            await admin.close_run(backend, reason, self.node, self.settings, supervisor.last_change)
            state = await backend.get(STATE)
        if state is not None and supervisor.membership is not None:
            # This node must not see its world go on until the push comes.
            supervisor.membership.view.following.learn([state])

    async def scale(
        self, nodes: int | str | tuple[int, int] | list[int] | None = None, target: int | None = None
    ) -> Spec:
        """Change the sizes that worlds of this run may have, or the target, while it runs; return what holds then.

        Nodes that were started with the old sizes still match. A world that is too large now re-forms
        (``Change.RESIZED``), and its last ranks become spares; one that is too small is kept until a larger can form.
        Nodes of a version that cannot scale are out for good, members too: upgrade them before. A call without an
        answer can be repeated: what holds already is no change.

        Args:
            nodes: The sizes, as ``connect`` takes them; None keeps them. New sizes drop the old target.
            target: The size that no world exceeds; a world of this size forms at once. 0 removes the target.

        Raises:
            ValueError: Neither is given, or no world can have these sizes or that target.
            RendezvousClosedError: The run is closed.
            RendezvousStateError: There is no run: nobody has joined it yet.
            RendezvousConnectionError: The backend did not answer within ``timeouts.close``.
        """
        supervisor = await self._entered()
        with answer_within(self._who.timeouts.close, f"scale run {self.run_id!r}", supervisor.trouble):
            backend = await supervisor.open_backend()
            return await admin.scale_run(backend, nodes, target, self.node, supervisor.last_change)

    async def grow(self) -> int:
        """Let in newcomers that are held back (``Timeouts.grow``), at a checkpoint for example; a no-op without any.

        All members learn ``Change.NODES_WAITING``; one of them is enough to call this.

        Returns:
            How many were held back. Right after ``scale()`` nobody has counted them yet, and it is 0: whoever fits now
            is let in nevertheless.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousStateError: There is no run: nobody has joined it yet.
            RendezvousConnectionError: The backend did not answer within ``timeouts.close``.
        """
        supervisor = await self._entered()
        with answer_within(self._who.timeouts.close, f"grow run {self.run_id!r}", supervisor.trouble):
            return await admin.let_newcomers_in(await supervisor.open_backend())

    async def evict(self, node: str) -> bool:
        """Remove another node; it learns that it is out, and may join again. False if it is not here."""
        supervisor = await self._entered()
        with answer_within(self._who.timeouts.close, f"evict node {quoted(node)}", supervisor.trouble):
            return await admin.evict_node(await supervisor.open_backend(), node)

    async def status(self) -> Status:
        """Read the status of the run; its ``str()`` explains itself."""
        supervisor = await self._entered()
        with answer_within(self._who.timeouts.close, f"read the status of run {self.run_id!r}", supervisor.trouble):
            return await admin.read_status(await supervisor.open_backend())

    async def history(self) -> tuple[HistoryRecord, ...]:
        """Read what happened to the run, the oldest change first: the last 512 changes, also once it is closed."""
        supervisor = await self._entered()
        with answer_within(self._who.timeouts.close, f"read the history of run {self.run_id!r}", supervisor.trouble):
            return await admin.read_history(await supervisor.open_backend())

    def events(self) -> AsyncIterator[Event]:
        """Return what happens to this node from now on, until the rendezvous is left."""
        return self._who.events.read()

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with each event as it happens; an error of the listener is logged."""
        self._who.events.listen(listener)

    # Joining

    async def _join(self, supervisor: Supervisor) -> World:
        """Join, each step bounded by the deadline: a cancel scope around them costs more than any of them."""
        deadline = self._join_clock()
        record: Node | None = None
        delay = FIRST_RETRY
        troubles: dict[str, None] = {}  # Each once, in the order of their last occurrence.
        while True:
            try:
                membership = supervisor.live_membership()
                if membership is None:
                    record = self._fresh_record()
                    membership = await supervisor.open_membership(record, deadline)
                    membership.view.changed.call(partial(self._report, membership))
                elif record is None:
                    record = self._fresh_record()
                self._report(membership)  # The first news may have come with the session.
                await membership.arrive(record, deadline)
                self._outage.ended()
                while not isinstance(admission := self._admission(membership, record), Joined):
                    if isinstance(admission, Mismatch):
                        await membership.arrive(record, deadline)  # Until it is settled whose settings hold.
                        continue
                    deadline = self._join_clock(deadline, spare=admission.spare)
                    # It also fires when the membership is over, by its own clock too.
                    if not await membership.view.changed.wait(deadline.left_or_none):
                        raise await self._timed_out(supervisor, troubles)
                return self._world(supervisor, membership, admission)
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
            deadline = self._join_clock(deadline)  # A spare that sees nothing cannot know that the world is full.
            await anyio.sleep(max(0.0, min(delay * (0.5 + self._who.rng.random()), deadline.left)))
            if deadline.left <= 0:
                raise await self._timed_out(supervisor, troubles)
            delay = min(2 * delay, LAST_RETRY)

    def _join_clock(self, deadline: Deadline | None = None, *, spare: bool = False) -> Deadline:
        """Return the deadline of a join: a spare has none, and gets a new one when a place is free."""
        if spare:
            return Deadline("join", math.inf, math.inf)
        if deadline is None or deadline.at == math.inf:
            return Deadline.after(self._who.timeouts.join, "join")
        return deadline

    def _admission(self, membership: Membership, record: Node) -> Joined | Mismatch | Pending:
        """Return whether this arrival is in: it is once the head names the attempt that gave it a seat.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousError: The membership is over.
        """
        membership.check()
        view = membership.view
        admission = admit(view.head, view.seat, record.arrival, self.settings, record.last)
        if isinstance(admission, Shut):
            kind = RendezvousGracefulExitError if admission.spare else RendezvousClosedError
            raise kind(admission.closed.reason, admission.closed.by, run_id=self.run_id)
        return admission

    def _world(self, supervisor: Supervisor, membership: Membership, joined: Joined) -> World:
        assert supervisor.backend is not None
        assert membership.view.seat is not None
        return World(supervisor.backend, membership, self.node, joined, membership.view.seat.attempt)

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
            stalled=None if self._supervisor is None else round(self._supervisor.stalled, 3) or None,
        )

    async def _timed_out(self, supervisor: Supervisor, troubles: Iterable[str]) -> RendezvousTimeoutError:
        """Return the error of a join that took too long, with what can be found out about why."""
        message = f"run {self.run_id!r}: no round with node {self.node} formed within {self._who.timeouts.join:g} s"
        if self._outage.cause:
            return RendezvousTimeoutError(f"{message}\n  {self._outage}")
        status: Status | None = None
        if supervisor.backend is not None:
            try:
                with answer_within(self._who.timeouts.heartbeat, "read the status", supervisor.trouble):
                    status = await admin.read_status(supervisor.backend)
            except RendezvousError as error:
                troubles = (*troubles, str(error))
        return RendezvousTimeoutError("\n  ".join([message, *troubles]), status)

    def _report(self, membership: Membership) -> None:
        """Report what has happened to the world. At the barrier this node has none, and only a close is news."""
        if self._supervisor is None or self._supervisor.membership is not membership:
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

    async def _entered(self) -> Supervisor:
        if self._supervisor is None or self._supervisor.is_stopping:
            raise RuntimeError(f"{self!r}: use it inside its 'async with' block")
        await self._supervisor.started()
        return self._supervisor


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
