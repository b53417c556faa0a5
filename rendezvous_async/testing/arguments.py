"""The arguments of a cluster, checked before anything is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, get_args

from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.nodes import SimulatedNode
from rendezvous_async.testing.service import ServerKind

__all__ = ["NetworkKind", "check_arguments", "check_sides"]

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
    for name, count in (("nodes", nodes), ("max_writes", max_writes)):
        if type(count) is not int or count < 1:
            raise ValueError(f"{name} must be a count of at least 1, not {count!r}")
    if type(seed) is not int:
        raise ValueError(f"seed must be a whole number, not {seed!r}")
    if not isinstance(timeouts, Timeouts):
        raise ValueError(f"timeouts must be a Timeouts, not {timeouts!r}")
    if not isinstance(faults, Faults):
        raise ValueError(f"faults must be a Faults, not {faults!r}")
    if not callable(program):
        raise ValueError(f"program must be a coroutine function that takes a Rendezvous, not {program!r}")
    for name, kind, kinds in (("network", network, NetworkKind), ("server", server, ServerKind)):
        if kind not in get_args(kinds):
            raise ValueError(f"{name} must be one of {', '.join(get_args(kinds))}, not {kind!r}")
    if network == "stand-in" and server != "memory":
        raise ValueError(f"the stand-in has a server in memory only, not server={server!r}")


def check_sides(sides: tuple[object, ...], find: Callable[[object], SimulatedNode]) -> list[list[SimulatedNode]]:
    """Return the nodes on each side of a partition; raise ValueError if one is on two of them."""
    named: list[list[SimulatedNode]] = []
    for side in sides:
        if not isinstance(side, Iterable):
            raise ValueError(f"each side of a partition must be a set of node numbers, not {side!r}")
        named.append([find(index) for index in side])
    if len({node for side in named for node in side}) < sum(len(set(side)) for side in named):
        raise ValueError(f"a node can only be on one side of a partition, not {sides}")
    return named
