"""The contract of a backend: bytes behind fencing tokens, sessions that expire, watches that never miss the last value.

A backend is a small strongly consistent store. It knows nothing of rounds and ranks: it sees keys and bytes. What it
must promise, for every implementation (``rendezvous_async.testing.check_backend`` checks each of these):

* **Revisions.** Every commit that wrote something has a larger revision than all that were acknowledged before it was
  made. Two that are made at the same time may share one if neither writes what the other writes or compares. An entry's
  token is ``(epoch, revision of its last put)``. Tokens of another epoch never compare equal.
* **Commits** are atomic and linearizable: all conditions hold and all writes happen, or nothing does.
* **Reads** see every commit that was acknowledged before they were sent.
* **Sessions** are leases on the backend's own monotonic clock. A key belongs to the session of its last put, and is
  deleted when that session ends; a put under a session that has ended is refused.
* **Watches** are level-triggered: per key the newest value, revisions never fall, the last value and every deletion
  that lasts are delivered, however slowly the consumer reads and however often the connection breaks.

Names: in ``watch``, ``list`` and ``Delete`` a name that ends in ``/`` is a subtree, any other is exactly one key. Keys
are relative to the run (``<namespace>/<run_id>/``): segments of ordinary characters, separated by single slashes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import anyio

from rendezvous_async.backends import classic
from rendezvous_async.backends.names import check_key, check_name, name_size, subtrees_of
from rendezvous_async.backends.session import OUT_AFTER, Session
from rendezvous_async.backends.values import (
    OWN,
    Commit,
    Condition,
    Delete,
    Entry,
    Listing,
    Put,
    Token,
    Write,
    names_session,
    owned,
)
from rendezvous_async.backends.watch import Watch
from rendezvous_async.clock import Patience, answer_within
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import check_id, encode_segment

__all__ = [
    "OUT_AFTER",
    "OWN",
    "Backend",
    "Commit",
    "Condition",
    "Delete",
    "Entry",
    "Listing",
    "Put",
    "Session",
    "Token",
    "Watch",
    "Write",
    "owned",
]

DEFAULT_NAMESPACE = "rendezvous_async"
FIRST_WRITES = 64
"""How many writes, and how many conditions, the first commit of a session may have: it is for a node's arrival."""


