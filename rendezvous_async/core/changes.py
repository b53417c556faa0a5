"""What has changed between two looks at a run, in words. Pure."""

from __future__ import annotations

from rendezvous_async.core.diagnosis import Status
from rendezvous_async.core.state import Phase
from rendezvous_async.texts import counted, printable

__all__ = ["changes"]

SHOW_AT_MOST = 8


def changes(before: Status | None, now: Status) -> list[str]:
    """Return what has happened to a run since ``before``, the most important first."""
    if before is None:
        before = Status(run_id=now.run_id)
    found = []
    if now.closed is not None and before.closed is None:
        found.append(f"closed by {now.closed.in_words}")
    if now.spec is not None and before.spec is not None and now.spec.generation != before.spec.generation:
        found.append(f"scaled from {before.spec} to {now.spec}")
    if now.round != before.round:
        members = sum(present.rank is not None for present in now.here) + len(now.absent)
        found.append(f"round {now.round} has formed with {counted(members, 'member')}")
    elif now.phase is not before.phase and now.phase is Phase.GATHERING and now.closed is None:
        found.append(f"round {now.round} is over; gathering the next")
    was = {present.node: present for present in before.here}
    here = {present.node: present for present in now.here}
    found += _named("here now", [node for node in here if node not in was])
    found += _named("gone", [node for node in was if node not in here])
    if now.round == before.round:
        for node, present in here.items():
            if node in was and was[node].role is not present.role:
                found.append(f"{printable(node)} is {present.role} now; it was {was[node].role}")
    if now.held_back and now.held_back != before.held_back:
        found.append(f"{counted(now.held_back, 'newcomer')} held back")
    if now.coordinator != before.coordinator and now.coordinator is not None:
        found.append(f"{printable(now.coordinator)} coordinates")
    return found


def _named(what: str, nodes: list[str]) -> list[str]:
    more = f" and {len(nodes) - SHOW_AT_MOST} more" if len(nodes) > SHOW_AT_MOST else ""
    return [f"{what}: {', '.join(map(printable, nodes[:SHOW_AT_MOST]))}{more}"] if nodes else []
