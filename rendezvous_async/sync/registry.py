"""Handlers by name: the registry, and how ours are made from parameters.

Ours are registered as ``tcp``, ``etcd``, ``file`` and ``memory``, and as torchrun knows them: ``async-tcp``,
``async-etcd``, ``async-file``. Options are checked when the handler is made. Those that this library does not know are
passed over, as the classic does, but not in silence: most of them are mistyped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from rendezvous_async.addresses import parse_rendezvous_endpoint
from rendezvous_async.backends.access import TLS_FILES, access_options
from rendezvous_async.settings import DEFAULT_PORTS, Endpoint, format_address, parse_endpoint, parse_seconds
from rendezvous_async.sync.handler import RendezvousHandler
from rendezvous_async.sync.params import RendezvousParameters, RendezvousSettings, RendezvousTimeout, whole_number

__all__ = [
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "create_handler",
    "rendezvous_handler_registry",
]

_log = logging.getLogger("rendezvous_async.sync")

RendezvousHandlerCreator: TypeAlias = Callable[[RendezvousParameters], RendezvousHandler]

READ_TIMEOUT = 60
MAX_SECONDS = 1_000_000_000
"""Thirty years; a timedelta holds not much more."""
_RUN_OPTIONS = frozenset(
    {
        "join_timeout",
        "last_call_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "regroup_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "ranks",
        "namespace",
        "read_timeout",
    }
)
_LABEL = "label_"
_KIND_OPTIONS = {
    "tcp": frozenset({"is_host", "secret_file", "data_dir", "insecure", *TLS_FILES}),
    "etcd": frozenset({"secret_file", *TLS_FILES}),
    "file": frozenset({"shared"}),
    "memory": frozenset[str](),
}
_ALWAYS_THERE = frozenset({"timeout", "rank"})
"""What launchers pass whether it is wanted or not."""


class RendezvousHandlerRegistry:
    """Creators of handlers, by the name of the backend."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def __repr__(self) -> str:
        return f"<RendezvousHandlerRegistry {', '.join(sorted(self._creators))}>"

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Let ``creator`` make the handlers of ``backend``.

        Raises:
            ValueError: Another one does already.
        """
        if not backend:
            raise ValueError("the rendezvous backend must have a name that is not empty")
        known = self._creators.setdefault(backend, creator)
        if known != creator:
            raise ValueError(f"the rendezvous backend {backend!r} is registered with {known}, not with {creator}")

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make a handler.

        Raises:
            ValueError: No such backend is registered, or a parameter is wrong.
        """
        creator = self._creators.get(params.backend)
        if creator is None:
            known = ", ".join(sorted(self._creators))
            raise ValueError(f"the rendezvous backend {params.backend!r} is not registered; known are {known}")
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"asked for a {params.backend!r} handler, its creator made one of {handler.get_backend()!r}"
            )
        return handler


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler of a registered backend; see the README for the options of ours."""
    return rendezvous_handler_registry.create_handler(params)


def make_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make one of our handlers from parameters.

    Args:
        params: Their ``config`` may have the classic's options, all whole seconds: ``join_timeout``,
            ``last_call_timeout``, ``close_timeout``, ``heartbeat_timeout``, ``keep_alive_interval``,
            ``keep_alive_max_attempt``, ``read_timeout``, ``is_host``; and ours: ``regroup_timeout``, ``ranks``,
            ``label_<name>``, ``namespace``, ``secret_file``, ``tls_ca``, ``tls_cert``, ``tls_key``, ``data_dir``,
            ``insecure``, ``shared``.
    """
    kind = params.backend.removeprefix("async-")
    _log_unused(params, kind)
    timeout = RendezvousTimeout(
        _seconds(params, "join_timeout"),
        _seconds(params, "last_call_timeout"),
        _seconds(params, "close_timeout"),
        _seconds(params, "heartbeat_timeout"),
        _fraction(params, "regroup_timeout"),
    )
    settings = RendezvousSettings(
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        timeout,
        timedelta(seconds=_count_seconds(params, "keep_alive_interval", 1)),
        _count(params, "keep_alive_max_attempt", 5),
        str(params.get("ranks", "sticky")),
    )
    labels = {name.removeprefix(_LABEL): str(value) for name, value in params.config.items() if name.startswith(_LABEL)}
    endpoint = find_endpoint(kind, params)
    return RendezvousHandler(
        params.backend,
        endpoint,
        settings,
        local_addr=params.local_addr,
        labels=labels,
        **_options(kind, params, endpoint),
    )


