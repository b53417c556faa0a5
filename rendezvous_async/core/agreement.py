"""Whose settings hold, if nodes come to one run with different ones.

A run that has a past goes by the settings of its head for as long as somebody of that past is here: a member that holds
the round, or one that is back at the barrier. A newcomer with other settings is refused at once.

Otherwise the most numerous settings win, then those whose first node came earliest. Nobody who comes can know how many
others will agree with it, so a node that is at odds with the head puts its record all the same, and waits for
``AGREE_WITHIN`` seconds. The coordinator sees the whole roster: when the head's settings are outnumbered, it hands the
head over to the others. Whoever is still at odds when its time is over, is refused.

If nobody here goes by the head's settings, the head is of a run that is over, and whoever comes replaces them.
"""

from __future__ import annotations

from rendezvous_async.core.tally import Tally
from rendezvous_async.settings import settings_of

__all__ = ["AGREE_WITHIN", "is_abandoned", "is_settled", "prevailing"]

AGREE_WITHIN = 2.0
"""Seconds that a node with other settings waits for others that agree with it."""


def is_abandoned(tally: Tally) -> bool:
    """Tell whether nobody is here who goes by the head's settings."""
    return not tally.holding and not tally.at_barrier


def is_settled(tally: Tally) -> bool:
    """Tell whether the head's settings hold whoever comes: somebody is here who has been in a round of this run."""
    return bool(tally.holding) or tally.has_survivor


def prevailing(tally: Tally) -> str:
    """Return the fingerprint of the settings that hold, given everybody who is here.

    Settings that cannot be read, since a newer version wrote them, never win.
    """
    ours = tally.head.settings.fingerprint
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
