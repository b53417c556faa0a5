"""The state of all runs of a server in this process, for its metrics, status page and JSON.

Reads only the server's table. A run with damaged records is shown as such and does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from rendezvous_async.admin import status_of
from rendezvous_async.aio import clock
from rendezvous_async.backends.base import DEFAULT_NAMESPACE, Listing
from rendezvous_async.backends.tcp import TcpServer
from rendezvous_async.core.changes import changes
from rendezvous_async.core.diagnosis import Status
from rendezvous_async.core.state import COORDINATOR, NODES, SEATS, STATE, node_of
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.settings import decode_segment, encode_segment

__all__ = ["Happened", "Overview", "ShownRun"]

PREFIX = f"{DEFAULT_NAMESPACE}/"
REMEMBERED = 20
SHOWN_RUNS = 200
LOOK_AFTER = 0.1


class Happened(msgspec.Struct, frozen=True):
    """A change of a run, and the seconds since it was observed."""

    seconds_ago: float
    what: str


class ShownRun(msgspec.Struct, frozen=True):
    """A run as the status page shows it.

    Attributes:
        run_id: The run.
        status: Its status, with every field of ``core.diagnosis.Status``; None if its records are damaged.
        explanation: The whole status in words, as ``rdzv status`` prints it.
        why: The state, and why a round has not formed, in lines; without the lists that ``status`` has.
        last_seen: For each node, the seconds since its last keep-alive.
        changes: The latest changes, newest first.
    """

    run_id: str
    status: Status | None
    explanation: str
    why: list[str]
    last_seen: dict[str, float]
    changes: list[Happened]


class Overview:
    """Follows a server's runs and describes them on request.

    Attributes:
        rounds_formed: Rounds formed in all runs since this object was created.
    """

    def __init__(self, server: TcpServer) -> None:
        self.server = server
        self.rounds_formed = 0
        self._last: dict[str, Status] = {}
        self._happened: dict[str, deque[tuple[float, str]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._took = 0.0
        server.listeners.append(self._on_change)
        self._dirty = dict.fromkeys(self.run_ids())
        self._note_changes()
        self.rounds_formed = 0  # Rounds from before are not counted.

    def run_ids(self) -> list[str]:
        """Return the ids of all runs that have keys."""
        return run_ids(entry.key for entry in self.server.table.list(PREFIX).entries)

    def runs(self) -> list[ShownRun]:
        """Describe the runs, most recently changed first, up to ``SHOWN_RUNS``."""
        recent = sorted(self.run_ids(), key=lambda run_id: -self._changed_at(run_id))
        return [self._describe(run_id) for run_id in recent[:SHOWN_RUNS]]

    def status(self, run_id: str) -> Status:
        """Return a run's status.

        Raises:
            RendezvousStateError: The run's records are damaged.
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

    def _describe(self, run_id: str) -> ShownRun:
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
            return ShownRun(run_id, None, str(error), [str(error)], seen, happened)
        return ShownRun(run_id, status, str(status), status.why(), seen, happened)

    # Changes

    def _changed_at(self, run_id: str) -> float:
        happened = self._happened.get(run_id)
        return happened[-1][0] if happened else 0.0

    def _on_change(self, keys: Sequence[str]) -> None:
        for run_id in run_ids(key for key in keys if not key.split("/", 2)[-1].startswith("rounds/")):
            self._dirty[run_id] = None
        if self._dirty and self._timer is None:
            # A large run changes a thousand times while it forms; looking may use at most 5 % of the server's time.
            delay = max(LOOK_AFTER, 20 * self._took)
            self._timer = asyncio.get_running_loop().call_later(delay, self._note_changes)

    def _note_changes(self) -> None:
        self._timer = None
        now = clock.now()
        dirty, self._dirty = list(self._dirty), {}
        for run_id in dirty:
            try:
                status = self.status(run_id)
            except RendezvousStateError:
                continue
            before = self._last.get(run_id)
            found = changes(before, status)
            self.rounds_formed += max(0, status.round - (0 if before is None else before.round))
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
    """Return the ids of the runs that the keys belong to, without duplicates."""
    segments = {key[len(PREFIX) :].partition("/")[0]: None for key in keys if key.startswith(PREFIX)}
    return [decode_segment(segment) for segment in segments]
