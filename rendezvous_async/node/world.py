"""A world: one round as a member sees it, and how it learns that the round is over."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import NamedTuple

import anyio

from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.aio.signal import Notice
from rendezvous_async.backends.base import Backend, Token
from rendezvous_async.core.codec import decode
from rendezvous_async.core.rules import Change, Joined, change_of, changes_of, first_wanted
from rendezvous_async.core.state import SEATS, Closed, Member, Seat, node_of
from rendezvous_async.errors import RendezvousError, RendezvousFencedError
from rendezvous_async.node.membership import Membership
from rendezvous_async.node.store import DEFAULT_TIMEOUT, Store
from rendezvous_async.texts import quoted

__all__ = ["Glance", "UntilChanged", "World"]


class Glance(NamedTuple):
    """How a world stands, at a glance.

    Attributes:
        closed: Who closed the run, and why; None while it is open.
        out: This node is out of the round.
        pending: How many nodes wait for the next round, or were lost from this one; at least 1 if the run was scaled,
            so that this round is too large.
    """

    closed: Closed | None
    out: bool
    pending: int


class World:
    """A round that this node holds.

    Attributes:
        run_id: The run's id.
        node: This node's id.
        round: The round's number; it only grows.
        rank: This node's place, 0 to ``size - 1``.
        size: How many members there are.
        token: The round's fencing token: hand it to whatever you write to, and let that refuse older ones.
    """

    def __init__(self, backend: Backend, membership: Membership, node: str, joined: Joined, attempt: str) -> None:
        self.run_id: str = backend.run_id
        self.node = node
        self.round: int = joined.round
        self.rank: int = joined.rank
        self.size: int = joined.size
        self.token: Token = Token(*joined.token)
        self._backend = backend
        self._membership = membership
        self._joined = joined
        self._attempt = attempt
        self._members: tuple[Member, ...] | None = None

    def __repr__(self) -> str:
        return f"<World run={self.run_id!r} round={self.round} rank={self.rank} size={self.size}>"

    @cached_property
    def store(self) -> Store:
        """The round's own key-value store."""
        membership = self._membership
        return Store(
            self._backend,
            self.round,
            self.token,
            self.rank,
            self.size,
            self.check,
            membership.view.changed,
            membership.session.ttl,
        )

    @property
    def change(self) -> Change | None:
        """What has happened to this world so far, the most final; None while nothing has."""
        return next(iter(self._changes()), None)

    async def changed(self, *changes: Change) -> Change:
        """Wait until something has happened to this world, and say what; at once if it already has.

        ``CLOSED`` (the run is over) beats ``EVICTED`` (this node is out of the round) beats ``MEMBER_LOST`` beats
        ``RESIZED`` (the run was scaled, and this world is too large now) beats ``NODES_WAITING`` (other nodes are at
        the barrier). After the last four, ``join()`` again.

        Args:
            *changes: Wait for one of these, by default for any. Each counts as soon as it is true, also while a more
                final one is. ``CLOSED`` and ``EVICTED`` always end the wait, since nothing can come after them.
        """
        wanted = _check_changes(changes)
        while (change := first_wanted(self._changes(), wanted)) is None:
            await self._membership.view.changed.wait()  # Also fires when the membership is over, by its own clock too.
        return change

    def until_changed(self, *changes: Change) -> UntilChanged:
        """Return a block for ``async with`` whose body is cancelled when this world changes.

        Args:
            *changes: Cancel only for one of these, by default for any; they count as in ``changed()``.
        """
        wanted = _check_changes(changes)
        return UntilChanged(self._membership.view.changed, lambda: first_wanted(self._changes(), wanted))

    def while_whole(self) -> UntilChanged:
        """Return a block for ``async with`` whose body needs every member: newcomers and scaling do not end it.

        The body is cancelled as soon as a member no longer takes part: it was lost, or it is back at the barrier (as
        members are soon if the run was scaled so that this world is too large).
        """
        return UntilChanged(self._membership.view.changed, self._breach)

    def _changes(self) -> tuple[Change, ...]:
        """Return everything that has happened to this world, the most final first."""
        head = self._membership.view.head
        if (head is None or head.closed is None) and self._membership.is_out:
            return (Change.EVICTED,)
        return changes_of(head, self._joined)

    def _breach(self) -> Change | None:
        """Return what has happened to this world, unless all its members still take part."""
        change, head = self.change, self._membership.view.head
        is_whole = change in (Change.RESIZED, Change.NODES_WAITING) and head is not None and not head.returned
        return None if is_whole else change

    def glance(self, now: float) -> Glance:
        """Return what was pushed so far, without a loop: the one method that other threads may call.

        Args:
            now: By ``clock.lease_now()``.
        """
        head, membership = self._membership.view.head, self._membership
        change = change_of(head, self._joined)
        out = membership.error is not None or now >= membership.session.deadline
        count = 0 if head is None else max(head.waiting + head.lost, int(change is Change.RESIZED))
        return Glance(None if head is None else head.closed, out or change is Change.EVICTED, count)

    async def members(self) -> tuple[Member, ...]:
        """Return all members in the order of their ranks.

        Raises:
            RendezvousFencedError: The round is over.
        """
        if self._members is None:
            self.check()
            with answer_within(self._membership.session.ttl, "list the members"):
                listing = await self._backend.list(SEATS)
            seats = [(node_of(entry.key), decode(Seat, entry.value, entry.key)) for entry in listing.entries]
            members = [
                Member(seat.rank, node, seat.address, seat.labels)
                for node, seat in seats
                if seat.attempt == self._attempt
            ]
            if len(members) != self.size:
                raise RendezvousFencedError(f"{self!r}: round {self.round} is over; join() again for the next one")
            self._members = tuple(sorted(members, key=lambda member: member.rank))
        return self._members

    async def gather(self, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        """Return everybody's small value, by rank, at once with a barrier; see ``Store.gather``.

        A lost member is noticed only when the time is over, unless this is called inside ``until_changed()`` or
        ``while_whole()``.

        Raises:
            ValueError: The value is too large for a world of this size.
            RendezvousTimeoutError: Some did not come in time; the text names their ranks.
            RendezvousFencedError: The round is over.
        """
        return await self.store.gather(value, timeout)

    def check(self) -> None:
        """Raise if this node is out of the round, as far as it knows and by its own clock.

        Raises:
            RendezvousFencedError: It is.
        """
        try:
            self._membership.check()
        except RendezvousError as error:
            raise RendezvousFencedError(f"{self!r}: {error}") from error


class UntilChanged:
    """A block whose body is cancelled when the world changes.

    Attributes:
        change: What cancelled the body; None if the body finished first.
    """

    def __init__(self, changed: Notice, ending: Callable[[], Change | None]) -> None:
        self.change: Change | None = None
        self._changed = changed
        self._ending = ending
        self._cause: Change | None = None
        self._scope = anyio.CancelScope()
        self._stack = ExitStack()

    async def __aenter__(self) -> UntilChanged:
        self._stack.enter_context(self._changed.calling(self._cancel_if_changed))
        self._stack.enter_context(self._scope)
        self._cancel_if_changed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallow = self._stack.__exit__(kind, error, traceback)
        if self._scope.cancelled_caught:
            self.change = self._ending() or self._cause  # A node that waited may have left since.
        return swallow

    def _cancel_if_changed(self) -> None:
        change = self._ending()
        if change is not None:
            self._cause = change
            self._scope.cancel()


def _check_changes(changes: tuple[Change, ...]) -> Container[Change]:
    """Return the changes that are wanted: all of them if none is named."""
    given: tuple[object, ...] = changes
    for change in given:
        if not isinstance(change, Change):
            raise TypeError(f"a change must be one of {', '.join(map(str, Change))}, not {quoted(change)}")
    return changes or tuple(Change)
