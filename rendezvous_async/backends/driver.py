"""The interface to implement for a new backend: a store of keys and bytes, leases on its own clock, and watches.

A ``Driver`` knows nothing of runs. It gets absolute, checked names and commits within its limits. ``Backend`` wraps it
and does the rest: it scopes and checks names, applies deadlines, drops repeated or stale listings, and starts the watch
of a session if the driver only opens it. The docstring of ``base.py`` has the guarantees that a driver must give;
``rendezvous_async.testing.check_backend`` checks them. ``examples/custom_backend.py`` is a driver in 60 lines;
``schemes.py`` says how it gets a scheme of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Driver", "Granted", "Opening", "Sink", "Subscription", "closed_error"]

_UNBOUNDED: AbstractContextManager[None] = nullcontext()


class Sink(Protocol):
    """Receives the listings of a watch. Its methods must not raise or block."""

    def take(self, listing: Listing, /) -> None:
        """Take the next listing."""

    def fail(self, error: Exception, /) -> None:
        """Take the error that ended the watch. Nothing follows."""


class Subscription(Protocol):
    """The driver's side of one watch."""

    @property
    def current_at(self) -> float:
        """A time on this process's clock: every commit before it has been pushed. It never decreases."""

    def close(self) -> None:
        """Push nothing more. May be called twice, and after ``fail``."""


class Opening(msgspec.Struct, frozen=True, gc=False):
    """A request to open a session.

    Attributes:
        ttl: Seconds after the last keep-alive until the backend ends the session (or a little later).
        writes: The session's first commit. A put under the session ``OWN`` belongs to the new session.
        when: The conditions of that commit.
        names: Keys and subtrees to watch.
        sink: Receives the listings of that watch; may be called before the session is open.
    """

    ttl: float
    writes: tuple[Write, ...] = ()
    when: tuple[Condition, ...] = ()
    names: tuple[str, ...] = ()
    sink: Sink | None = None


class Granted(msgspec.Struct, frozen=True, gc=False):
    """A driver's answer to an ``Opening``.

    Attributes:
        session: The session; it is open even if the commit lost.
        commit: The result of the first commit; None if the driver does not make it in the same step, and so not at all.
        subscription: The watch; if None, ``Backend`` starts it in a second step.
    """

    session: Session
    commit: Commit | None = None
    subscription: Subscription | None = None


class Driver(ABC):
    """A store for many runs. Any call may be cancelled at any point, and the driver must stay usable."""

    name: str
    """The kind of backend: ``memory``, ``tcp``, ``etcd``, ``file``, or your own name."""
    max_writes: int
    """Upper bound on the writes, and on the conditions, of one commit."""
    max_bytes: int
    """Upper bound on the bytes of keys and values in one commit."""
    root: str = ""
    """The prefix of all absolute names."""
    keeps_deadlines: bool = False
    """Whether calls honour their ``deadline``. If not, ``bounded`` wraps each call in a cancel scope."""

    def bounded(self, deadline: Deadline | None) -> AbstractContextManager[None]:
        """Return a context manager that enforces the deadline of one call, unless the driver does."""
        return _UNBOUNDED if deadline is None or self.keeps_deadlines else deadline.bound(self._why)

    def _why(self) -> str | None:
        return self.trouble

    @property
    def trouble(self) -> str | None:
        """Why the store cannot be reached now; None if it can be reached or this is unknown."""
        return None

    @property
    def local_address(self) -> str:
        """The local address of the connection to the store; empty if unknown."""
        return ""

    @property
    def seen_address(self) -> str:
        """This client's address as the server sees it, which differs behind NAT; empty if unknown."""
        return ""

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Return the entry at ``key``, or None."""

    @abstractmethod
    async def list(self, name: str) -> Listing:
        """Return the entries of a subtree, or of one key."""

    @abstractmethod
    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        """Apply all writes atomically if every condition holds; otherwise apply none.

        Raises:
            RendezvousSessionError: A put names a session that has ended; nothing was written.
            RendezvousConnectionError: No answer; the commit may or may not have happened.
        """

    @abstractmethod
    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        """Open a session. Making the first commit and starting the watch in the same step is optional.

        A cancelled or timed-out opening must leave nothing behind: if the session opens after all, end it as soon as
        the answer arrives, or leave it to expire if none does. Its watch pushes nothing more.
        """

    @abstractmethod
    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        """Renew a session's lease.

        Raises:
            RendezvousSessionError: It has ended.
            RendezvousConnectionError: No answer.
        """

    @abstractmethod
    async def end_session(self, session: str, cause: str = "") -> None:
        """End a session by its id, even one of another process. Its keys are deleted at once.

        An unknown or ended session is ignored. A store that can gives ``cause`` with the deletion of each key.
        """

    @abstractmethod
    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        """Push the entries under some names, then their changes, until the subscription is closed or fails.

        Listings may be stale, repeated or complete; only the newest entry of each key is needed. Without ``after``, or
        if it is of another epoch or too old, the first listing is complete. The subscription survives a lost
        connection; an error passed to the sink ends it.

        Raises:
            RendezvousConnectionError: The driver is closed.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the driver. Pending calls and watches fail with RendezvousConnectionError.

        This client's sessions are no longer kept alive: they expire, or end at once if the store notices.
        """


def closed_error(name: str) -> RendezvousConnectionError:
    """Return the error that a call to a closed driver raises."""
    return RendezvousConnectionError(f"the {name} backend is closed")
