"""Who is in the next world, when only certain sizes, and only whole domains, will do.

A world is *valid* if its size is allowed and, where the shape names a domain (an NVLink domain, a rack), it has from
each value of that label a multiple of ``per_domain`` nodes. Nodes without the label are never in. ``choose`` takes

1. the largest valid world, up to the target if there is one and up to the largest allowed size otherwise;
2. among those of that size, one that keeps the most survivors of the last round;
3. among those, first come first served: line up all candidates, survivors by old rank, then newcomers by arrival, and
   compare two worlds by the first candidate in that queue who is in only one of them. The world that has it wins.

Everybody else is a spare. Rule 3 leaves no ties, so the answer is unique.

**Why sorting is enough.** Cut each domain, in the order of the queue, into units of ``per_domain`` nodes; a remainder
is of no use. (Without domains each node is a unit.) All units have the same size, and any number of them makes whole
domains, so the largest world follows from counting units. Of a domain that gives ``m`` units, the first ``m`` are the
best by rules 2 and 3, since survivors stand first in the queue. Hence a domain's units have fewer and fewer survivors,
and the most survivors are kept by taking the units that have the most. Between units with equally many, take the one
whose first node stands earlier: of two sets of as many units, the one that has the earliest unit not in both also has
the earliest node not in both. One sort by (survivors, first node) does both, and never skips a unit of a domain.

**Ranks.** ``ranks.assign_ranks`` takes what ``choose`` returns. Its policies ``sticky``, where there are domains, and
``label:<domain>`` give whole domains contiguous ranks.

``largest_size``, ``is_complete`` and ``count_newcomers`` need only the number of nodes in each domain, which a tally
keeps up one record at a time; each is linear in the number of domains, but for sorting. A tally also keeps the number
of units, from which alone the size follows (``Shape.size_of``). Nothing here decides when to form, or waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rendezvous_async.core import ranks
from rendezvous_async.core.ranks import Candidate
from rendezvous_async.sizes import Sizes, check_domains
from rendezvous_async.texts import counted, printable

__all__ = [
    "Fit",
    "Shape",
    "choose",
    "count_domains",
    "count_newcomers",
    "explain",
    "is_complete",
    "largest_size",
]

SHOW_AT_MOST = 4
"""How many domains a text names."""


class Shape(msgspec.Struct, frozen=True):
    """Which worlds are valid.

    Attributes:
        sizes: The sizes that are allowed.
        domain: The label whose values are domains; empty: there are none.
        per_domain: A world has a multiple of this number of nodes from each domain.
        target: No world is larger than this; None: only the sizes say so.
    """

    sizes: Sizes
    domain: str = ""
    per_domain: int = 1
    target: int | None = None

    def __post_init__(self) -> None:
        check_domains(self.sizes, self.domain, self.per_domain)
        if self.target is not None and self.target not in self.valid_sizes:
            below, above = self.size_within(self.target), self.size_after(self.target)
            nearest = " or ".join(str(size) for size in (below, above) if size)
            raise ValueError(f"the target {self.target} is not a size that a world can have; the nearest is {nearest}")

    @property
    def valid_sizes(self) -> Sequence[int]:
        """The allowed sizes that whole domains can have, in increasing order; the target does not count."""
        return self.sizes.multiples_of(self.per_domain)

    @property
    def most(self) -> int:
        """The size of the largest world that may form."""
        return self.valid_sizes[-1] if self.target is None else self.target

    def size_of(self, units: int) -> int:
        """Return the size of the largest world of so many whole units of ``per_domain`` nodes; 0 if there is none."""
        return self.size_within(min(units * self.per_domain, self.most))

    def size_within(self, nodes: int) -> int:
        """Return the largest valid size of at most ``nodes``; 0 if there is none."""
        sizes = self.valid_sizes
        position = bisect_right(sizes, nodes)
        return sizes[position - 1] if position else 0

    def size_after(self, size: int) -> int:
        """Return the next larger valid size, whatever the target; 0 if there is none."""
        sizes = self.valid_sizes
        position = bisect_right(sizes, size)
        return sizes[position] if position < len(sizes) else 0

    def domain_of(self, candidate: Candidate) -> str | None:
        """Return the domain that a candidate is in; None if it lacks the label."""
        return candidate.labels.get(self.domain) if self.domain else ""


def count_domains(candidates: Iterable[Candidate], shape: Shape) -> Counter[str]:
    """Return how many of the candidates are in each domain; those without the label are left out."""
    return Counter(domain for c in candidates if (domain := shape.domain_of(c)) is not None)


def largest_size(domains: Mapping[str, int], shape: Shape) -> int:
    """Return the size of the largest world of these nodes; 0 if there is no valid one."""
    return shape.size_of(_units(domains, shape))


def is_complete(domains: Mapping[str, int], shape: Shape) -> bool:
    """Whether no larger world can come, whoever arrives: there is nothing to wait for."""
    return largest_size(domains, shape) == shape.most


def count_newcomers(members: Mapping[str, int], newcomers: Mapping[str, int], shape: Shape) -> int:
    """Return how many newcomers are in the world of all, if that is larger than the members' own; 0 if it is not.

    Then the newcomers are spares, and no reason for anybody to restart.
    """
    everybody = Counter(members) + Counter(newcomers)
    size = largest_size(everybody, shape)
    if size <= largest_size(members, shape):
        return 0
    # As ``choose`` does: the units that have the most members are taken first. A domain has some units of members
    # alone, at most one with members and newcomers, and some without members.
    unit = shape.per_domain
    taken = size // unit
    whole = sum(count // unit for count in members.values())
    mixed = sorted(
        (count % unit for domain, count in members.items() if everybody[domain] // unit > count // unit), reverse=True
    )
    return size - unit * min(whole, taken) - sum(mixed[: max(0, taken - whole)])


def choose(candidates: Sequence[Candidate], shape: Shape) -> list[Candidate]:
    """Return who is in the next world, survivors by old rank, then newcomers as they came; nobody if none is valid.

    Of two that claim one old rank the earlier arrival has it; the other counts as a newcomer.
    """
    queue = ranks.choose(candidates, len(candidates))
    if not shape.domain:
        return queue[: largest_size({"": len(queue)}, shape)]
    places: dict[str, list[int]] = {}
    survivors = 0
    for place, candidate in enumerate(queue):
        survivors += candidate.rank is not None
        domain = shape.domain_of(candidate)
        if domain is not None:
            places.setdefault(domain, []).append(place)
    size = largest_size({domain: len(found) for domain, found in places.items()}, shape)
    unit = shape.per_domain
    units = [found[at : at + unit] for found in places.values() for at in range(0, len(found) - unit + 1, unit)]
    units.sort(key=lambda found: (-sum(place < survivors for place in found), found[0]))
    return [queue[place] for place in sorted(place for found in units[: size // unit] for place in found)]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How some nodes fit into a shape; ``str()`` of it explains it.

    Attributes:
        shape: Into which.
        here: How many nodes there are.
        usable: The size of the largest world of them; 0 if there is no valid one.
        unlabelled: How many of them lack the domain's label.
        partial: The domains that have a remainder, with all their nodes; those that lack fewest first.
        next_size: The next larger size that may form; 0 if there is none.
        missing: How many more nodes that takes at least.
        fill: The domains of which any one makes the next size if all that is missing arrives there.
    """

    shape: Shape
    here: int
    usable: int
    unlabelled: int
    partial: tuple[tuple[str, int], ...]
    next_size: int = 0
    missing: int = 0
    fill: tuple[str, ...] = ()

    def __str__(self) -> str:
        usable = "all" if self.usable == self.here > 0 else self.usable or "none"
        reasons = ", ".join(self._reasons())
        return f"{self.here} here, {usable} usable: {reasons}{'; ' if reasons else ''}{self._outlook()}"

    def _reasons(self) -> Iterable[str]:
        unit = self.shape.per_domain
        if self.next_size:
            for domain, nodes in self.partial[:SHOW_AT_MOST]:
                yield f"domain {printable(domain)} has {nodes} of {nodes + -nodes % unit}"
            if len(self.partial) > SHOW_AT_MOST:
                yield f"{counted(len(self.partial) - SHOW_AT_MOST, 'other domain')} not whole"
        if self.unlabelled:
            yield f"{counted(self.unlabelled, 'node')} without the label {printable(self.shape.domain)}"

    def _outlook(self) -> str:
        if not self.next_size:
            return f"{self.usable} is the {'largest size' if self.shape.target is None else 'target'}"
        return f"{counted(self.missing, 'more node')}{self.where} would make {self.next_size}"

    @property
    def where(self) -> str:
        """Where the nodes that are missing must be, to be put behind their number: others are of no use."""
        if self.fill:
            more = len(self.fill) - SHOW_AT_MOST
            others = [counted(more, "other")] if more > 0 else []
            return " in domain " + " or ".join([*map(printable, self.fill[:SHOW_AT_MOST]), *others])
        if self.shape.per_domain > 1:
            in_one = not self.partial and self.missing == self.shape.per_domain
            return " in one domain" if in_one else " in the right domains"
        return f" with the label {printable(self.shape.domain)}" if self.shape.domain else ""


def explain(domains: Mapping[str, int], shape: Shape, unlabelled: int = 0) -> Fit:
    """Return how nodes fit into a shape, and what the next size takes.

    Args:
        domains: How many nodes each domain has, see ``count_domains``.
        shape: Which worlds are valid.
        unlabelled: How many more are here without the label.
    """
    unit, usable = shape.per_domain, largest_size(domains, shape)
    here = sum(domains.values()) + unlabelled
    lacking = sorted((-count % unit, domain) for domain, count in domains.items() if count % unit)
    partial = tuple((domain, domains[domain]) for _, domain in lacking)
    fit = Fit(shape=shape, here=here, usable=usable, unlabelled=unlabelled, partial=partial)
    if usable == shape.most:
        return fit
    next_size = shape.size_after(usable)
    wanted = next_size // unit - _units(domains, shape)
    filled = [count for count, _ in lacking[:wanted]]
    missing = sum(filled) + unit * (wanted - len(filled))
    fill = tuple(domain for count, domain in lacking if count == missing) if wanted == 1 else ()
    return msgspec.structs.replace(fit, next_size=next_size, missing=missing, fill=fill)


def _units(domains: Mapping[str, int], shape: Shape) -> int:
    return sum(count // shape.per_domain for count in domains.values())
