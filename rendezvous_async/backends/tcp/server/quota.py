"""Quotas: decides whether a server has room for what a client wants to store.

Three rules, for keys and for bytes:

* The whole table stays within ``Limits.keys`` and ``Limits.bytes``.
* No run uses more than its share (``Limits.run_share``), nor do all runs together that a restricted secret opens.
* The last part of both (``Limits.reserve``) is reserved for the records by which runs form their rounds. The stores of
  rounds cannot use it. When only that part is left, each run may use a share of it.

A write that does not grow an account is never refused. Costs are counted as in ``backends/table/usage.py`` and never
underestimated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import unquote

from rendezvous_async.aio import clock
from rendezvous_async.backends.names import name_size, place_of
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.table.usage import ANSWER_COST, CLIENT_COST, SESSION_COST, Account, cost_of
from rendezvous_async.backends.tcp.server.limits import Limits
from rendezvous_async.backends.values import Put
from rendezvous_async.logs import log_fields

__all__ = ["Quota"]

logger = logging.getLogger("rendezvous_async.server")

SESSION_NAME = 48
"""Upper bound on a session's id, without its scope."""
LOOK_AGAIN = 1.0
LOG_AGAIN = 60.0


class Quota:
    """Decides what a table has room for.

    Args:
        table: The server's table.
        limits: The server's limits.
        endpoint: The server's endpoint, for log messages.
    """

    def __init__(self, table: Table, limits: Limits, endpoint: str = "") -> None:
        self._table = table
        self._limits = limits
        self._endpoint = endpoint
        keys, bytes = limits.keys, limits.bytes
        reserved_keys, reserved_bytes = int(limits.reserve * keys), int(limits.reserve * bytes)
        self._most = (keys, bytes)
        self._open = (keys - reserved_keys, bytes - reserved_bytes)
        self._share = self._share_of(keys, bytes)
        self._data_share = self._share_of(*self._open)
        self._record_share = self._share_of(reserved_keys, reserved_bytes)
        self._largest: tuple[float, str, Account] | None = None
        self._log_at = 0.0

    def _share_of(self, keys: int, bytes: int) -> tuple[int, int]:
        return int(self._limits.run_share * keys), int(self._limits.run_share * bytes)

    def refuse_commit(self, scope: str, client: str, puts: Sequence[Put]) -> str | None:
        """Return why there is no room for these puts and for the answer to their commit; None if there is."""
        return self._refuse(scope, puts, ANSWER_COST + CLIENT_COST + name_size(client)) if puts else None

    def refuse_session(self, scope: str, puts: Sequence[Put]) -> str | None:
        """Return why there is no room for another session and its first puts; None if there is."""
        has, most = self._table.sessions, self._limits.sessions
        if has >= most:
            return self._log(f"the server has its {most} sessions")
        if scope and self._table.usage.of_scope(scope).sessions >= self._limits.run_share * most:
            return self._log(f"the runs of {scope}* have their share of the server's {most} sessions")
        return self._refuse(scope, puts, SESSION_COST + (len(puts) + 1) * (SESSION_NAME + name_size(scope)))

    def _refuse(self, scope: str, puts: Sequence[Put], more: int) -> str | None:
        usage = self._table.usage
        cost = more + sum([cost_of(put) for put in puts])
        keys, bytes = usage.all.keys + len(puts), usage.all.bytes + cost
        if _fits(keys, bytes, self._data_share):
            return None  # even if one run owned everything
        growths, grows = self._growths(scope, puts, more)
        keys, bytes = usage.all.keys + grows.keys, usage.all.bytes + grows.bytes
        is_scarce = not _fits(keys, bytes, self._open)
        if not _fits(keys, bytes, self._most, grows):
            return self._full(grows, scope)
        accounts = [(owner, usage.of(owner), growth) for owner, growth in growths.items()]
        if scope:
            accounts.append((f"{scope}*", usage.of_scope(scope), grows))
        for owner, has, growth in accounts:
            is_data = growth.data_bytes > 0
            share = self._data_share if is_data else self._share
            if not _fits(has.keys + growth.keys, has.bytes + growth.bytes, share, growth):
                return self._log(
                    f"no more room for {_name(owner)}, with {has.keys} keys and {has.bytes} bytes of at most "
                    f"{share[0]} and {share[1]} (limit run_share={self._limits.run_share:g}). Delete some, or raise it",
                    "" if owner.startswith("@") or owner.endswith("*") else owner,
                )
            records = has.keys - has.data_keys + growth.keys, has.bytes - has.data_bytes + growth.bytes
            # The account of all clients with the full secret belongs to no run.
            is_modest = owner == "@" or _fits(*records, self._record_share, growth)
            if is_scarce and (is_data or not is_modest):
                return self._full(grows, scope)
        return None

    def _growths(self, scope: str, puts: Sequence[Put], more: int) -> tuple[dict[str, Account], Account]:
        """Return the growth of each account, and the sum."""
        growths = {f"@{scope}": Account(bytes=more)}
        total = Account(bytes=more)
        for put in puts:
            owner, is_data = place_of(put.key)
            old = self._table.get(put.key)
            keys, bytes = (1, cost_of(put)) if old is None else (0, max(0, cost_of(put) - cost_of(old)))
            for account in (growths.setdefault(owner, Account()), total):
                account.keys += keys
                account.bytes += bytes
                if is_data:
                    account.data_bytes += bytes
        return growths, total

    def _full(self, growth: Account, scope: str) -> str:
        """Return the message for a full server with its largest account, which a restricted client does not see."""
        has, now = self._table.usage.all, clock.now()
        if self._largest is None or now >= self._largest[0] + LOOK_AGAIN:
            self._largest = (now, *self._table.usage.largest())
        _, owner, account = self._largest
        why = (
            f"the server is full: {has.keys} keys and {has.bytes} bytes, of at most {self._most[0]} and "
            f"{self._most[1]} with {self._limits.reserve:.0%} for the records of runs alone; this needs {growth.keys} "
            f"and {growth.bytes} more"
        )
        whose = f". Most of it is {_name(owner)}: {account.keys} keys and {account.bytes} bytes" if owner else ""
        self._log(why + whose)
        return why + (whose if owner.removeprefix("@").startswith(scope) else f". Most of it is not {scope}*")

    def _log(self, why: str, run: str = "") -> str:
        now = clock.now()
        if now >= self._log_at:
            self._log_at = now + LOG_AGAIN
            fields = log_fields(unquote(run.rpartition("/")[2])) if run else None
            logger.warning("the server at %s refuses a write: %s", self._endpoint, why, extra=fields)
        return why


def _name(owner: str) -> str:
    """Return the owner of an account in words."""
    if owner.startswith("@"):
        return f"clients of {owner[1:]}*" if owner[1:] else "clients"
    return f"{'runs' if owner.endswith('*') else 'run'} {owner}"


def _fits(keys: int, bytes: int, most: tuple[int, int], growth: Account | None = None) -> bool:
    """Tell whether an amount is within bounds; with ``growth``, check only what grows."""
    if growth is not None:
        return (keys <= most[0] or not growth.keys) and (bytes <= most[1] or not growth.bytes)
    return keys <= most[0] and bytes <= most[1]
