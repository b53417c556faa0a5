"""The arguments of a cluster, checked before anything is simulated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, TypeAlias, get_args

from rendezvous_async.settings import Timeouts
from rendezvous_async.sizes import MAX_NODES, MAX_SIMULATED
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.nodes import SimulatedNode
from rendezvous_async.testing.service import ServerKind
from rendezvous_async.texts import quoted

__all__ = ["MAX_CHANGES", "NetworkKind", "check_arguments", "check_count", "check_seed", "check_sides", "check_step"]

MAX_CHANGES = 1_000_000
"""Upper bound on the changes of a disk after which its power is cut."""
NetworkKind: TypeAlias = Literal["wire", "stand-in"]


def check_arguments(
    nodes: object,
    max_writes: object,
    seed: object,
    timeouts: object,
    faults: object,
    program: object,
    network: object,
    server: object,
) -> None:
    """Raise ValueError if an argument of ``Cluster`` is wrong; ``connect`` checks the others."""
    check_count("nodes", nodes, 1, MAX_SIMULATED)
    check_count("max_writes", max_writes, 1, sys.maxsize)
    check_seed(seed)
    if not isinstance(timeouts, Timeouts):
        raise ValueError(f"timeouts must be a Timeouts, not {quoted(timeouts)}")
    if not isinstance(faults, Faults):
        raise ValueError(f"faults must be a Faults, not {quoted(faults)}")
    if not callable(program):
        raise ValueError(f"program must be a coroutine function that takes a Rendezvous, not {quoted(program)}")
    for name, kind, kinds in (("network", network, NetworkKind), ("server", server, ServerKind)):
        if kind not in get_args(kinds):
            raise ValueError(f"{name} must be one of {', '.join(get_args(kinds))}, not {quoted(kind)}")
    if network == "stand-in" and server != "memory":
        raise ValueError(f"the stand-in has a server in memory only, not server={server!r}")


def check_count(name: str, count: object, least: int, most: int) -> None:
    """Raise ValueError if something is no count from ``least`` to ``most``."""
    if type(count) is not int or count < least:
        raise ValueError(f"{name} must be a count of at least {least}, not {quoted(count)}")
    if count > most:
        raise ValueError(f"{name} must be a count of at most {most}, not {quoted(count)}")


def check_seed(seed: object) -> None:
    """Raise ValueError if a seed is no whole number."""
    if type(seed) is not int:
        raise ValueError(f"seed must be a whole number, not {quoted(seed)}")


def check_step(step: Any, actions: Collection[str]) -> None:
    """Raise ValueError if an argument of ``Step`` is wrong."""
    if not isinstance(step.do, str) or step.do not in actions:
        raise ValueError(f"a step does one of {', '.join(sorted(actions))}, not {quoted(step.do)}")
    for name, value in (("at", step.at), ("amount", step.amount)):
        if type(value) not in (int, float) or not 0 <= value <= sys.maxsize:
            raise ValueError(f"{name} of a step must be a finite number, 0 or more, not {quoted(value)}")
    if not isinstance(step.nodes, tuple) or not all(type(node) is int and node >= 0 for node in step.nodes):
        raise ValueError(f"nodes of a step must be a tuple of node numbers, not {quoted(step.nodes)}")
    if step.sizes is not None and not isinstance(step.sizes, str):
        raise ValueError(f'sizes of a step must be a string such as "2:4", not {quoted(step.sizes)}')
    if step.target is not None:
        check_count("target of a step", step.target, 0, MAX_NODES)


def check_sides(sides: tuple[object, ...], find: Callable[[object], SimulatedNode]) -> list[list[SimulatedNode]]:
    """Return the nodes on each side of a partition; raise ValueError if one is on two of them."""
    named: list[list[SimulatedNode]] = []
    for side in sides:
        if not isinstance(side, Iterable):
            raise ValueError(f"each side of a partition must be a set of node numbers, not {quoted(side)}")
        named.append([find(index) for index in side])
    if len({node for side in named for node in side}) < sum(len(set(side)) for side in named):
        raise ValueError(f"a node can only be on one side of a partition, not {sides}")
    return named
