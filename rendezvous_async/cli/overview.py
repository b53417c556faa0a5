"""All runs of a server, seen from inside its process: for its metrics, its status page and its JSON.

Reads the server's table and nothing else; a run whose records are damaged is shown as such and disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from rendezvous_async import clock
from rendezvous_async.backends.base import DEFAULT_NAMESPACE, Listing
from rendezvous_async.backends.tcp import TcpServer
from rendezvous_async.cli.changes import changes
from rendezvous_async.control import status_of
from rendezvous_async.core.diagnosis import Status
from rendezvous_async.core.state import COORDINATOR, NODES, SEATS, STATE, node_of
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.settings import decode_segment, encode_segment

__all__ = ["Happened", "Overview", "Run"]

PREFIX = f"{DEFAULT_NAMESPACE}/"
REMEMBERED = 20
SHOWN_RUNS = 200
LOOK_AFTER = 0.1


class Happened(msgspec.Struct, frozen=True):
    """A change of a run, and how many seconds ago it was seen."""

    seconds_ago: float
    what: str


class Run(msgspec.Struct, frozen=True):
    """A run as the status page shows it.

    Attributes:
        run_id: Which run.
        status: How it stands; None if its records cannot be read.
        explanation: The same in words, complete, as ``rdzv status`` prints it.
        why: How it stands and why it has not formed, without what the status lists: a line each.
        last_seen: For each node, the seconds since its last sign of life.
        changes: What happened last, the newest first.
    """

    run_id: str
    status: Status | None
    explanation: str
    why: list[str]
    last_seen: dict[str, float]
    changes: list[Happened]


class Overview:
    """Follows a server's runs, and describes them when asked."""

    def __init__(self, server: TcpServer) -> None:
        self.server = server
        self._last: dict[str, Status] = {}
        self._happened: dict[str, deque[tuple[float, str]]] = {}
        self._dirty: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._took = 0.0
        server.listeners.append(self._on_change)
        self._on_change([entry.key for entry in server.table.list(PREFIX).entries])

    def run_ids(self) -> list[str]:
        """Return the ids of all runs that there is anything of."""
        return run_ids(entry.key for entry in self.server.table.list(PREFIX).entries)

    def runs(self) -> list[Run]:
        """Describe the runs, those that changed last first."""
        recent = sorted(self.run_ids(), key=lambda run_id: -self._changed_at(run_id))
        return [self._describe(run_id) for run_id in recent[:SHOWN_RUNS]]

    def status(self, run_id: str) -> Status:
        """Return how a run stands.

        Raises:
            RendezvousStateError: Its records are damaged.
        """
        return status_of(
            run_id,
            next(iter(self._list(run_id, STATE).entries), None),
            next(iter(self._list(run_id, COORDINATOR).entries), None),
            self._list(run_id, SEATS).entries,
            self._list(run_id, NODES).entries,
        )

    def _list(self, run_id: str, name: str) -> Listing:
        prefix = f"{PREFIX}{encode_segment(run_id)}/"
        return self.server.table.list(prefix + name).relative_to(prefix)

    def _describe(self, run_id: str) -> Run:
        now = clock.now()
        seen = {}
        for entry in self._list(run_id, NODES).entries:
            at = None if entry.session is None else self.server.table.refreshed_at(entry.session)
            if at is not None:
                seen[node_of(entry.key)] = round(max(0.0, now - at), 2)
        happened = [
            Happened(round(max(0.0, now - at), 1), what) for at, what in reversed(self._happened.get(run_id, deque()))
        ]
        try:
            status = self.status(run_id)
        except RendezvousStateError as error:
            return Run(run_id, None, str(error), [str(error)], seen, happened)
        return Run(run_id, status, str(status), status.why(), seen, happened)

    # Changes

    def _changed_at(self, run_id: str) -> float:
        happened = self._happened.get(run_id)
        return happened[-1][0] if happened else 0.0

    def _on_change(self, keys: Sequence[str]) -> None:
        for run_id in run_ids(key for key in keys if not key.split("/", 2)[-1].startswith("rounds/")):
            self._dirty[run_id] = None
        if self._dirty and self._timer is None:
            # A large run changes a thousand times while it forms; looking must not take the server's time.
            delay = max(LOOK_AFTER, 20 * self._took)
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        now = clock.now()
        dirty, self._dirty = list(self._dirty), {}
        for run_id in dirty:
            try:
                status = self.status(run_id)
            except RendezvousStateError:
                continue
            found = changes(self._last.get(run_id), status)
            if status.settings is None:
                self._last.pop(run_id, None)
                self._happened.pop(run_id, None)
                continue
            self._last[run_id] = status
            happened = self._happened.setdefault(run_id, deque(maxlen=REMEMBERED))
            happened.extend((now, what) for what in found)
        self._took = clock.now() - now

    def close(self) -> None:
        """Stop following."""
        self.server.listeners.remove(self._on_change)
        if self._timer is not None:
            self._timer.cancel()


def run_ids(keys: Iterable[str]) -> list[str]:
    """Return the ids of the runs that some keys belong to, each once."""
    segments = {key[len(PREFIX) :].partition("/")[0]: None for key in keys if key.startswith(PREFIX)}
    return [decode_segment(segment) for segment in segments]
