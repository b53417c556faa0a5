"""Random scenarios: one seed determines a cluster, a network and a schedule of faults.

A scenario has two phases. In the first, faults are injected: nodes crash, freeze, leave, are partitioned and return,
the server loses its data, a node may close the run. In the second there are no more faults, and a round must form
within a bounded time (liveness). Then every guarantee is checked against the history (safety).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import msgspec

from rendezvous_async.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousStateError
from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.checks import check
from rendezvous_async.testing.cluster import Cluster, NotSettledError
from rendezvous_async.testing.history import Fault, Formed, History
from rendezvous_async.testing.loop.clock import run
from rendezvous_async.testing.network import Faults
from rendezvous_async.testing.programs import worker

__all__ = [
    "Elasticity",
    "Report",
    "Scenario",
    "close_by_one",
    "come_to_rest",
    "disturb",
    "elasticity_of",
    "mend",
    "scale_by_one",
    "scenario_of",
    "simulate",
]

QUIET = Faults()
SPIN_LIMIT = 50_000


class Elasticity(msgspec.Struct, frozen=True):
    """The shape of a run's worlds, and whether it is scaled; by default any size, and never.

    Attributes:
        sizes: As for ``Cluster``; empty: its minimum and maximum.
        domain: As for ``Cluster``.
        per_domain: As for ``Cluster``.
        grow: Seconds for which newcomers are held back.
        scales: Whether nodes scale the run in the first phase.
    """

    sizes: str = ""
    domain: str = ""
    per_domain: int = 1
    grow: float = 0.0
    scales: bool = False

    @property
    def for_cluster(self) -> dict[str, Any]:
        """The arguments of ``Cluster`` that it stands for."""
        return {"sizes": self.sizes, "domain": self.domain, "per_domain": self.per_domain}


class Scenario(msgspec.Struct, frozen=True):
    """The parameters of a simulation, derived from a seed.

    Attributes:
        seed: The seed of everything.
        nodes: The number of nodes.
        min_nodes: The minimum size of a round.
        max_nodes: The maximum size of a round.
        ranks: The rank policy.
        max_writes: The limit of writes per commit; with a small one, rounds form in batches.
        faults: The faults of the network in the first phase.
        actions: The number of faults and starts injected in the first phase.
        closes: Whether the run is closed at the end of the first phase.
        elasticity: The shape of its worlds.
    """

    seed: int
    nodes: int
    min_nodes: int
    max_nodes: int
    ranks: str
    max_writes: int
    faults: Faults
    actions: int
    closes: bool
    elasticity: Elasticity


class Report(msgspec.Struct, frozen=True):
    """The outcome of a scenario: the rounds that formed, the injected faults, and a digest of the history."""

    scenario: Scenario
    rounds: int
    faults: int
    seconds: float
    digest: str


def scenario_of(seed: int, nodes: int | None = None, actions: int | None = None) -> Scenario:
    """Return the scenario of a seed; the numbers of nodes and of faults can be overridden."""
    for name, given, least in (("nodes", nodes, 1), ("actions", actions, 0)):
        if given is not None and (type(given) is not int or given < least):
            raise ValueError(f"{name} must be a count of at least {least}, not {given!r}")
    rng = random.Random(seed)
    count = rng.randint(2, 6) if nodes is None else nodes
    max_nodes = rng.randint(1, count)
    bad = rng.choice((0.0, 0.02, 0.1))
    return Scenario(
        seed=seed,
        nodes=count,
        min_nodes=rng.randint(1, max_nodes),
        max_nodes=max_nodes,
        ranks=rng.choice(("sticky", "sticky", "sorted", "label:rack")),
        max_writes=rng.choice((4, 8, 1024)),
        faults=Faults(
            delay=rng.choice((0.001, 0.02, 0.3)),
            drop_request=bad,
            drop_reply=bad,
            late=rng.choice((0.0, bad)),
        ),
        actions=rng.randint(3, 25) if actions is None else actions,
        closes=rng.random() < 0.2,
        elasticity=elasticity_of(seed, count),
    )


def elasticity_of(seed: int, nodes: int) -> Elasticity:
    """Return the elasticity of a seed: most are plain."""
    rng = random.Random(f"plan {seed}")
    if rng.random() < 0.6:
        return Elasticity()
    pairs = rng.random() < 0.4
    most = nodes if not pairs else max(2, nodes - nodes % 2)
    step = rng.choice((2, 3)) if not pairs else 2
    sizes = rng.choice(
        (
            "",
            f"{step}:{max(step, most - most % step)}:{step}",
            ",".join(map(str, sorted(rng.sample(range(1, nodes + 1), min(nodes, 3))))),
        )
    )
    if pairs:
        sizes = f"2:{most}"
    return Elasticity(
        sizes=sizes,
        domain="rack" if pairs else rng.choice(("", "rack")),
        per_domain=2 if pairs else 1,
        grow=rng.choice((0.0, 0.0, 0.3, 5.0)),
        scales=rng.random() < 0.5,
    )


def simulate(scenario: Scenario, watch: Callable[[History], None] = check) -> Report:
    """Run a scenario in virtual time and check it.

    Args:
        scenario: What to run.
        watch: Checks the history at the end.

    Raises:
        BrokenGuaranteeError: A guarantee does not hold.
        NotSettledError: No round forms, though there are no more faults.
        VirtualTimeError: The program hangs or spins.
        Exception: A node failed with it.
    """
    history, unsettled = run(_play, scenario, seed=scenario.seed, spin_limit=SPIN_LIMIT)
    watch(history)  # A safety violation says more than a lack of progress, so it comes first.
    if unsettled is not None:
        raise unsettled
    return Report(
        scenario,
        rounds=len(history.of(Formed)),
        faults=len(history.of(Fault)),
        seconds=max((record.at for record in history), default=0.0),
        digest=hashlib.sha256(bytes(history)).hexdigest(),
    )


async def _play(scenario: Scenario) -> tuple[History, NotSettledError | None]:
    rng = random.Random(scenario.seed + 1)
    cluster = Cluster(
        scenario.nodes,
        scenario.min_nodes,
        scenario.max_nodes,
        seed=scenario.seed,
        faults=scenario.faults,
        program=worker,
        timeouts=Timeouts(
            join=120,
            last_call=rng.choice((0.5, 5.0)),
            close=5,
            heartbeat=rng.choice((1.0, 5.0)),
            grow=scenario.elasticity.grow,
        ),
        ranks=scenario.ranks,
        max_writes=scenario.max_writes,
        **scenario.elasticity.for_cluster,
    )
    async with cluster:
        for _ in range(scenario.actions):
            disturb(cluster, rng)
            if scenario.elasticity.scales:
                await scale_by_one(cluster, rng)
            await anyio.sleep(rng.choice((0.0, 0.01, 0.3, 1.0, 4.0, 12.0)))
        if scenario.closes:
            await close_by_one(cluster, rng)
        try:
            await come_to_rest(cluster)
        except NotSettledError as error:
            return cluster.history, error
    return cluster.history, None


async def come_to_rest(cluster: Cluster) -> None:
    """End all faults, start every node, and wait until the cluster settles.

    Raises:
        NotSettledError: It does not settle in time.
    """
    cluster.network.faults = QUIET
    mend(cluster)
    await cluster.settle()


def mend(cluster: Cluster) -> None:
    """Heal the network, and resume or start every node."""
    cluster.heal()
    for index in range(len(cluster.nodes)):
        cluster.resume(index)
        cluster.start(index)


def disturb(cluster: Cluster, rng: random.Random) -> None:
    """Inject one random fault; one that does not apply has no effect."""
    index = rng.randrange(len(cluster.nodes))
    side = {other for other in range(len(cluster.nodes)) if rng.random() < 0.5}
    actions: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: cluster.start(index)),
        (3, lambda: cluster.crash(index)),
        (3, lambda: cluster.restart(index)),
        (2, lambda: cluster.leave(index)),
        (3, lambda: cluster.pause(index)),
        (3, lambda: cluster.resume(index)),
        (2, lambda: cluster.partition(side)),
        (3, cluster.heal),
        (1, cluster.lose_server),
    ]
    weights = [weight for weight, _ in actions]
    rng.choices([action for _, action in actions], weights)[0]()


async def scale_by_one(cluster: Cluster, rng: random.Random) -> None:
    """Let a random node scale the run now and then, if it can: to other sizes, or to a target."""
    head, able = cluster.head(), _able(cluster)
    if head is None or head.closed is not None or not able or rng.random() < 0.7:
        return
    nodes, target = None, rng.choice((0, *head.shape.valid_sizes[:8]))
    if rng.random() < 0.5:
        unit = head.settings.per_domain
        low = unit * rng.randint(1, max(1, len(cluster.nodes) // unit))
        nodes, target = f"{low}:{low + unit * rng.randint(0, 2)}", 0
    with suppress(RendezvousConnectionError, RendezvousClosedError, RendezvousStateError, ValueError):
        await cluster.scale(rng.choice(able), nodes, target)  # Others may have closed it, or scaled it, meanwhile.


def _able(cluster: Cluster) -> list[int]:
    return [index for index, node in enumerate(cluster.nodes) if node.live and not node.paused]


async def close_by_one(cluster: Cluster, rng: random.Random) -> None:
    """Close the run from a random node that runs, if there is one."""
    able = _able(cluster)
    if able:
        with suppress(RendezvousConnectionError):  # It may or may not have happened; the history knows.
            await cluster.close(rng.choice(able), "end of the scenario")
