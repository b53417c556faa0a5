"""Which settings hold when nodes come to one run with different ones.

Once a round has formed, the settings in the head hold for as long as a member of that past is here: it holds the round,
or it is back at the barrier. The same is true of a run that was scaled, as long as a node with its settings is here. A
newcomer with other settings is refused at once.

Otherwise the most numerous settings win, and among equals those whose first node came earliest. A node that disagrees
with the head cannot know how many others will agree with it. So it puts its record and waits for ``AGREE_WITHIN``
seconds. The coordinator sees the whole roster: when the head's settings are outnumbered, it hands the head over to the
others. A node that still disagrees when its time is over is refused.

If no node here has the head's settings, the head belongs to a run that is over, and the next node replaces them.
"""

from __future__ import annotations

from rendezvous_async.core.tally import Tally
from rendezvous_async.settings import settings_of

__all__ = ["AGREE_WITHIN", "is_abandoned", "is_settled", "prevailing"]

AGREE_WITHIN = 2.0
"""Seconds that a node with other settings waits for others that agree with it."""


def is_abandoned(tally: Tally) -> bool:
    """Return whether no node here has the head's settings."""
    return not tally.holding and not tally.at_barrier


def is_settled(tally: Tally) -> bool:
    """Return whether the head's settings bind newcomers too.

    They do if some node here has been in a round of this run, or if the run was scaled: what somebody has decided for
    it is not lost because more nodes come with other settings.
    """
    return bool(tally.holding) or tally.has_survivor or tally.head.generation > 0


def prevailing(tally: Tally) -> str:
    """Return the fingerprint of the settings that hold, given the nodes that are here.

    Settings that cannot be read, since a newer version wrote them, never win.
    """
    ours = tally.head.fingerprint
    if not tally.rivals or is_settled(tally):
        return ours
    readable = [rival for rival in tally.rivals if settings_of(rival) is not None]
    counts = {ours: tally.at_barrier} | {rival: tally.rivals[rival] for rival in readable}
    most = max(counts.values())
    leading = [each for each, count in counts.items() if count == most]
    if len(leading) == 1:
        return leading[0]
    firsts: dict[str, int] = {}
    for record, order in tally.records.values():
        firsts[record.fingerprint] = min(order, firsts.get(record.fingerprint, order))
    return min(leading, key=lambda each: firsts[each])
