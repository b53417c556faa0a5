"""Random nodes and shapes, and an oracle that tries every set of nodes: what is said of shapes is checked on these.

The oracle knows nothing of units or domains that fill up. It goes through the sizes, the largest first, and through all
sets of nodes of that size in the order that the rules name; the first valid set with the most survivors is the answer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from rendezvous_async.core.ranks import Candidate
from rendezvous_async.core.shape import Shape
from rendezvous_async.sizes import Sizes, parse_sizes

DOMAINS = "ABCD"
LABEL = "nvlink"


def random_sizes(rng: random.Random) -> Sizes:
    """Return sizes of every kind that ``parse_sizes`` knows."""
    low = rng.randint(1, 4)
    match rng.randrange(4):
        case 0:
            return parse_sizes(low)
        case 1:
            return parse_sizes((low, rng.randint(low, 12)))
        case 2:
            step = rng.randint(1, 4)
            return parse_sizes(f"{low}:{low + step * rng.randint(0, 4)}:{step}")
        case _:
            return parse_sizes(sorted(rng.sample(range(1, 13), rng.randint(1, 5))))


def random_shape(rng: random.Random) -> Shape:
    """Return a shape that some world fits; with whole domains in two of three, with a target now and then."""
    while True:
        domain, per_domain = ("", 1) if rng.random() < 0.34 else (LABEL, rng.choice((1, 2, 2, 3, 4)))
        try:
            shape = Shape(random_sizes(rng), domain, per_domain)
        except ValueError:
            continue
        if rng.random() < 0.2:
            return Shape(shape.sizes, domain, per_domain, rng.choice(shape.valid_sizes))
        return shape


def random_nodes(rng: random.Random, most: int) -> list[Candidate]:
    """Return nodes in no particular order: survivors and newcomers, with and without a label."""
    count = max(rng.randint(0, most), rng.randint(0, most))
    orders = rng.sample(range(2 * count), count)
    old_ranks = iter(rng.sample(range(2 * count), count))
    loyal = rng.random()
    domains = DOMAINS[: rng.randint(1, len(DOMAINS))]
    return [
        Candidate(
            f"n{number}",
            order,
            next(old_ranks) if rng.random() < loyal else None,
            labels={} if rng.random() < 0.05 else {LABEL: rng.choice(domains)},
        )
        for number, order in enumerate(orders)
    ]


def in_order(nodes: Sequence[Candidate]) -> list[Candidate]:
    """Return survivors by their old ranks, which must differ, then newcomers by arrival."""
    survivors = sorted((node for node in nodes if node.rank is not None), key=lambda node: node.rank or 0)
    return survivors + sorted((node for node in nodes if node.rank is None), key=lambda node: node.order)


def is_valid(world: Sequence[Candidate], shape: Shape) -> bool:
    """Whether a world is of a size that may form, and made of whole domains."""
    if len(world) not in shape.sizes.allowed or len(world) > (shape.target or len(world)):
        return False
    if not shape.domain:
        return True
    domains = Counter(node.labels.get(shape.domain) for node in world)
    return None not in domains and all(count % shape.per_domain == 0 for count in domains.values())


def kept(world: Sequence[Candidate]) -> int:
    """Return how many survivors of the last round are in."""
    return sum(node.rank is not None for node in world)


def valid_worlds(nodes: Sequence[Candidate], shape: Shape, size: int) -> Iterator[tuple[Candidate, ...]]:
    """Yield every valid world of that size, first come first."""
    return (world for world in combinations(in_order(nodes), size) if is_valid(world, shape))


def best_world(nodes: Sequence[Candidate], shape: Shape) -> list[Candidate]:
    """Return the world that the rules name, found by trying; empty if there is none."""
    for size in range(len(nodes), 0, -1):
        if size in shape.sizes.allowed and size <= (shape.target or size):
            best: tuple[Candidate, ...] = ()
            most = min(size, kept(nodes))
            for world in valid_worlds(nodes, shape, size):
                if not best or kept(world) > kept(best):
                    best = world
                if kept(best) == most:
                    break
            if best:
                return list(best)
    return []
