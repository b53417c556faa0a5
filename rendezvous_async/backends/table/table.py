"""The revisioned table with sessions, shared by the memory backend, the TCP server and the file backend.

No I/O and no clock: the owner of a table passes ``now`` in and wakes the watchers of the keys that ``take_changed()``
returns. Every operation is deterministic, so a log of the calls that changed something replays to the same table.

``_living`` holds the keys of each subtree in the order of their last put, ``_graves`` the deleted keys in the order of
their deletion. What changed after revision r is found by walking both from the end, at a cost proportional to the
result. So a watcher needs no queue, only a position; a position before the horizon of the graves gets a complete
listing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from rendezvous_async.backends.table.answers import LATE, Answers, CommitId
from rendezvous_async.backends.table.graves import Graves
from rendezvous_async.backends.table.trees import Trees
from rendezvous_async.backends.table.usage import Usage
from rendezvous_async.backends.values import Commit, Condition, Delete, Entry, Listing, Token, Write
from rendezvous_async.causes import Cause
from rendezvous_async.errors import RendezvousSessionError

__all__ = ["CommitId", "SessionLease", "Snapshot", "Table"]

MIN_EXPIRIES = 64


class SessionLease(msgspec.Struct):
    """A session as the table sees it.

    Attributes:
        checked_at: The time of its valid item in the expiry heap; items with other times are stale.
        was_to_expire_at: The deadline that ``hasten`` replaced, if any.
    """

    id: str
    ttl: float
    expires_at: float
    checked_at: float
    keys: set[str] = msgspec.field(default_factory=set)
    was_to_expire_at: float | None = None


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A whole table as a value, without deadlines: after a restart each session gets its full TTL."""

    epoch: str
    revision: int
    horizon: int
    opened: int
    entries: tuple[Entry, ...]
    graves: tuple[tuple[str, int], ...]
    sessions: tuple[tuple[str, float], ...]
    answers: dict[str, dict[int, int]]
    causes: dict[str, str] = {}


