"""Handlers by name: the registry, and the functions that make handlers from parameters or a backend.

This package's handlers are registered as ``tcp``, ``etcd``, ``file`` and ``memory``, under torchrun's names
(``async-tcp``, ``async-etcd``, ``async-file``), and under the classic's: ``c10d`` (tcp or file) and ``etcd-v2``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast, overload

from rendezvous_async.sync import c10d, etcd
from rendezvous_async.sync.backend import EndpointRendezvousBackend
from rendezvous_async.sync.carrier import at_endpoint, carry
from rendezvous_async.sync.handler import DynamicRendezvousHandler
from rendezvous_async.sync.interface import RendezvousBackend, RendezvousHandler
from rendezvous_async.sync.options import (
    endpoint_options,
    find_endpoint,
    kind_of,
    log_unused,
    read_labels,
    read_settings,
)
from rendezvous_async.sync.params import RendezvousParameters
from rendezvous_async.sync.store import BlockingStore
from rendezvous_async.texts import quoted

__all__ = [
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "create_backend",
    "create_handler",
    "get_rendezvous_handler",
    "make_handler",
    "rendezvous_handler_registry",
]

RendezvousHandlerCreator: TypeAlias = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Creators of handlers, by the name of the backend."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def __repr__(self) -> str:
        return f"<RendezvousHandlerRegistry {', '.join(sorted(self._creators))}>"

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register the function that makes the handlers of a backend.

        Raises:
            ValueError: Another creator is registered under this name.
        """
        if not backend:
            raise ValueError("the name of the rendezvous backend must not be empty")
        known = self._creators.setdefault(backend, creator)
        if known != creator:
            raise ValueError(
                f"the rendezvous backend {backend!r} is already registered with {known}, not with {creator}"
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make a handler.

        Raises:
            ValueError: No such backend is registered, or a parameter is invalid.
        """
        creator = self._creators.get(params.backend)
        if creator is None:
            known = ", ".join(sorted(self._creators))
            raise ValueError(f"the rendezvous backend {params.backend!r} is not registered; use one of {known}")
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"the creator registered for {params.backend!r} made a handler for {handler.get_backend()!r}"
            )
        return handler


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make a handler of a registered backend."""
    return rendezvous_handler_registry.create_handler(params)


@overload
def create_handler(store: RendezvousParameters) -> RendezvousHandler: ...


@overload
def create_handler(*, params: RendezvousParameters) -> RendezvousHandler: ...


@overload
def create_handler(
    store: Any, backend: RendezvousBackend, params: RendezvousParameters
) -> DynamicRendezvousHandler: ...


def create_handler(
    store: Any = None, backend: RendezvousBackend | None = None, params: RendezvousParameters | None = None
) -> RendezvousHandler:
    """Make a handler, from ``create_handler(params)`` or from ``create_handler(store, backend, params)``.

    Args:
        store: The store that the handler returns, under a prefix for each round; None for the round's own store.
        backend: Where the run lives; by default at the endpoint of the parameters.
        params: The run and its options. The classic's, in whole seconds: ``join_timeout``, ``last_call_timeout``,
            ``close_timeout``, ``heartbeat_timeout``, ``keep_alive_interval``, ``keep_alive_max_attempt`` (a count),
            ``read_timeout``. The classic's others: ``is_host``, ``store_type``, ``protocol``, ``ca_cert``,
            ``ssl_cert``, ``ssl_cert_key``. In addition: ``regroup_timeout``, ``grow_timeout``, ``ranks``, ``sizes``
            (``4:64:4`` or ``4/8/16``, within ``min_nodes`` to ``max_nodes``), ``domain``, ``per_domain``,
            ``label_<name>``, ``namespace``, ``secret_file``, ``tls_ca``, ``tls_cert``, ``tls_key``, ``data_dir``,
            ``insecure``, ``shared``. With a backend, only the run's options apply.
    """
    if params is None:
        params, store = store, None
    if not hasattr(params, "config"):
        raise TypeError(
            f"create_handler takes RendezvousParameters, or a store, a backend and those, not {quoted(params)}"
        )
    if backend is None:
        return get_rendezvous_handler(params)
    carrier, settings, labels = carry(backend), read_settings(params), read_labels(params)
    return DynamicRendezvousHandler(
        backend.name, carrier, settings, store=store, local_addr=params.local_addr, labels=labels
    )


def create_backend(params: RendezvousParameters) -> tuple[EndpointRendezvousBackend, BlockingStore]:
    """Return a backend and a store on the same connection: on etcd if ``params.backend`` says so, else as c10d."""
    if not hasattr(params, "config"):
        raise TypeError(f"create_backend takes RendezvousParameters, not {quoted(params)}")
    is_etcd = params.backend.removeprefix("async-") in ("etcd", "etcd-v2")
    return etcd.create_backend(params) if is_etcd else c10d.create_backend(params)


def make_handler(params: Any) -> DynamicRendezvousHandler:
    """Make one of this package's handlers; the parameters may be torch's, with the options of ``create_handler``."""
    params = cast(RendezvousParameters, params)
    kind = kind_of(params)
    log_unused(params, kind)
    endpoint = find_endpoint(kind, params)
    return DynamicRendezvousHandler(
        params.backend,
        at_endpoint(endpoint, **endpoint_options(kind, params, endpoint)),
        read_settings(params),
        local_addr=params.local_addr,
        labels=read_labels(params),
    )


rendezvous_handler_registry: RendezvousHandlerRegistry = RendezvousHandlerRegistry()
for _name in ("memory", "tcp", "etcd", "file", "async-tcp", "async-etcd", "async-file", "c10d", "etcd-v2"):
    rendezvous_handler_registry.register(_name, make_handler)