class Backend(ABC):
    """A store scoped to one run; its methods say what they promise in this module's opening."""

    name: str
    """What kind it is: ``memory``, ``tcp``, ``etcd``, ``file``, or a word of your own."""
    max_writes: int
    """How many writes, and how many conditions, one commit may have."""
    max_bytes: int
    """How many bytes of keys and values one commit may have."""

    def __init__(self, run_id: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.run_id = check_id("run_id", run_id)
        self.prefix = f"{namespace.strip('/')}/{encode_segment(run_id)}/"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} run={self.run_id!r}>"

    @property
    def trouble(self) -> str | None:
        """Why the backend cannot be reached now, in words; None if it can be, or if that is not known."""
        return None

    @property
    def local_address(self) -> str:
        """The address from which this machine reaches the backend now; empty if that is not known."""
        return ""

    @property
    def seen_address(self) -> str:
        """The same address as the server sees it, which is another one behind NAT; empty if that is not known."""
        return ""

    async def get(self, key: str) -> Entry | None:
        """Return the entry at ``key``, or None."""
        entry = await self._get(self.prefix + check_key(key))
        return None if entry is None else entry.relative_to(self.prefix)

    async def list(self, name: str) -> Listing:
        """Return the entries under a subtree (``"nodes/"``), or the one at a key; ``""`` is the whole run."""
        return (await self._list(self.prefix + check_name(name))).relative_to(self.prefix)

    async def commit(self, *writes: Write, when: Iterable[Condition] = (), patience: Patience | None = None) -> Commit:
        """Do all ``writes`` at once if every condition of ``when`` holds, else none.

        A commit writes a key at most once: two puts of one key, or a put under a name that it deletes, are an error.
        Without ``patience`` it waits as long as the backend does.

        Raises:
            RendezvousSessionError: A put names a session that has ended; nothing was written.
            RendezvousConnectionError: No answer in time; the commit may or may not have happened.
            ValueError: More than ``max_writes`` or ``max_bytes``, or a bad key; nothing was sent.
        """
        absolute, conditions = self._absolute(writes, when)
        if patience is None:
            commit = await self._commit(absolute, conditions)
        else:
            commit = await self._commit_within(absolute, conditions, patience)
        return commit.relative_to(self.prefix)

    def watch(self, *names: str, after: Token | None = None) -> Watch:
        """Watch keys and subtrees; use it with ``async with`` and ``async for``."""
        watch = self._watch(self._absolute_names(names), after)
        watch.prefix = self.prefix
        return watch

    def prepare_watch(self, *names: str) -> Watch:
        """Return a watch that is to be handed to ``begin``, which starts it; it may have started already."""
        watch = self._prepare_watch(self._absolute_names(names))
        watch.prefix = self.prefix
        return watch

    @abstractmethod
    async def open_session(self, ttl: float) -> Session:
        """Open a session that the backend ends ``ttl`` seconds after its last keep-alive (or a little later)."""

    async def begin(
        self,
        ttl: float,
        patience: Patience,
        *writes: Write,
        when: Iterable[Condition] = (),
        watch: Watch | None = None,
    ) -> tuple[Session, Commit | None]:
        """Open a session as ``open_session`` does; where the backend can, make its first commit in the same step.

        A put under the session ``OWN`` belongs to the new one, which is open also if the commit has lost; nothing is
        put under any other. A watch that ``prepare_watch`` has made starts now, if it has not yet. Who gives this up
        leaves nothing behind that lasts: a session that is opened all the same ends as soon as its answer comes, and if
        none does, as if its owner had died; the watch is the caller's to close.

        Returns:
            The session, and how the commit went: None if it was not made, since this takes two steps here.

        Raises:
            RendezvousConnectionError: No answer in time.
            ValueError: As ``commit`` does, or more than ``FIRST_WRITES``; nothing was sent.
        """
        when = tuple(when)
        if len(writes) > FIRST_WRITES or len(when) > FIRST_WRITES:
            raise ValueError(f"the first commit of a session has at most {FIRST_WRITES} writes and as many conditions")
        if names_session(writes):
            raise ValueError("the first commit of a session puts nothing under another one")
        session, commit = await self._begin(ttl, patience, *self._absolute(writes, when), watch)
        return session, None if commit is None else commit.relative_to(self.prefix)

    @abstractmethod
    async def end_session(self, session: str) -> None:
        """End any session by its id, also one of another process; its keys are deleted at once. None such: no error."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the connection. Calls under way and watches fail with RendezvousConnectionError.

        Nobody keeps this client's sessions alive any more: they end at their time, or at once if the backend can tell.
        """

    async def __aenter__(self) -> Backend:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()

    def _absolute_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("a watch needs at least one name")
        return tuple([self.prefix + check_name(name) for name in names])

    def _absolute(
        self, writes: Iterable[Write], when: Iterable[Condition]
    ) -> tuple[tuple[Write, ...], tuple[Condition, ...]]:
        """Return a commit on absolute names; ValueError if it is not one that may be sent."""
        prefix = self.prefix
        conditions = tuple([Condition(prefix + check_key(c.key), c.token) for c in when])
        absolute = tuple(
            [
                Put(prefix + check_key(write.key), write.value, write.session)
                if isinstance(write, Put)
                else Delete(prefix + check_name(write.name))
                for write in writes
            ]
        )
        self._check_size(absolute, conditions)
        return absolute, conditions

    def _check_size(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> None:
        if len(writes) > 1:
            _check_once(writes)
        if len(writes) > self.max_writes or len(when) > self.max_writes:
            raise ValueError(
                f"a commit to {self.name} has at most {self.max_writes} writes and as many conditions, "
                f"not {len(writes)} and {len(when)}; split it"
            )
        size = sum([name_size(condition.key) for condition in when])
        for write in writes:
            size += name_size(write.name) if isinstance(write, Delete) else name_size(write.key) + len(write.value)
        if size > self.max_bytes:
            raise ValueError(f"a commit to {self.name} has at most {self.max_bytes} bytes, not {size}; split it")

    # The classic contract: one state behind a token, on a key of its own.

    async def get_state(self) -> tuple[bytes, Token] | None:
        """Return the classic state and its token, or None if there is none.

        Raises:
            RendezvousStateError: What is stored was not written by ``set_state``, or is damaged.
        """
        entry = await self.get(classic.KEY)
        return None if entry is None else (classic.open_envelope(entry), entry.token)

    async def set_state(self, state: bytes, token: object = None) -> tuple[bytes, Token, bool] | None:
        """Replace the classic state if ``token`` is that of the current one; without a token, create it.

        Returns:
            The state that now stands, its token, and whether it is the one given; None if there is no state at all and
            the token was not None.
        """
        if token is None or isinstance(token, Token):
            put = Put(classic.KEY, classic.close_envelope(state))
            commit = await self.commit(put, when=[Condition(classic.KEY, token)])
            if commit.won:
                return state, commit.token, True
            entry = commit.entry(classic.KEY)
        else:
            entry = await self.get(classic.KEY)
        return None if entry is None else (classic.open_envelope(entry), entry.token, False)

    # What an implementation provides: the same calls on absolute names, which are checked already.

    @abstractmethod
    async def _get(self, key: str) -> Entry | None: ...

    @abstractmethod
    async def _list(self, name: str) -> Listing: ...

    @abstractmethod
    async def _commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit: ...

    async def _commit_within(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], patience: Patience
    ) -> Commit:
        with answer_within(*patience):
            return await self._commit(writes, when)

    async def _begin(
        self,
        ttl: float,
        patience: Patience,
        writes: tuple[Write, ...],
        when: tuple[Condition, ...],
        watch: Watch | None,
    ) -> tuple[Session, Commit | None]:
        with answer_within(*patience):
            return await self.open_session(ttl), None

    @abstractmethod
    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch: ...

    def _prepare_watch(self, names: tuple[str, ...]) -> Watch:
        return self._watch(names, None)


def _check_once(writes: tuple[Write, ...]) -> None:
    """Raise if a commit would write a key twice."""
    keys: set[str] = set()
    deleted: set[str] = set()
    puts = 0
    for write in writes:
        if isinstance(write, Delete):
            deleted.add(write.name)
        else:
            keys.add(write.key)
            puts += 1
    both = deleted and any(key in deleted or not deleted.isdisjoint(subtrees_of(key)) for key in keys)
    if len(keys) < puts or both:
        raise ValueError("a commit must not write a key twice, nor put a key that it also deletes")


def closed_error(name: str) -> RendezvousConnectionError:
    """What a call on a closed backend raises."""
    return RendezvousConnectionError(f"the {name} backend is closed")