class Table:
    """Entries and sessions, with the changes since any recent revision.

    Args:
        epoch: Names this history; a table that does not continue an earlier one needs a new name.
        revision: Where to start counting.
    """

    def __init__(self, epoch: str, revision: int = 0) -> None:
        self.epoch = epoch
        self.revision: int = revision
        self.usage: Usage = Usage()
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._graves = Graves(revision)
        self._living = Trees()
        self._sessions: dict[str, SessionLease] = {}
        self._expiries: list[tuple[float, str]] = []
        self._opened = 0
        self._answers = Answers(self.usage)
        self._changed: list[str] = []
        self.after_each: Callable[[], None] | None = None
        """Called after each change of the entries, for whoever must see every one of them; must not raise."""

    def __repr__(self) -> str:
        return f"<Table {self.token} keys={len(self._entries)} sessions={len(self._sessions)}>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def token(self) -> Token:
        """The current position in this table's history."""
        return Token(self.epoch, self.revision)

    @property
    def size(self) -> int:
        """The size of the table in bytes, as ``usage`` counts it."""
        return self.usage.all.bytes

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    @property
    def has_changed(self) -> bool:
        """Whether ``take_changed`` would return something."""
        return bool(self._changed)

    def take_changed(self) -> list[str]:
        """Return the keys written or deleted since the last call; a key may occur more than once."""
        changed, self._changed = self._changed, []
        return changed

    def raise_revision(self, revision: int) -> None:
        """Skip all revisions up to this one, for a table whose clients remember more than it does."""
        self.revision = max(self.revision, revision)

    # Reading

    def get(self, key: str) -> Entry | None:
        """Return the entry at ``key``, or None."""
        return self._entries.get(key)

    def has_more(self, most: int, names: Iterable[str]) -> bool:
        """Tell whether there may be more than ``most`` entries at ``names``, without looking at each."""
        if len(self._entries) <= most:
            return False
        return sum([len(self._living.under(name)) if name.endswith("/") else 1 for name in names]) > most

    def list(self, name: str) -> Listing:
        """Return the entry at a key, or the entries under a subtree, sorted by key."""
        return Listing(tuple(self._entries[key] for key in sorted(self._keys(name))), self.token)

    def changes(self, names: Sequence[str], after: Token | None) -> Listing | None:
        """Return what has changed under ``names`` since ``after``, or None if nothing has.

        The listing is complete, and may be empty, if ``after`` is None, of another epoch, or before the horizon.
        """
        complete = after is None or after.epoch != self.epoch or after.revision < self._graves.horizon
        since = -1 if after is None or complete else after.revision
        if since >= self.revision:
            return None
        changed: dict[str, Entry] = {}
        for name in names:
            if name.endswith("/"):
                self._add_changed_under(name, since, complete, changed)
            elif (entry := self._entries.get(name)) is not None:
                if entry.token.revision > since:
                    changed[name] = entry
            elif not complete and self._graves.get(name) > since:
                changed[name] = self._gone(name)
        if not changed and not complete:
            return None
        return Listing(tuple([changed[key] for key in sorted(changed)]), self.token, complete)

    # Writing

    def commit(self, writes: Sequence[Write], when: Iterable[Condition] = (), id: CommitId | None = None) -> Commit:
        """Apply all ``writes`` under one new revision if every condition holds; a repeated ``id`` is only answered.

        Raises:
            RendezvousSessionError: A put names a session that is not open; nothing has changed.
        """
        if id is not None and (revision := self._answers.find(id)) is not None:
            return Commit(False, self.token) if revision == LATE else Commit(True, Token(self.epoch, revision))
        when = tuple(when)
        for condition in when:
            if not self._holds(condition):
                current = map(self._entries.get, dict.fromkeys([condition.key for condition in when]))
                return Commit(False, self.token, tuple(entry for entry in current if entry is not None))
        changing = False
        for write in writes:
            if isinstance(write, Delete):
                changing = changing or bool(self._keys(write.name))
            elif write.session is None or write.session in self._sessions:
                changing = True
            else:
                raise RendezvousSessionError(f"session {write.session} has ended; nothing was written")
        if changing:
            self.revision += 1
        token = self.token
        for write in writes:
            if not isinstance(write, Delete):
                self._put(write.entry(token))
            elif write.name.endswith("/"):
                self._remove(self._living.cut(write.name))
            elif write.name in self._entries:
                self._delete(write.name)
        if id is not None and changing:  # a commit that changes nothing may be repeated
            self._answers.note(id, self.revision)
        if changing and self.after_each is not None:
            self.after_each()
        return Commit(True, token)

    def has_answer(self, id: CommitId) -> bool:
        """Tell whether ``commit`` would answer this id from memory."""
        return self._answers.find(id) is not None

    def forget(self, client: str) -> None:
        """Drop the remembered answers of a client that will not ask again."""
        self._answers.forget(client)

    # Sessions

    def keys_of(self, session: str) -> int:
        """Return the number of keys that belong to a session."""
        return len(self._sessions[session].keys) if session in self._sessions else 0

    def has_session(self, session: str) -> bool:
        """Tell whether a session is open."""
        return session in self._sessions

    def open_sessions(self) -> Sequence[tuple[str, float]]:
        """Return the open sessions, each with its TTL."""
        return [(lease.id, lease.ttl) for lease in self._sessions.values()]

    def open_session(self, ttl: float, now: float, owner: str = "") -> str:
        """Open a session and return its id, which is unique across epochs and ends in ``@owner`` if there is one."""
        self._opened += 1
        session = f"{self.epoch}.{self._opened}{f'@{owner}' if owner else ''}"
        self._open(session, ttl, now)
        return session

    def keep_alive(self, session: str, now: float) -> bool:
        """Renew a session for its full TTL; False if it has ended."""
        lease = self._sessions.get(session)
        if lease is None:
            return False
        lease.expires_at = now + lease.ttl
        lease.was_to_expire_at = None
        return True

    def why_due(self, session: str) -> Cause:
        """Return why an open session is due: its connection was lost, or it was silent for its TTL."""
        return Cause.SILENT if self._sessions[session].was_to_expire_at is None else Cause.CUT

    def refreshed_at(self, session: str) -> float | None:
        """Return when a session was last renewed; None if it is not open."""
        lease = self._sessions.get(session)
        return None if lease is None else (lease.was_to_expire_at or lease.expires_at) - lease.ttl

    def hasten(self, session: str, expires_at: float) -> None:
        """Expire a session at ``expires_at`` at the latest, unless it is resumed or renewed before."""
        lease = self._sessions.get(session)
        if lease is not None and expires_at < lease.expires_at:
            lease.was_to_expire_at = lease.was_to_expire_at or lease.expires_at
            lease.expires_at = expires_at
            self._check_at(lease, expires_at)

    def put_off(self, session: str, expires_at: float, margin: float) -> bool:
        """Expire a hastened session at ``expires_at``; False if its TTL leaves less than ``margin`` after that."""
        lease = self._sessions[session]
        if lease.was_to_expire_at is None or lease.was_to_expire_at < expires_at + margin:
            return False
        lease.expires_at = expires_at
        self._check_at(lease, expires_at)
        return True

    def resume(self, session: str) -> bool:
        """Undo ``hasten``: restore the earlier deadline; False if the session has ended."""
        lease = self._sessions.get(session)
        if lease is None:
            return False
        if lease.was_to_expire_at is not None:
            lease.expires_at, lease.was_to_expire_at = lease.was_to_expire_at, None
        return True

    def end_session(self, session: str, cause: str = "") -> bool:
        """End a session and delete its keys, under one revision; False if it is not open."""
        lease = self._sessions.pop(session, None)
        if lease is None:
            return False
        self.usage.add_session(session, -1)
        if lease.keys:
            self.revision += 1
            for key in sorted(lease.keys):
                self._delete(key, cause)
            if self.after_each is not None:
                self.after_each()
        return True

    def due(self, now: float, most: int = 1 << 30) -> Sequence[str]:
        """Check up to ``most`` sessions and return the expired ones, each once; the caller ends them."""
        due: dict[str, None] = {}
        while self._expiries and self._expiries[0][0] <= now and most > 0:
            most -= 1
            at, session = heapq.heappop(self._expiries)
            lease = self._sessions.get(session)
            if lease is None or lease.checked_at != at:
                continue
            if lease.expires_at <= now:
                due[session] = None
            else:
                self._check_at(lease, lease.expires_at)
        return list(due)

    def next_due(self) -> float | None:
        """Return when to call ``due()`` next; None if no session is open."""
        while self._expiries and self._expiries[0][1] not in self._sessions:
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    # Snapshots

    def snapshot(self) -> Snapshot:
        """Return the whole table as a value."""
        entries, sessions, answers = self._entries.values(), self.open_sessions(), self._answers.as_value()
        at, graves = (self.epoch, self.revision, self._graves.horizon), self._graves
        return Snapshot(*at, self._opened, tuple(entries), graves.as_value(), tuple(sessions), answers, graves.causes)

    @classmethod
    def restore(cls, snapshot: Snapshot, now: float) -> Table:
        """Return the table of a snapshot, with a full TTL for each session."""
        table = cls(snapshot.epoch, snapshot.revision)
        table._opened = snapshot.opened
        table._graves = Graves(snapshot.horizon, snapshot.graves, snapshot.causes)
        table._answers = Answers(table.usage, snapshot.answers)
        for session, ttl in snapshot.sessions:
            table._open(session, ttl, now)
        for entry in snapshot.entries:
            table._put(entry)
        table._changed.clear()
        return table

    # Inside

    def _open(self, session: str, ttl: float, now: float) -> None:
        lease = SessionLease(session, ttl, now + ttl, now + ttl)
        self._sessions[session] = lease
        self.usage.add_session(session)
        self._check_at(lease, lease.expires_at)

    def _check_at(self, lease: SessionLease, at: float) -> None:
        lease.checked_at = at
        heapq.heappush(self._expiries, (at, lease.id))
        if len(self._expiries) > 2 * len(self._sessions) + MIN_EXPIRIES:  # most are stale
            self._expiries = sorted([(each.checked_at, each.id) for each in self._sessions.values()])  # a heap

    def _holds(self, condition: Condition) -> bool:
        entry = self._entries.get(condition.key)
        return entry is None if condition.token is None else entry is not None and entry.token == condition.token

    def _keys(self, name: str) -> Collection[str]:
        if name.endswith("/"):
            return self._living.under(name)
        return (name,) if name in self._entries else ()

    def _add_changed_under(self, subtree: str, since: int, complete: bool, changed: dict[str, Entry]) -> None:
        """Add a subtree's part of ``changes``: all its entries, or those put or deleted after a revision."""
        if complete:
            for key in self._living.under(subtree):
                changed[key] = self._entries[key]
            return
        for key in reversed(self._living.under(subtree)):
            entry = self._entries[key]
            if entry.token.revision <= since:
                break
            changed[key] = entry
        for key in self._graves.under(subtree, since):
            changed[key] = self._gone(key)

    def _gone(self, key: str) -> Entry:
        return Entry(key, None, Token(self.epoch, self._graves.get(key)), None, self._graves.cause(key))

    def _put(self, entry: Entry) -> None:
        key = entry.key
        old = self._entries.get(key)
        if old is None:
            if cause := self._graves.cause(key):
                entry = msgspec.structs.replace(entry, cause=cause)
            self._graves.close(key)
            self._living.add(key)
        else:
            self._entries.move_to_end(key)
            self._living.move_to_end(key)
            if old.session is not None and old.session != entry.session:
                self._sessions[old.session].keys.discard(key)
        if entry.session is not None:
            self._sessions[entry.session].keys.add(key)
        self.usage.add_entry(entry, old)
        self._entries[key] = entry
        self._changed.append(key)

    def _delete(self, key: str, cause: str = "") -> None:
        self._living.remove(key)
        self._remove((key,), cause)

    def _remove(self, keys: Collection[str], cause: str = "") -> None:
        """Remove entries that are no longer in ``_living``."""
        entries = [self._entries.pop(key) for key in keys]
        for entry in entries:
            if entry.session is not None and (lease := self._sessions.get(entry.session)) is not None:
                lease.keys.discard(entry.key)
        self.usage.drop_entries(entries)
        self._graves.dig(keys, self.revision, cause)
        self._changed.extend(keys)
