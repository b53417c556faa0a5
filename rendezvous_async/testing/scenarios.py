"""Random scenarios: one seed determines a cluster, a network and a schedule of faults.

A scenario is a value: everything random is drawn before it is played, except what the seed of the loop and of the
network decides. It has two phases. In the first come its steps: nodes crash, freeze, leave, are partitioned and return,
the server loses its data, a node may close the run. In the second there are no more faults, and a round must form
within a bounded time (liveness). Then every guarantee is checked against the history (safety).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
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
from rendezvous_async.testing.programs import Program, worker

__all__ = [
    "Plan",
    "Report",
    "Scenario",
    "Step",
    "come_to_rest",
    "draw_close",
    "draw_steps",
    "perform",
    "plan_of",
    "play",
    "scenario_of",
    "simulate",
]

QUIET = Faults()
SPIN_LIMIT = 50_000
WEIGHTS = {
    "start": 8,
    "crash": 3,
    "restart": 3,
    "leave": 2,
    "pause": 3,
    "resume": 3,
    "partition": 2,
    "heal": 3,
    "lose_server": 1,
}
"""What is drawn, and how often; each is a method of ``Cluster``."""
ACTIONS = frozenset({*WEIGHTS, "close", "mend", "scale", "wait"})


class Step(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One thing that happens to a cluster; one that does not apply has no effect.

    Attributes:
        at: When, in seconds from the first phase's begin.
        do: A method of ``Cluster``, ``mend`` (heal the network, and resume or start every node) or ``wait`` (nothing).
        nodes: Who is concerned. A partition leaves them the server; the first of them that runs closes or scales.
        sizes: To what the run is scaled; empty: only the target changes.
        target: The target of the scaled run, or the largest valid size below.
    """

    at: float
    do: str
    nodes: tuple[int, ...] = ()
    sizes: str = ""
    target: int = 0

    def __post_init__(self) -> None:
        if self.do not in ACTIONS:
            raise ValueError(f"a step does one of {', '.join(sorted(ACTIONS))}, not {self.do!r}")


class Plan(msgspec.Struct, frozen=True, repr_omit_defaults=True):
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


