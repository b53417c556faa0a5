"""The state of all runs of a server in this process, for its metrics, status page and JSON.

Reads only the server's table. A run with damaged records is shown as such and does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from rendezvous_async.admin import read_head, status_of
from rendezvous_async.aio import clock
from rendezvous_async.backends.base import DEFAULT_NAMESPACE, Listing
from rendezvous_async.backends.tcp import TcpServer
from rendezvous_async.backends.tcp.server.counts import Durations
from rendezvous_async.core.changes import changes
from rendezvous_async.core.codec import decode
from rendezvous_async.core.diagnosis import Status
from rendezvous_async.core.state import COORDINATOR, NODES, SEATS, STATE, Node, Phase, node_of
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.page.summary import Moment, RunSummary, summary_of
from rendezvous_async.runs import RunState, state_of
from rendezvous_async.settings import decode_segment, encode_segment

__all__ = ["Happened", "Overview", "ShownRun"]

PREFIX = f"{DEFAULT_NAMESPACE}/"
REMEMBERED = 20
SHOWN_RUNS = 200
DESCRIBED_NODES = 5000
SHOWN_LABELS = 8
FORMATION_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
HEAD_ENDING = f"/{STATE}"
HEAD_DEPTH = 2
"""How many slashes the key of a run's head has."""
LOOK_AFTER = 0.1
LONGEST_PAUSE = 5.0
"""One look that took long, on a machine that was busy, does not keep the page back for longer."""


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
        state: The state in one word.
        labels: What nodes say about themselves, by node; cut off if there is much of it.
        waiting_seconds: For how long nodes have been waiting for the next round; 0 if none is.
    """

    run_id: str
    status: Status | None
    explanation: str
    why: list[str]
    last_seen: dict[str, float]
    changes: list[Happened]
    state: RunState
    waiting_seconds: float
    labels: dict[str, dict[str, str]]


class Overview:
    """Follows a server's runs and describes them on request.

    Attributes:
        rounds_formed: Rounds formed in all runs since this object was created.
        formations: How long that took, from when the first node waited.
        listeners: Called with the runs that have changed; must not raise.
    """

    def __init__(self, server: TcpServer) -> None:
        self.server = server
        self.rounds_formed = 0
        self.formations = Durations(FORMATION_BOUNDS)
        self.listeners: list[Callable[[Sequence[str]], None]] = []
        self._last: dict[str, Status | None] = {}
        self._rounds: dict[str, int] = {}
        self._waiting_since: dict[str, float] = {}
        self._happened: dict[str, deque[tuple[float, str]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._took = 0.0
        server.listeners.append(self._on_change)
        self._dirty = dict.fromkeys(self.run_ids())
        for run_id in self._dirty:
            self._follow_head(run_id)
        self._note_changes()
        self.rounds_formed = 0  # Rounds from before are not counted.

    def run_ids(self) -> list[str]:
        """Return the ids of all runs that have keys."""
        return run_ids(entry.key for entry in self.server.table.list(PREFIX).entries)

    def runs(self) -> list[ShownRun]:
        """Describe the runs, the stuck ones and then the most recently changed first, up to ``SHOWN_RUNS``."""
        self.look()
        return [self.describe(run_id) for run_id in self.ranked()[:SHOWN_RUNS]]

    def states(self) -> Counter[RunState]:
        """Return how many runs are in each state, also of those that are not shown."""
        self.look()
        now = clock.now()
        return Counter(self._state(run_id, now) for run_id in self._last)

    def ranked(self) -> list[str]:
        """Return all runs as of the last look, the stuck ones and then the most recently changed first."""
        now = clock.now()

        def place(run_id: str) -> tuple[bool, float]:
            if self._state(run_id, now) is RunState.STUCK:
                return False, self._waiting_since[run_id]
            return True, -self._changed_at(run_id)

        return sorted(self._last, key=place)

    def state(self, run_id: str) -> RunState:
        """Return the state of a run, as of the last look."""
        return self._state(run_id, clock.now())

    def summary(self, run_id: str) -> RunSummary | None:
        """Return a run in brief, as of the last look; None if there is no such run."""
        if run_id not in self._last:
            return None
        happened = [Moment(at, what) for at, what in reversed(self._happened.get(run_id, deque()))]
        status = self._last[run_id]
        since = self._waiting_since.get(run_id)
        return summary_of(run_id, status, self._state(run_id, clock.now()), since, happened)

    def _state(self, run_id: str, now: float) -> RunState:
        return state_of(self._last[run_id], now - self._waiting_since.get(run_id, now))

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

    def describe(self, run_id: str) -> ShownRun:
        """Describe a run in full, as it is now."""
        now = clock.now()
        seen: dict[str, float] = {}
        labels: dict[str, dict[str, str]] = {}
        for entry in self._list(run_id, NODES).entries:
            if len(seen) >= DESCRIBED_NODES:
                break
            at = None if entry.session is None else self.server.table.refreshed_at(entry.session)
            if at is not None:
                seen[node_of(entry.key)] = round(max(0.0, now - at), 2)
            with suppress(RendezvousStateError):
                own = decode(Node, entry.value, entry.key).labels
                if own:
                    labels[node_of(entry.key)] = {key[:64]: own[key][:64] for key in [*own][:SHOWN_LABELS]}
        happened = [
            Happened(round(max(0.0, now - at), 1), what) for at, what in reversed(self._happened.get(run_id, deque()))
        ]
        try:
            status = self.status(run_id)
        except RendezvousStateError as error:
            return ShownRun(run_id, None, str(error), [str(error)], seen, happened, RunState.DAMAGED, 0.0, labels)
        waiting = round(max(0.0, now - self._waiting_since.get(run_id, now)), 1)
        state = state_of(status, waiting)
        return ShownRun(run_id, status, str(status), status.why(), seen, happened, state, waiting, labels)

    # Changes

    def _changed_at(self, run_id: str) -> float:
        happened = self._happened.get(run_id)
        return happened[-1][0] if happened else 0.0

    def _on_change(self, keys: Sequence[str]) -> None:
        for run_id in run_ids(key for key in keys if not key.split("/", 2)[-1].startswith("rounds/")):
            self._dirty[run_id] = None
        for key in keys:
            if key.endswith(HEAD_ENDING) and key.count("/") == HEAD_DEPTH and key.startswith(PREFIX):
                self._follow_head(*run_ids([key]))
        if self._dirty and self._timer is None:
            # A large run changes a thousand times while it forms; looking may use at most 5 % of the server's time.
            delay = min(max(LOOK_AFTER, 20 * self._took), LONGEST_PAUSE)
            self._timer = asyncio.get_running_loop().call_later(delay, self._note_changes)

    def _follow_head(self, run_id: str) -> None:
        """Note since when nodes have been waiting, and how long it took until a round formed."""
        try:
            head = read_head(next(iter(self._list(run_id, STATE).entries), None))
        except RendezvousStateError:
            return
        if head is None:
            self._rounds.pop(run_id, None)
            self._waiting_since.pop(run_id, None)
            return
        before, self._rounds[run_id] = self._rounds.get(run_id, 0), head.round
        if head.round > before:
            self.rounds_formed += head.round - before
            since = self._waiting_since.pop(run_id, None)
            if since is not None:
                self.formations.add(clock.now() - since)
        if head.closed is not None:
            self._waiting_since.pop(run_id, None)
        elif head.phase is Phase.GATHERING or head.lost or head.returned:
            self._waiting_since.setdefault(run_id, clock.now())

    def look(self) -> None:
        """Look now at what has changed, instead of in a moment."""
        if self._timer is not None:
            self._timer.cancel()
            self._note_changes()

    def _note_changes(self) -> None:
        self._timer = None
        now = clock.now()
        dirty, self._dirty = list(self._dirty), {}
        for run_id in dirty:
            try:
                status = self.status(run_id)
            except RendezvousStateError:
                self._last[run_id] = None
                continue
            if status.settings is None and not status.here:
                self._last.pop(run_id, None)
                self._happened.pop(run_id, None)
                continue
            found = changes(self._last.get(run_id), status)
            if not status.here:  # Nobody waits, until the next one comes.
                self._waiting_since.pop(run_id, None)
            elif status.phase is Phase.GATHERING and status.closed is None:
                self._waiting_since.setdefault(run_id, now)
            self._last[run_id] = status
            happened = self._happened.setdefault(run_id, deque(maxlen=REMEMBERED))
            happened.extend((now, what) for what in found)
        self._took = clock.now() - now
        for listener in self.listeners:
            listener(dirty)

    def close(self) -> None:
        """Stop following."""
        self.server.listeners.remove(self._on_change)
        if self._timer is not None:
            self._timer.cancel()


def run_ids(keys: Iterable[str]) -> list[str]:
    """Return the ids of the runs that the keys belong to, without duplicates."""
    segments = {key[len(PREFIX) :].partition("/")[0]: None for key in keys if key.startswith(PREFIX)}
    return [decode_segment(segment) for segment in segments]
