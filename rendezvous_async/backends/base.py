"""The contract of a backend: bytes behind fencing tokens, sessions that expire, watches that never miss the last value.

A backend is a small, strongly consistent store of keys and bytes; it knows nothing of rounds and ranks. Every
implementation guarantees (and ``rendezvous_async.testing.check_backend`` checks):

* **Revisions.** A commit that writes has a larger revision than every commit acknowledged before it was sent.
  Concurrent commits may share a revision if neither writes what the other writes or compares. An entry's token is
  ``(epoch, revision of its last put)``. Tokens of different epochs never compare equal.
* **Commits** are atomic and linearizable: all conditions hold and all writes happen, or nothing does.
* **Reads** see every commit acknowledged before they were sent.
* **Sessions** are leases on the backend's own monotonic clock. A key belongs to the session of its last put and is
  deleted when that session ends. A put under a session that has ended is refused.
* **Watches** are level-triggered. They deliver the newest value of each key, with revisions that never decrease. The
  last value and every lasting deletion are delivered, even to a slow reader or across lost connections.

In ``watch``, ``list`` and ``Delete``, a name that ends in ``/`` is a subtree; any other name is exactly one key. Keys
are relative to the run (``<namespace>/<run_id>/``): segments of printable characters between single slashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import anyio

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends import classic
from rendezvous_async.backends.driver import Driver, Granted, Opening, Sink, Subscription
from rendezvous_async.backends.names import DEFAULT_NAMESPACE, check_key, check_name, name_size, subtrees_of
from rendezvous_async.backends.session import OUT_AFTER, Session
from rendezvous_async.backends.values import (
    FIRST_WRITES,
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
    news_of,
    owned,
)
from rendezvous_async.backends.watch import Following, Watch
from rendezvous_async.causes import Cause
from rendezvous_async.settings import check_id, check_seconds, encode_segment

__all__ = [
    "DEFAULT_NAMESPACE",
    "OUT_AFTER",
    "OWN",
    "Backend",
    "Commit",
    "Condition",
    "Delete",
    "Driver",
    "Entry",
    "Following",
    "Granted",
    "Listing",
    "Opened",
    "Opening",
    "Put",
    "Session",
    "Sink",
    "Subscription",
    "Token",
    "Watch",
    "Write",
    "news_of",
    "owned",
]


class Opened(NamedTuple):
    """The result of an ``Opening``.

    Attributes:
        session: The session; it is open even if the commit lost.
        commit: The result of the first commit; None if the driver only opens sessions.
        following: The watch; None if the opening had no names to watch.
    """

    session: Session
    commit: Commit | None
    following: Following | None


class Backend:
    """A store scoped to one run. The module docstring has its guarantees.

    Args:
        driver: The implementation; closed with the backend.
        run_id: The run whose keys it sees.
        namespace: The prefix of the keys of all runs.
    """

    def __init__(self, driver: Driver, run_id: str, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.driver = driver
        self.run_id: str = check_id("run_id", run_id)
        self.prefix: str = f"{driver.root}{namespace.strip('/')}/{encode_segment(run_id)}/"

    def __repr__(self) -> str:
        return f"<Backend run={self.run_id!r} on {self.driver!r}>"

    @property
    def name(self) -> str:
        """The kind of backend: ``memory``, ``tcp``, ``etcd``, ``file``, or a driver's own name."""
        return self.driver.name

    @property
    def max_writes(self) -> int:
        """Upper bound on the writes, and on the conditions, of one commit."""
        return self.driver.max_writes

    @property
    def max_bytes(self) -> int:
        """Upper bound on the bytes of keys and values in one commit."""
        return self.driver.max_bytes

    @property
    def trouble(self) -> str | None:
        """Why the backend cannot be reached now; None if it can be reached or this is unknown."""
        return self.driver.trouble

    @property
    def local_address(self) -> str:
        """The local address of the connection to the backend; empty if unknown."""
        return self.driver.local_address

    @property
    def seen_address(self) -> str:
        """This client's address as the server sees it, which differs behind NAT; empty if unknown."""
        return self.driver.seen_address

    async def get(self, key: str) -> Entry | None:
        """Return the entry at ``key``, or None."""
        entry = await self.driver.get(self.prefix + check_key(key))
        return None if entry is None else entry.relative_to(self.prefix)

    async def list(self, name: str) -> Listing:
        """Return the entries of a subtree (``"nodes/"``), or of one key; ``""`` is the whole run."""
        return (await self.driver.list(self.prefix + check_name(name))).relative_to(self.prefix)

    async def commit(self, *writes: Write, when: Iterable[Condition] = (), deadline: Deadline | None = None) -> Commit:
        """Apply all ``writes`` atomically if every condition in ``when`` holds; otherwise apply none.

        A commit writes a key at most once: two puts of one key, or a put under a name it deletes, are an error.
        Without ``deadline``, the backend's own timeout applies.

        Raises:
            RendezvousSessionError: A put names a session that has ended; nothing was written.
            RendezvousConnectionError: No answer in time; the commit may or may not have happened.
            ValueError: A limit (``max_writes``, ``max_bytes``) is exceeded, or a key is bad; nothing was sent.
        """
        absolute, conditions = self._absolute(writes, when)
        with self.driver.bounded(deadline):
            commit = await self.driver.commit(absolute, conditions, deadline)
        return commit.relative_to(self.prefix)

    def watch(self, *names: str, after: Token | None = None) -> Watch:
        """Watch keys and subtrees; use it with ``async with`` and ``async for``."""
        if not names:
            raise ValueError("a watch needs at least one name")
        return Watch(partial(self.driver.watch, self._absolute_names(names)), self.prefix, after)

    async def open_session(self, ttl: float) -> Session:
        """Open a session that the backend ends ``ttl`` seconds after its last keep-alive (or a little later)."""
        return (await self.open(Opening(ttl))).session

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Opened:
        """Open a session, make its first commit and start a watch, in one step if the driver can.

        The writes must not name another session. When this returns, what the commit's answer says about the watched
        names has been pushed. A cancelled or timed-out opening leaves nothing behind: if the session opens after all,
        it ends as soon as the answer arrives, or expires if none does. Nothing more is pushed.

        Raises:
            RendezvousConnectionError: No answer in time.
            ValueError: As for ``commit``, or more than ``FIRST_WRITES``; nothing was sent.
        """
        check_seconds("ttl", opening.ttl)
        if len(opening.writes) > FIRST_WRITES or len(opening.when) > FIRST_WRITES:
            raise ValueError(f"the first commit of a session has at most {FIRST_WRITES} writes and as many conditions")
        if names_session(opening.writes):
            raise ValueError("the first commit of a session must not put keys under another session")
        if bool(opening.names) != (opening.sink is not None):
            raise ValueError("give both names to watch and a sink, or neither")
        names, (writes, when) = self._absolute_names(opening.names), self._absolute(opening.writes, opening.when)
        following = None if opening.sink is None else Following(opening.names, self.prefix, opening.sink)
        try:
            with self.driver.bounded(deadline):
                granted = await self.driver.open(Opening(opening.ttl, writes, when, names, following), deadline)
            if following is not None:
                following.keep(granted.subscription or self.driver.watch(names, None, following))
        except BaseException:
            if following is not None:
                following.close()
            raise
        commit = None if granted.commit is None else granted.commit.relative_to(self.prefix)
        if following is not None and commit is not None:
            following.learn(news_of(owned(opening.writes, granted.session.id), commit))
        return Opened(granted.session, commit, following)

    async def end_session(self, session: str) -> None:
        """End a session by its id, even one of another process. Its keys are deleted at once.

        An unknown or ended session is ignored.
        """
        await self.driver.end_session(session, Cause.EVICTED)

    async def aclose(self) -> None:
        """Close the connection. Pending calls and watches fail with RendezvousConnectionError.

        This client's sessions are no longer kept alive: they expire, or end at once if the backend notices.
        """
        await self.driver.aclose()

    async def __aenter__(self) -> Backend:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()

    def _absolute_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([self.prefix + check_name(name) for name in names])

    def _absolute(
        self, writes: Iterable[Write], when: Iterable[Condition]
    ) -> tuple[tuple[Write, ...], tuple[Condition, ...]]:
        """Return the commit with absolute names; raise ValueError if it is invalid or too large."""
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

    # The classic contract: one state behind a token, under its own key.

    async def get_state(self) -> tuple[bytes, Token] | None:
        """Return the classic state and its token, or None if there is none.

        Raises:
            RendezvousStateError: The stored value is damaged, or was not written by ``set_state``.
        """
        entry = await self.get(classic.KEY)
        return None if entry is None else (classic.open_envelope(entry), entry.token)

    async def set_state(self, state: bytes, token: object = None) -> tuple[bytes, Token, bool] | None:
        """Replace the classic state if ``token`` is that of the current one; without a token, create it.

        Returns:
            The current state, its token, and whether it is the one given; None if a token was given and there is no
            state.
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
        raise ValueError("a commit must not write a key twice, nor put a key that it deletes")
