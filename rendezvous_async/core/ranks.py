"""Who gets which rank: three policies, each a plain function of the candidates.

``sticky`` (the default) moves as few nodes as it can and gives rank 0 to a survivor, if there is one. ``sorted`` is
the classic order, by address and node id as text. ``label:<name>`` gives nodes with equal labels contiguous ranks, for
example ``label:rack``, sticky inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rendezvous_async.settings import Settings

__all__ = ["Candidate", "assign_ranks", "choose"]


class Candidate(msgspec.Struct, frozen=True):
    """A node at the barrier.

    Attributes:
        node: Its id.
        order: The revision of its arrival: smaller came first.
        rank: Its rank in the last round, if it held it.
        address: Where other members reach it, by its own account.
        labels: What it says about itself.
    """

    node: str
    order: int
    rank: int | None = None
    address: str = ""
    labels: dict[str, str] = {}


def choose(candidates: Sequence[Candidate], places: int) -> list[Candidate]:
    """Return who gets in: survivors by their old rank, then newcomers first come first served.

    Of two that claim one old rank the earlier arrival has it; the other counts as a newcomer.
    """
    survivors: dict[int, Candidate] = {}
    newcomers: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: (candidate.order, candidate.node)):
        if candidate.rank is None:
            newcomers.append(candidate)
        elif candidate.rank in survivors:
            newcomers.append(msgspec.structs.replace(candidate, rank=None))
        else:
            survivors[candidate.rank] = candidate
    return [*(survivors[rank] for rank in sorted(survivors)), *newcomers][:places]


def assign_ranks(settings: Settings, chosen: Sequence[Candidate]) -> dict[str, int]:
    """Return a rank for each of the ``chosen``, 0 to their number, by the policy of the settings."""
    if settings.ranks == "sorted":
        return _number(sorted(chosen, key=lambda candidate: (candidate.address, candidate.node)))
    if settings.label is not None:
        return _number(_by_label(settings.label, chosen))
    return _sticky(chosen)


def _sticky(chosen: Sequence[Candidate]) -> dict[str, int]:
    survivors = [candidate for candidate in chosen if candidate.rank is not None]
    ranks = {c.node: c.rank for c in survivors if c.rank is not None and c.rank < len(chosen)}
    free = sorted(set(range(len(chosen))) - set(ranks.values()), reverse=True)
    for candidate in survivors:
        if candidate.node not in ranks:
            ranks[candidate.node] = free.pop()
    if survivors and free and free[-1] == 0:
        lowest = min(ranks, key=lambda node: ranks[node])
        free[-1] = ranks[lowest]
        ranks[lowest] = 0
        free.sort(reverse=True)
    for candidate in chosen:
        if candidate.rank is None:
            ranks[candidate.node] = free.pop()
    return ranks


def _by_label(label: str, chosen: Sequence[Candidate]) -> list[Candidate]:
    """Return the chosen with equal labels side by side; a group stands where its first member stood."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in chosen:
        groups.setdefault(candidate.labels[label], []).append(candidate)
    return [candidate for group in groups.values() for candidate in group]


def _number(chosen: Sequence[Candidate]) -> dict[str, int]:
    return {candidate.node: rank for rank, candidate in enumerate(chosen)}
