"""Who gets which rank: three policies, each a plain function of the candidates.

``sticky`` (the default) moves as few nodes as it can and gives rank 0 to a survivor, if there is one. ``sorted`` is
the classic order, by address and node id as text. ``label:<name>`` gives nodes with equal labels contiguous ranks, for
example ``label:rack``, in the order of their old ranks.

Where the settings name a domain, ``sticky`` keeps domains together, too: each has a block of contiguous ranks. A block
stays where its survivors were, if it can; inside a block, ranks are sticky.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

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
    if settings.domain:
        return _by_domain(settings.domain, settings.per_domain, chosen)
    return _sticky(chosen)


def _by_domain(label: str, per_domain: int, chosen: Sequence[Candidate]) -> dict[str, int]:
    """Return sticky ranks in blocks, one for each domain."""
    blocks: dict[str, list[Candidate]] = {}
    for candidate in chosen:
        blocks.setdefault(candidate.labels[label], []).append(candidate)
    ranks: dict[str, int] = {}
    for domain, start in (_sticky_starts(blocks, per_domain, len(chosen)) or _starts_in_turn(blocks)).items():
        members = [_seen_from(start, len(blocks[domain]), candidate) for candidate in blocks[domain]]
        ranks |= {node: start + rank for node, rank in _sticky(members, needs_lead=start == 0).items()}
    return ranks


def _seen_from(start: int, length: int, candidate: Candidate) -> Candidate:
    """Return a candidate with its old rank counted from its block's start; beyond the block if it was not in it."""
    if candidate.rank is None:
        return candidate
    rank = candidate.rank - start
    return msgspec.structs.replace(candidate, rank=rank if 0 <= rank < length else length + candidate.rank)


def _starts_in_turn(blocks: dict[str, list[Candidate]]) -> dict[str, int]:
    """Return where the blocks start if one follows the other."""
    return dict(zip(blocks, accumulate((len(members) for members in blocks.values()), initial=0), strict=False))


def _sticky_starts(blocks: dict[str, list[Candidate]], per_domain: int, size: int) -> dict[str, int] | None:
    """Return where the blocks start if those that can stay do, and the others fill the gaps; None if they do not fit.

    A survivor must have rank 0, if there is one.
    """
    lowest = {domain: members[0].rank for domain, members in blocks.items()}  # Survivors come first, by old rank.
    homes = sorted((rank - rank % per_domain, domain) for domain, rank in lowest.items() if rank is not None)
    starts: dict[str, int] = {}
    gaps: list[tuple[int, int]] = []
    end = 0
    for start, domain in homes:
        if end <= start <= size - len(blocks[domain]):
            starts[domain] = start
            gaps.append((end, start))
            end = start + len(blocks[domain])
    gaps.append((end, size))
    for domain, members in blocks.items():
        if domain not in starts:
            place = next((n for n, (low, high) in enumerate(gaps) if high - low >= len(members)), None)
            if place is None:
                return None
            low, high = gaps[place]
            starts[domain], gaps[place] = low, (low + len(members), high)
    first = min(starts, key=lambda domain: starts[domain])
    if homes and lowest[first] is None:
        heir = min((domain for _, domain in homes), key=lambda domain: starts[domain])
        if len(blocks[heir]) != len(blocks[first]):
            return None
        starts[first], starts[heir] = starts[heir], starts[first]
    return starts


def _sticky(chosen: Sequence[Candidate], needs_lead: bool = True) -> dict[str, int]:
    """Return sticky ranks; a survivor gets rank 0, if there is one."""
    survivors = [candidate for candidate in chosen if candidate.rank is not None]
    ranks = {c.node: c.rank for c in survivors if c.rank is not None and c.rank < len(chosen)}
    free = sorted(set(range(len(chosen))) - set(ranks.values()), reverse=True)
    for candidate in survivors:
        if candidate.node not in ranks:
            ranks[candidate.node] = free.pop()
    if needs_lead and survivors and free and free[-1] == 0:
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
