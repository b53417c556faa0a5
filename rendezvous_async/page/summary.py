"""A run in brief, for a list of hundreds: everything in it is bounded, however many nodes the run has. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from rendezvous_async.core.diagnosis import Role, Status
from rendezvous_async.runs import RunState, patience_of

__all__ = ["Moment", "RunSummary", "summary_of"]

NAMED = 12
CHANGES = 5
LINES = 8
LONGEST = 300
"""Characters of a line."""


class Moment(msgspec.Struct, frozen=True):
    """Something that happened, and when by the server's monotonic clock."""

    at: float
    what: str


class Unsettled(msgspec.Struct, frozen=True):
    """A node that is missing, or came with other settings."""

    node: str
    role: str
    rank: int | None


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in brief. Times are by the server's monotonic clock.

    Attributes:
        id: Its id.
        state: Its state; whoever shows it decides by ``waiting_since`` and ``patience`` when it is stuck.
        waiting_since: Since when its nodes have been waiting; None if they are not.
        patience: After how many seconds of waiting it is stuck.
        round: The last round that formed.
        nodes: The sizes that it may have.
        target: The size that no round exceeds, if there is one.
        domain: The label whose values are its domains.
        here: How many nodes are here.
        roles: How many there are of each role.
        absent: How many members are not here.
        missing: How many more must come.
        why: Its state and what it waits for, in lines.
        unsettled: Some of the nodes that are missing or came with other settings.
        changes: The latest, newest first.
    """

    id: str
    state: RunState
    waiting_since: float | None = None
    patience: float = 0.0
    round: int = 0
    nodes: str = ""
    target: int | None = None
    domain: str = ""
    here: int = 0
    roles: dict[str, int] = {}
    absent: int = 0
    missing: int = 0
    why: Sequence[str] = ()
    unsettled: Sequence[Unsettled] = ()
    changes: Sequence[Moment] = ()


def summary_of(
    run_id: str, status: Status | None, state: RunState, waiting_since: float | None, happened: Sequence[Moment]
) -> RunSummary:
    """Return a run in brief; ``status`` is None if its records are damaged."""
    changes = [Moment(round(moment.at, 2), _cut(moment.what)) for moment in happened[:CHANGES]]
    if status is None:
        return RunSummary(id=run_id, state=state, why=["its records cannot be read"], changes=changes)
    unsettled = [Unsettled(node.node, "absent", node.rank) for node in status.absent[:NAMED]]
    foreign = [Unsettled(node.node, node.role, None) for node in status.here if node.role is Role.FOREIGN]
    unsettled += foreign[: NAMED - len(unsettled)]
    return RunSummary(
        id=run_id,
        state=state,
        waiting_since=None if waiting_since is None else round(waiting_since, 2),
        patience=patience_of(status),
        round=status.round,
        nodes="" if status.spec is None else status.spec.nodes,
        target=None if status.spec is None else status.spec.target,
        domain="" if status.settings is None else status.settings.domain,
        here=len(status.here),
        roles=dict(Counter(present.role.value for present in status.here)),
        absent=len(status.absent),
        missing=status.missing,
        why=[_cut(line) for line in status.why()[:LINES]],
        unsettled=unsettled,
        changes=changes,
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
