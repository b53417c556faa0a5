"""All runs of a namespace, and the state of each in one word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum

from rendezvous_async.admin import status_of
from rendezvous_async.backends.base import Backend, Entry
from rendezvous_async.core.diagnosis import Role, Status
from rendezvous_async.core.state import COORDINATOR, NODES, SEATS, STATE, Phase
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.settings import decode_segment

__all__ = ["RunState", "patience_of", "read_runs", "state_of", "statuses_in"]

STUCK_AFTER = 10.0
"""Seconds beyond its last call for which nodes of a run wait before it counts as stuck."""


class RunState(StrEnum):
    """The state of a run: how far its nodes are, the most urgent first."""

    STUCK = "stuck"
    DAMAGED = "damaged"
    WAITING = "waiting"
    FORMED = "formed"
    IDLE = "idle"
    CLOSED = "closed"


def state_of(status: Status | None, waiting_seconds: float = 0.0) -> RunState:
    """Return the state of a run.

    Args:
        status: Its status; None if its records are damaged.
        waiting_seconds: For how long its nodes have been waiting, if that is known.
    """
    if status is None:
        return RunState.DAMAGED
    if status.closed is not None:
        return RunState.CLOSED
    if not status.here:
        return RunState.IDLE
    if status.phase is Phase.FORMED and not status.absent and not status.nodes(Role.BACK):
        return RunState.FORMED
    return RunState.STUCK if waiting_seconds > patience_of(status) else RunState.WAITING


def patience_of(status: Status) -> float:
    """Return the seconds after which a run whose nodes wait counts as stuck."""
    return STUCK_AFTER + (0.0 if status.settings is None else status.settings.last_call)


async def read_runs(backend: Backend) -> dict[str, Status | RendezvousStateError]:
    """Read the status of every run in a backend's namespace, by its id; an error if its records are damaged.

    The backend refuses this if the namespace has more keys than it lists at once.
    """
    root = backend.prefix[: backend.prefix.rstrip("/").rfind("/") + 1]
    return statuses_in((await backend.driver.list(root)).relative_to(root).entries)


def statuses_in(entries: Iterable[Entry]) -> dict[str, Status | RendezvousStateError]:
    """Return the status of every run by its id, from all entries of a namespace."""
    by_run: dict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        segment, _, key = entry.key.partition("/")
        by_run[segment][key] = entry.relative_to(f"{segment}/")
    return {(run_id := decode_segment(segment)): _status(run_id, found) for segment, found in by_run.items()}


def _status(run_id: str, found: Mapping[str, Entry]) -> Status | RendezvousStateError:
    def within(subtree: str) -> list[Entry]:
        return [entry for key, entry in found.items() if key.startswith(subtree)]

    try:
        return status_of(run_id, found.get(STATE), found.get(COORDINATOR), within(SEATS), within(NODES))
    except RendezvousStateError as error:
        return error
