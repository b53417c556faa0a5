"""How two others choose who is in, to compare with: ``python -m tests.core.baselines``.

Written from what they document and from reading them, in our own words and without their timing: each function is told
who is here when their waiting is over, and says who would be in. What is said of them was read in NVIDIA's
nvidia-resiliency-ext (documentation of 0.7, ``ft_rendezvous_barrier.py``) and in DLRover (``rdzv_manager.py``).

The command counts, over random populations and three wishes that users have, where they refuse although a valid world
is there, and where they choose a worse one. That somebody who came first is passed over is worse only by our rules.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from rendezvous_async.core.ranks import Candidate
from rendezvous_async.core.shape import Shape, choose, count_domains, count_newcomers
from rendezvous_async.sizes import Sizes
from tests.core.populations import DOMAINS, LABEL, is_valid, kept

Chooser: TypeAlias = Callable[[Sequence[Candidate], Shape], list[Candidate]]

VERDICTS = (
    "as good",
    "nobody fits",
    "refuses though a world is there",
    "invalid world",
    "smaller than possible",
    "drops a survivor needlessly",
    "passes over who came first",
)


def by_number(nodes: Sequence[Candidate]) -> list[Candidate]:
    """Return the nodes by the number that their platform gave them: ``n2`` before ``n10``."""
    return sorted(nodes, key=lambda node: int(node.node[1:]))


def segments(nodes: Sequence[Candidate], world: int, segment: int) -> list[Candidate]:
    """Choose as NVRx does.

    ``--nnodes MIN:MAX`` with ``--ft-segment``: a world always has MIN nodes, the others are hot spares. Nodes are put
    into the order of their infrastructure rank (Slurm's, usually), domains into that of their first node. Each domain
    in turn gives all its whole segments until there are enough. If there are not, nobody starts, and the launchers
    fail when their join timeout runs out. Who held the last round makes no difference to the choice: since 0.7 early
    spares are held back for a while, so that members can return, but then the order is the same. A node whose domain
    cannot be found out fails by itself.
    """
    domains: dict[str, list[Candidate]] = {}
    for node in by_number(nodes):
        if LABEL in node.labels:
            domains.setdefault(node.labels[LABEL], []).append(node)
    chosen: list[Candidate] = []
    for members in domains.values():
        whole = len(members) - len(members) % segment
        chosen += members[: min(whole, world - len(chosen))]
    return chosen if len(chosen) == world else []


def node_unit(nodes: Sequence[Candidate], low: int, high: int, unit: int) -> list[Candidate]:
    """Choose as DLRover does.

    Exactly ``high`` nodes form a world at once. Otherwise at least ``low`` are needed, and that nobody has joined for
    the waiting timeout (each arrival starts it again); then the number is rounded down to a multiple of ``unit``, and
    the nodes with the lowest node ranks are in. The number is compared to ``high`` only for being equal, and to
    ``low`` only before it is rounded. Where a node is makes no difference. A world of none is the same as waiting.
    """
    count = len(nodes)
    if count != high:
        count = count - count % unit if count >= low else 0
    return by_number(nodes)[:count]


def unit_restarts(newcomers: int, unit: int) -> bool:
    """Whether DLRover has everybody restart for newcomers: as soon as a unit of them waits, whatever comes of it."""
    return newcomers >= unit


CHOOSERS: dict[str, Chooser] = {
    "rendezvous_async": choose,
    "NVRx, MIN is the largest size": lambda nodes, shape: segments(nodes, shape.most, shape.per_domain),
    "NVRx, MIN is the smallest size": lambda nodes, shape: segments(nodes, shape.valid_sizes[0], shape.per_domain),
    "DLRover, node_unit is the step": lambda nodes, shape: node_unit(
        nodes, shape.valid_sizes[0], shape.most, max(shape.sizes.step, shape.per_domain)
    ),
}

WISHES: dict[str, Callable[[random.Random], Shape]] = {
    "multiples of a number": lambda rng: _multiples(rng, "", rng.randint(2, 4)),
    "multiples, whole domains": lambda rng: _multiples(rng, LABEL, rng.randint(2, 4)),
    "one size, whole domains": lambda rng: _one_size(rng, rng.randint(2, 4)),
}


def _multiples(rng: random.Random, domain: str, step: int) -> Shape:
    low = step * rng.randint(1, 2)
    return Shape(Sizes(low, low + step * rng.randint(1, 4), step), domain, step if domain else 1)


def _one_size(rng: random.Random, per_domain: int) -> Shape:
    size = per_domain * rng.randint(1, 4)
    return Shape(Sizes(size, size), LABEL, per_domain)


def cluster_after_a_loss(rng: random.Random, shape: Shape, chooser: Chooser) -> list[Candidate]:
    """Return who is at the barrier after a world that ``chooser`` formed has broken: some have gone, some are new."""
    count = rng.randint(1, shape.most + 6)
    domains = DOMAINS[: rng.randint(1, len(DOMAINS))]
    nodes = [
        Candidate(f"n{number}", order, labels={LABEL: rng.choice(domains)})
        for number, order in enumerate(rng.sample(range(count), count))
    ]
    world = chooser([node for node in nodes if rng.random() < 0.8], shape)
    held = {node.node: rank for rank, node in enumerate(world)}
    here = [Candidate(n.node, n.order, held.get(n.node), labels=n.labels) for n in nodes if rng.random() < 0.9]
    return rng.sample(here, len(here))


def verdict(chosen: Sequence[Candidate], nodes: Sequence[Candidate], shape: Shape) -> str:
    """Say how a choice compares to the best that there is."""
    best = choose(nodes, shape)
    if not chosen:
        return "refuses though a world is there" if best else "nobody fits"
    if not is_valid(chosen, shape):
        return "invalid world"
    if len(chosen) < len(best):
        return "smaller than possible"
    if kept(chosen) < kept(best):
        return "drops a survivor needlessly"
    if {node.node for node in chosen} != {node.node for node in best}:
        return "passes over who came first"
    return "as good"


def compare(wish: str, chooser: str, populations: int, seed: int) -> Counter[str]:
    """Return how often a chooser comes to each verdict, for one wish."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(populations):
        shape = WISHES[wish](rng)
        nodes = cluster_after_a_loss(rng, shape, CHOOSERS[chooser])
        found[verdict(CHOOSERS[chooser](nodes, shape), nodes, shape)] += 1
    return found


def compare_restarts(wish: str, populations: int, seed: int) -> Counter[str]:
    """Return how often DLRover restarts a world for newcomers, and how often nothing comes of it."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(populations):
        shape = WISHES[wish](rng)
        nodes = cluster_after_a_loss(rng, shape, choose)
        members = choose(nodes[: rng.randint(0, len(nodes))], shape)
        held = {node.node for node in members}
        waiting = [node for node in nodes if node.node not in held]
        if members and unit_restarts(len(waiting), max(shape.sizes.step, shape.per_domain)):
            found["restarts"] += 1
            grows = count_newcomers(count_domains(members, shape), count_domains(waiting, shape), shape)
            found["nothing comes of it"] += not grows
    return found


def report(populations: int, seed: int) -> Iterator[str]:
    """Yield the comparison, line by line."""
    for wish in WISHES:
        yield f"{wish}, {populations} populations"
        for chooser in CHOOSERS:
            if chooser.startswith("NVRx") and "domains" not in wish:
                continue  # Segments are of domains.
            found = compare(wish, chooser, populations, seed)
            yield f"  {chooser}: " + ", ".join(f"{name} {found[name]}" for name in VERDICTS if found[name])
        restarts = compare_restarts(wish, populations, seed)
        yield "  DLRover, newcomers at a running world: " + ", ".join(f"{name} {n}" for name, n in restarts.items())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.core.baselines", description="How others choose.")
    parser.add_argument("--populations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    for line in report(options.populations, options.seed):
        print(line)


if __name__ == "__main__":
    main()
