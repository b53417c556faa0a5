"""How much memory a table uses, and for whom.

Everything counts with its encoded size plus a fixed overhead. A key counts once for each of its segments, since the
table also keeps the name of every subtree that holds it. The overheads are rounded measurements: a process needs at
most about two and a half times what is counted here.

Each run has an account under the prefix of its keys. Each scope of a restricted secret has one under ``@<scope>``, for
what belongs to clients and not to a run: sessions and remembered answers.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rendezvous_async.backends.names import name_size, place_of
from rendezvous_async.backends.values import Entry, Put

__all__ = ["ANSWER_COST", "CLIENT_COST", "SESSION_COST", "Account", "Usage", "cost_of", "cost_of_key"]

ENTRY_COST = 256
SEGMENT_COST = 64
SESSION_COST = 512
CLIENT_COST = 384
ANSWER_COST = 128
MAX_SCOPES = 1024
"""Upper bound on the cached sums of scopes; a dropped sum is computed again on demand."""


class Account(msgspec.Struct, gc=False):
    """What is kept for one owner.

    Attributes:
        keys: The number of entries.
        bytes: The size of everything.
        data_keys: The entries in the stores of rounds; the others are the run's own records.
        data_bytes: The size of those entries.
        sessions: The number of open sessions.
        sums: The sums of scopes that include this account.
    """

    keys: int = 0
    bytes: int = 0
    data_keys: int = 0
    data_bytes: int = 0
    sessions: int = 0
    sums: tuple[Account, ...] = ()


class Usage:
    """The accounts of a table.

    Attributes:
        all: The sum of all accounts.
    """

    def __init__(self) -> None:
        self.all: Account = Account()
        self._accounts: dict[str, Account] = {}
        self._scopes: dict[str, Account] = {}

    def of(self, owner: str) -> Account:
        """Return the account of a run, by the prefix of its keys."""
        return self._accounts.get(owner) or Account()

    def of_scope(self, scope: str) -> Account:
        """Return the sum of the accounts that a restricted secret opens."""
        account = self._scopes.get(scope)
        if account is None:
            if len(self._scopes) >= MAX_SCOPES:
                self._scopes.clear()
                for each in self._accounts.values():
                    each.sums = ()
            account = self._scopes[scope] = Account()
            for owner, each in self._accounts.items():
                if _is_in(owner, scope):
                    each.sums += (account,)
                    account.keys += each.keys
                    account.bytes += each.bytes
                    account.data_keys += each.data_keys
                    account.data_bytes += each.data_bytes
                    account.sessions += each.sessions
        return account

    def largest(self) -> tuple[str, Account]:
        """Return the owner with the most bytes and its account; scans all accounts."""
        owner = max(self._accounts, key=lambda owner: self._accounts[owner].bytes, default="")
        return owner, self.of(owner)

    def add_entry(self, entry: Entry, old: Entry | None) -> None:
        """Count an entry, which may replace an old one with the same key."""
        if old is None:
            owner, is_data = place_of(entry.key)
            self._add(owner, 1, cost_of(entry), is_data)
        elif growth := _cost_beside_key(entry) - _cost_beside_key(old):
            owner, is_data = place_of(entry.key)
            self._add(owner, 0, growth, is_data)

    def drop_entries(self, entries: Iterable[Entry]) -> None:
        """Stop counting entries."""
        dropped: dict[tuple[str, bool], list[int]] = {}
        for entry in entries:
            dropped.setdefault(place_of(entry.key), []).append(cost_of(entry))
        for (owner, is_data), costs in dropped.items():
            self._add(owner, -len(costs), -sum(costs), is_data)

    def add_session(self, session: str, sign: int = 1) -> None:
        """Count a session; with ``sign=-1``, stop counting it."""
        self._add(f"@{session.partition('@')[2]}", 0, sign * (SESSION_COST + name_size(session)), sessions=sign)

    def add_answers(self, client: str, bytes: int) -> None:
        """Count remembered answers of a client, whose name starts with its scope if it has one."""
        scope, bar, _ = client.partition("|")
        self._add(f"@{scope if bar else ''}", 0, bytes)

    def _add(self, owner: str, keys: int, bytes: int, is_data: bool = False, sessions: int = 0) -> None:
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = Account()
            if self._scopes:
                account.sums = tuple([each for scope, each in self._scopes.items() if _is_in(owner, scope)])
        for each in (account, self.all, *account.sums):
            each.keys += keys
            each.bytes += bytes
            each.sessions += sessions
            if is_data:
                each.data_keys += keys
                each.data_bytes += bytes
        if not account.bytes:
            del self._accounts[owner]


def cost_of(entry: Entry | Put) -> int:
    """Return the cost of an entry, or of the entry that a put would make."""
    return cost_of_key(entry.key) + _cost_beside_key(entry)


def cost_of_key(key: str) -> int:
    """Return the cost of a key without its value."""
    return ENTRY_COST + (key.count("/") + 1) * (SEGMENT_COST + name_size(key))


def _cost_beside_key(entry: Entry | Put) -> int:
    session = entry.session
    return len(entry.value or b"") + (0 if session is None else name_size(session))


def _is_in(owner: str, scope: str) -> bool:
    return owner.startswith(scope) or owner == f"@{scope}"