class Scenario(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What is played: a cluster, its network, and what happens to it.

    Attributes:
        seed: The seed of the loop, of the network and of the nodes.
        nodes: The number of nodes.
        min_nodes: The minimum size of a round.
        max_nodes: The maximum size of a round.
        steps: What happens in the first phase.
        faults: The faults of the network in the first phase.
        ranks: The rank policy.
        max_writes: The limit of writes per commit; with a small one, rounds form in batches.
        timeouts: The timeouts of every node.
        plan: The shape of its worlds.
    """

    seed: int
    nodes: int
    min_nodes: int
    max_nodes: int
    steps: tuple[Step, ...] = ()
    faults: Faults = QUIET
    ranks: str = "sticky"
    max_writes: int = 1024
    timeouts: Timeouts = Timeouts()
    plan: Plan = Plan()


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
    min_nodes = rng.randint(1, max_nodes)
    ranks = rng.choice(("sticky", "sticky", "sorted", "label:rack"))
    max_writes = rng.choice((4, 8, 1024))
    delay = rng.choice((0.001, 0.02, 0.3))
    faults = Faults(delay=delay, drop_request=bad, drop_reply=bad, late=rng.choice((0.0, bad)))
    length = rng.randint(3, 25) if actions is None else actions
    closes = rng.random() < 0.2
    plan = plan_of(seed, count)
    rng = random.Random(seed + 1)
    last_call, heartbeat = rng.choice((0.5, 5.0)), rng.choice((1.0, 5.0))
    timeouts = Timeouts(join=120, last_call=last_call, close=5, heartbeat=heartbeat, grow=plan.grow)
    steps = tuple(draw_steps(rng, count, plan, length, (0.0, 0.01, 0.3, 1.0, 4.0, 12.0)))
    if closes:
        steps = (*steps, draw_close(rng, steps[-1].at, count))
    return Scenario(seed, count, min_nodes, max_nodes, steps, faults, ranks, max_writes, timeouts, plan)


def plan_of(seed: int, nodes: int) -> Plan:
    """Return the plan of a seed: in most cases there is none."""
    rng = random.Random(f"plan {seed}")
    if rng.random() < 0.6:
        return Plan()
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
    return Plan(
        sizes=sizes,
        domain="rack" if pairs else rng.choice(("", "rack")),
        per_domain=2 if pairs else 1,
        grow=rng.choice((0.0, 0.0, 0.3, 5.0)),
        scales=rng.random() < 0.5,
    )


def draw_steps(
    rng: random.Random, nodes: int, plan: Plan, length: int, pauses: Sequence[float], mending: float = 0.0
) -> Iterator[Step]:
    """Draw what happens to a cluster; before each thing it may be mended, and it is left alone for a while after it."""
    at = 0.0
    for _ in range(length):
        if mending and rng.random() < mending:
            yield Step(at, "mend")
            at = round(at + rng.choice(pauses), 2)
        yield _draw_step(rng, at, nodes)
        if plan.scales and rng.random() > 0.7:
            yield _draw_scale(rng, at, nodes, plan.per_domain)
        at = round(at + rng.choice(pauses), 2)
    yield Step(at, "wait")


def _draw_step(rng: random.Random, at: float, nodes: int) -> Step:
    node = rng.randrange(nodes)
    side = tuple(other for other in range(nodes) if rng.random() < 0.5)
    match rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "partition":
            return Step(at, "partition", side)
        case "heal" | "lose_server" as do:
            return Step(at, do)
        case do:
            return Step(at, do, (node,))


def _draw_scale(rng: random.Random, at: float, nodes: int, unit: int) -> Step:
    order = tuple(rng.sample(range(nodes), nodes))
    if rng.random() < 0.5:
        return Step(at, "scale", order, target=rng.randint(0, nodes))
    low = unit * rng.randint(1, max(1, nodes // unit))
    return Step(at, "scale", order, f"{low}:{low + unit * rng.randint(0, 2)}")


def draw_close(rng: random.Random, at: float, nodes: int) -> Step:
    """Draw who closes the run: the first that runs, in a random order."""
    return Step(at, "close", tuple(rng.sample(range(nodes), nodes)))


def simulate(scenario: Scenario, watch: Callable[[History], None] = check, program: Program = worker) -> Report:
    """Run a scenario in virtual time and check it.

    Args:
        scenario: What to run.
        watch: Checks the history at the end.
        program: The program of every node.

    Raises:
        BrokenGuaranteeError: A guarantee does not hold.
        NotSettledError: No round forms, though there are no more faults.
        VirtualTimeError: The program hangs or spins.
        Exception: A node failed with it.
    """
    history, error = play(scenario, watch, program)
    if error is not None:
        error.add_note(f"The scenario that fails: {scenario}")
        raise error
    return Report(
        scenario,
        rounds=len(history.of(Formed)),
        faults=len(history.of(Fault)),
        seconds=max((record.at for record in history), default=0.0),
        digest=hashlib.sha256(bytes(history)).hexdigest(),
    )


def play(
    scenario: Scenario, watch: Callable[[History], None] = check, program: Program = worker
) -> tuple[History, Exception | None]:
    """Do the same, but return the history and what ``simulate`` would raise."""
    cluster = Cluster(
        scenario.nodes,
        scenario.min_nodes,
        scenario.max_nodes,
        seed=scenario.seed,
        faults=scenario.faults,
        program=program,
        timeouts=scenario.timeouts,
        ranks=scenario.ranks,
        max_writes=scenario.max_writes,
        **scenario.plan.for_cluster,
    )
    unsettled: NotSettledError | None = None
    try:
        unsettled = run(_play, cluster, scenario.steps, seed=scenario.seed, spin_limit=SPIN_LIMIT)
        watch(cluster.history)  # A safety violation says more than a lack of progress, so it comes first.
    except Exception as error:
        return cluster.history, error
    return cluster.history, unsettled


async def _play(cluster: Cluster, steps: Sequence[Step]) -> NotSettledError | None:
    async with cluster:
        await perform(cluster, steps)
        try:
            await come_to_rest(cluster)
        except NotSettledError as error:
            return error
    return None


async def perform(cluster: Cluster, steps: Sequence[Step]) -> None:
    """Let these steps happen to a cluster, each at its time."""
    begin = anyio.current_time()
    for step in steps:
        await anyio.sleep_until(begin + step.at)
        await _act(cluster, step)


async def _act(cluster: Cluster, step: Step) -> None:
    match step.do:
        case "partition":
            cluster.partition(step.nodes)
        case "heal":
            cluster.heal()
        case "lose_server":
            cluster.lose_server()
        case "mend":
            _mend(cluster)
        case "close" | "scale":
            able = [index for index in step.nodes if cluster.nodes[index].live and not cluster.nodes[index].paused]
            if able:
                await _close_or_scale(cluster, able[0], step)
        case "wait":
            pass
        case method:
            for index in step.nodes:
                getattr(cluster, method)(index)


async def come_to_rest(cluster: Cluster) -> None:
    """End all faults, start every node, and wait until the cluster settles.

    Raises:
        NotSettledError: It does not settle in time.
    """
    cluster.network.faults = QUIET
    _mend(cluster)
    await cluster.settle()


def _mend(cluster: Cluster) -> None:
    cluster.heal()
    for index in range(len(cluster.nodes)):
        cluster.resume(index)
        cluster.start(index)


async def _close_or_scale(cluster: Cluster, index: int, step: Step) -> None:
    """Let a node close or scale the run, if it can: others may have closed it, or scaled it, meanwhile."""
    head = cluster.head()
    with suppress(RendezvousConnectionError):  # It may or may not have happened; the history knows.
        if step.do == "close":
            await cluster.close(index, "end of the scenario")
        elif head is not None and head.closed is None:
            target = max((size for size in head.shape.valid_sizes if size <= step.target), default=0)
            with suppress(RendezvousClosedError, RendezvousStateError, ValueError):
                await cluster.scale(index, step.sizes or None, target)
