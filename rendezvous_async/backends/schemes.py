"""Finds the driver for an endpoint's scheme: one of this package, or one of another distribution.

A distribution adds a scheme with an entry point in the group ``rendezvous_async.backends``. The entry point's name is
the scheme, its value a ``Scheme``. In ``pyproject.toml``::

    [project.entry-points."rendezvous_async.backends"]
    redis = "rdzv_redis:SCHEME"

and in ``rdzv_redis``::

    class RedisOptions(BackendOptions, frozen=True, kw_only=True):
        password: SecretText | None = None

    async def open_redis(endpoint: Endpoint, options: RedisOptions, outage: Outage) -> Driver: ...

    SCHEME = Scheme(RedisOptions, open_redis)

For such a scheme, ``Endpoint.path`` is the text between ``://`` and the query. An entry point is loaded when its scheme
is first used; it cannot replace a scheme of this package.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rendezvous_async.backends.driver import Driver
from rendezvous_async.backends.extras import check_installed
from rendezvous_async.backends.options import BackendOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.settings import Endpoint
from rendezvous_async.texts import quoted

__all__ = ["GROUP", "Scheme", "find_scheme"]

GROUP = "rendezvous_async.backends"
_OWN = {
    "memory": "rendezvous_async.backends.memory",
    "tcp": "rendezvous_async.backends.tcp",
    "etcd": "rendezvous_async.backends.etcd",
    "etcds": "rendezvous_async.backends.etcd",
    "file": "rendezvous_async.backends.file",
}
"""The modules of this package's own schemes; each has a ``SCHEME``."""


@dataclass(frozen=True)
class Scheme:
    """The options of a scheme, and how to open it.

    Attributes:
        options: The struct that options are parsed into; its module should be cheap to import.
        open: Opens a driver, which the caller closes. A networked store reports failed attempts to the outage.
    """

    options: type[BackendOptions]
    open: Callable[[Endpoint, Any, Outage], Awaitable[Driver]]


def find_scheme(endpoint: Endpoint) -> Scheme:
    """Return the ``Scheme`` of an endpoint.

    Raises:
        ValueError: It is unknown, provided by several distributions, or cannot be loaded.
        ImportError: It needs an extra that is not installed.
    """
    name = endpoint.scheme
    if name in _OWN:
        check_installed(name)
        own: Scheme = import_module(_OWN[name]).SCHEME
        return own
    others = entry_points(group=GROUP)
    found = [point for point in others if point.name == name]
    if not found:
        known = ", ".join(sorted({*_OWN, *others.names}))
        raise ValueError(f"endpoint {str(endpoint)!r} has the unknown scheme {name!r}; known are {known}")
    makers = sorted({_maker(point) for point in found})
    if len(makers) > 1:
        raise ValueError(
            f"several distributions provide the scheme {name}://, uninstall all but one: {', '.join(makers)}"
        )
    try:
        scheme = found[0].load()
    except Exception as error:
        raise ValueError(f"the scheme {name}:// of {makers[0]} cannot be loaded: {error!r}") from error
    if not isinstance(scheme, Scheme):
        raise ValueError(f"the scheme {name}:// of {makers[0]} must be a Scheme, not {quoted(scheme)}")
    return scheme


def _maker(point: EntryPoint) -> str:
    """Return the distribution that provides an entry point."""
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version} ({point.value})"
