"""The classic's parameters, timeouts and settings of a handler. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rendezvous_async.sizes import parse_sizes
from rendezvous_async.texts import quoted

__all__ = ["RendezvousParameters", "RendezvousSettings", "RendezvousTimeout"]

_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})


class RendezvousParameters:
    """The parameters of a handler. Options are keywords, often as text.

    Args:
        backend: The backend's registered name.
        endpoint: Where the run's state lives, usually ``host[:port]``.
        run_id: The run's id.
        min_nodes: The fewest nodes in a round.
        max_nodes: The most nodes in a round.
        local_addr: This node's address for the other nodes.
        **kwargs: Further options.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise ValueError("the name of the rendezvous backend must not be empty")
        _check_type("backend", backend, str, "a string")
        _check_type("endpoint", endpoint, str | None, "a string")
        _check_type("run_id", run_id, str, "a string")
        _check_type("min_nodes", min_nodes, int, "a whole number")
        _check_type("max_nodes", max_nodes, int, "a whole number")
        _check_type("local_addr", local_addr, str | None, "a string")
        if min_nodes < 1:
            raise ValueError(f"min_nodes must be at least 1, not {min_nodes}")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes must be at least min_nodes, {min_nodes}, not {max_nodes}")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = kwargs

    def __repr__(self) -> str:
        nodes = f"{self.min_nodes}:{self.max_nodes}"
        return f"<RendezvousParameters {self.backend} {self.endpoint!r} run={self.run_id!r} nodes={nodes}>"

    def get(self, key: str, default: Any = None) -> Any:
        """Return an option as it was given, or ``default``."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return an option as a bool: ``1``, ``true``, ``t``, ``yes``, ``y`` and their opposites, in any case."""
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, int | str) else ""
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        raise ValueError(f"the rendezvous option {key!r} must be true or false, not {quoted(value)}")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return an option as a whole number."""
        value = self.get(key, default)
        number = None if value is None else whole_number(value)
        if number is None and value is not None:
            raise ValueError(f"the rendezvous option {key!r} must be a whole number, not {quoted(value)}")
        return number


def whole_number(value: object) -> int | None:
    """Return a number or its text as an int; None if it is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, float) and not (math.isfinite(value) and value == int(value)):
        return None
    try:
        return int(value)
    except ValueError:
        return None


class RendezvousTimeout:
    """The timeouts of a handler.

    Args:
        join: For a round to form.
        last_call: For late nodes, once ``min_nodes`` are present.
        close: For leaving and closing.
        heartbeat: For the answer to one keep-alive.
        regroup: For late nodes when a round re-forms; not in the classic. Default: ``last_call``, at most 3 s.
        grow: For more newcomers, before they make the world larger; not in the classic. Default: 0, for none.
            ``timedelta.max`` lets them in only after a loss, or by ``rdzv scale --grow``.
    """

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
        regroup: timedelta | None = None,
        grow: timedelta | None = None,
    ) -> None:
        self.join: timedelta = _positive("join", join, 600)
        self.last_call: timedelta = _positive("last_call", last_call, 30)
        self.close: timedelta = _positive("close", close, 30)
        self.heartbeat: timedelta = _positive("heartbeat", heartbeat, 5)
        self.regroup: timedelta = _positive("regroup", regroup, min(self.last_call.total_seconds(), 3))
        self.grow: timedelta = _at_least(timedelta(0), "0 or more", "grow", grow, 0)

    def __repr__(self) -> str:
        return (
            f"<RendezvousTimeout {' '.join(f'{name}={value.total_seconds():g}' for name, value in vars(self).items())}>"
        )


def _positive(name: str, value: timedelta | None, default: float) -> timedelta:
    return _at_least(timedelta.resolution, "positive", name, value, default)


def _at_least(least: timedelta, wanted: str, name: str, value: timedelta | None, default: float) -> timedelta:
    value = timedelta(seconds=default) if value is None else value
    _check_type(f"the {name} timeout", value, timedelta, "a timedelta")
    if value < least:
        raise ValueError(f"the {name} timeout must be {wanted}, not {value}")
    return value


def _check_type(name: str, value: object, kind: Any, what: str) -> None:
    """Raise TypeError if a value is not of a kind. A bool does not count as a number."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} must be {what}, not {quoted(value)}")


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of a handler.

    Attributes:
        run_id: The run's id.
        min_nodes: The fewest nodes in a round.
        max_nodes: The most nodes in a round.
        timeout: The timeouts.
        keep_alive_interval: The time between keep-alives.
        keep_alive_max_attempt: Consecutive missed keep-alives after which this node counts as lost.
        ranks: The rank policy: ``sticky``, ``sorted`` (the classic's) or ``label:<name>``; not in the classic.
        sizes: The sizes that a round may have, all from ``min_nodes`` to ``max_nodes``: ``4:64:4`` or ``4,8,16``;
            empty: every size. Not in the classic.
        domain: The label whose values are domains; empty: there are none. Not in the classic.
        per_domain: A round has a multiple of this number of nodes from each domain. Not in the classic.

    Raises:
        ValueError: A size is less than ``min_nodes`` or more than ``max_nodes``.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta = timedelta(seconds=1)
    keep_alive_max_attempt: int = 5
    ranks: str = "sticky"
    sizes: str = ""
    domain: str = ""
    per_domain: int = 1

    def __post_init__(self) -> None:
        _check_type("run_id", self.run_id, str, "a string")
        _check_type("min_nodes", self.min_nodes, int, "a whole number")
        _check_type("max_nodes", self.max_nodes, int, "a whole number")
        _check_type("timeout", self.timeout, RendezvousTimeout, "a RendezvousTimeout")
        _check_type("keep_alive_interval", self.keep_alive_interval, timedelta, "a timedelta")
        _check_type("keep_alive_max_attempt", self.keep_alive_max_attempt, int, "a whole number")
        _check_type("ranks", self.ranks, str, "a string")
        _check_type("sizes", self.sizes, str, "a string")
        _check_type("domain", self.domain, str, "a string")
        _check_type("per_domain", self.per_domain, int, "a whole number")
        if self.sizes:
            sizes = parse_sizes(self.sizes)
            if sizes.smallest < self.min_nodes or sizes.largest > self.max_nodes:
                raise ValueError(
                    f"the sizes {self.sizes!r} must all be from min_nodes to max_nodes (torchrun: --nnodes), "
                    f"which are {self.min_nodes}:{self.max_nodes}"
                )
