"""Where a handler's run lives, and how to open its backend.

``carry`` is the one way from a classic ``RendezvousBackend`` to a backend that can carry a rendezvous.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rendezvous_async.backends import open_with
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.cas import over_state
from rendezvous_async.backends.options import BackendOptions, read_options
from rendezvous_async.backends.schemes import find_scheme
from rendezvous_async.settings import Endpoint, parse_endpoint
from rendezvous_async.sync.backend import EndpointRendezvousBackend
from rendezvous_async.sync.interface import RendezvousBackend
from rendezvous_async.texts import quoted

__all__ = ["Carrier", "at_endpoint", "carry"]


@dataclass(frozen=True)
class Carrier:
    """Where a run lives.

    Attributes:
        place: Its name in messages; two runs with one id are the same run if their places are equal.
        open: Opens the backend of a run there; the caller closes it.
        endpoint: Its endpoint, for detecting a node's address; None if it has none.
        held: Kept open as long as a handler uses it: it may host the server, or hold the run itself.
    """

    place: str
    open: Callable[[str], Awaitable[Backend]]
    endpoint: Endpoint | None = None
    held: RendezvousBackend | None = None


def at_endpoint(endpoint: str | Endpoint, **options: Any) -> Carrier:
    """Return the carrier of all runs on an endpoint.

    Args:
        endpoint: For example ``tcp://head:29400``.
        **options: The endpoint's options.
    """
    where = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    asked = read_options(find_scheme(where).options, where, options)  # Reject wrong options here, not at a join.
    namespace = options.get("namespace", where.options.get("namespace", ""))
    return Carrier(f"{where} {namespace}".rstrip(), partial(_start, where, asked), where)


def carry(backend: RendezvousBackend) -> Carrier:
    """Return what carries a rendezvous for a classic backend.

    Raises:
        TypeError: It lacks a method of one.
    """
    if isinstance(backend, EndpointRendezvousBackend):
        options = backend.options
        if options.get("is_host"):
            # The backend hosts the server already: the handler is its client, and hosts only when it is gone.
            options = {**options, "is_host": "auto"}
        return replace(at_endpoint(backend.endpoint, **options), held=backend)
    methods = (getattr(backend, name, None) for name in ("get_state", "set_state"))
    if isinstance(backend, type) or not hasattr(backend, "name") or not all(map(callable, methods)):
        raise TypeError(f"a RendezvousBackend has name, get_state() and set_state(), unlike {quoted(backend)}")
    return Carrier(f"{backend.name} {backend!r}", partial(_start_over, backend), held=backend)


async def _start_over(backend: RendezvousBackend, run_id: str) -> Backend:
    return over_state(backend, run_id)


async def _start(endpoint: Endpoint, options: BackendOptions, run_id: str) -> Backend:
    return await open_with(endpoint, options, run_id)