def read_timeout(params: Any) -> timedelta:
    """Return how long to wait for a connection, and for an answer of torch's store."""
    return timedelta(seconds=_count_seconds(params, "read_timeout", READ_TIMEOUT))


def find_endpoint(kind: str, params: RendezvousParameters) -> Endpoint:
    """Return the endpoint; the classic's have no scheme, and a default for what they lack."""
    text = (params.endpoint or "").strip()
    if "://" in text:
        endpoint = parse_endpoint(text)
        if endpoint.scheme.removesuffix("s") != kind.removesuffix("s"):
            raise ValueError(f"the endpoint {text!r} is not one of {params.backend}")
        return endpoint
    match kind:
        case "tcp":
            host, port = parse_rendezvous_endpoint(text, DEFAULT_PORTS["tcp"])
            return parse_endpoint(f"tcp://{format_address(host, port)}")
        case "etcd":
            scheme = "etcds" if any(params.get(name) for name in TLS_FILES) else "etcd"
            return parse_endpoint(f"{scheme}://{text or 'localhost'}")
        case "file":
            if not text:
                raise ValueError(f"{params.backend} needs a directory that all nodes share as its endpoint")
            return parse_endpoint(f"file://{quote(os.path.abspath(text))}")
        case _:
            return parse_endpoint(f"{kind}://{text}")


def _options(kind: str, params: RendezvousParameters, endpoint: Endpoint) -> dict[str, Any]:
    """Return the options of the endpoint that its query does not have: those that were given, and few defaults."""
    known = _KIND_OPTIONS[kind] | {"namespace"}
    given = {name: value for name, value in params.config.items() if name in known and value is not None}
    files = {name: given.pop(name) for name in TLS_FILES if name in given}
    path = given.pop("secret_file", None)
    options = given | access_options(kind, secret=None if path is None else _read_secret(path), **files)
    options |= {name: params.get_as_bool(name) for name in ("is_host", "insecure") if name in given}
    patient = kind == "tcp" and "connect_timeout" not in endpoint.options
    if patient or (kind in ("tcp", "etcd") and params.get("read_timeout") is not None):
        options["connect_timeout"] = read_timeout(params).total_seconds()
    return options


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ValueError(f"the rendezvous option 'secret_file': cannot read {path!r}: {error.strerror}") from None


def _log_unused(params: RendezvousParameters, kind: str) -> None:
    for name in params.config.keys() - _RUN_OPTIONS - _KIND_OPTIONS[kind] - _ALWAYS_THERE:
        if not name.startswith(_LABEL):
            _log.warning("the rendezvous option %s has no use with %s and is passed over", name, params.backend)


def _seconds(params: Any, name: str) -> timedelta | None:
    return None if params.get(name) is None else timedelta(seconds=_count_seconds(params, name, 0))


def _fraction(params: Any, name: str) -> timedelta | None:
    value = params.get(name)
    if value is None:
        return None
    seconds = parse_seconds(f"the rendezvous option {name!r}", value)
    if seconds > MAX_SECONDS:
        raise ValueError(f"the rendezvous option {name!r} must be at most {MAX_SECONDS} seconds, not {value!r}")
    return timedelta(seconds=seconds)


def _count_seconds(params: Any, name: str, default: int) -> int:
    value = _given(params, name, default)
    seconds = whole_number(value)
    if seconds is None or not 1 <= seconds <= MAX_SECONDS:
        raise ValueError(
            f"the rendezvous option {name!r} must be a whole number of seconds from 1 to {MAX_SECONDS}, not {value!r}"
        )
    return seconds


def _count(params: Any, name: str, default: int) -> int:
    value = _given(params, name, default)
    count = whole_number(value)
    if count is None:
        raise ValueError(f"the rendezvous option {name!r} must be a whole number, not {value!r}")
    return count


def _given(params: Any, name: str, default: int) -> object:
    """Return an option that has no use for None. torch's own ``get_as_int`` cuts fractions off, so it is not asked."""
    value = params.get(name, default)
    if value is None:
        raise TypeError(f"the rendezvous option {name!r} must be a whole number, not None")
    return value


rendezvous_handler_registry = RendezvousHandlerRegistry()
for _name in ("memory", "tcp", "etcd", "file", "async-tcp", "async-etcd", "async-file"):
    rendezvous_handler_registry.register(_name, make_handler)
