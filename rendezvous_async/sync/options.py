"""Parse and validate a handler's parameters: settings, the endpoint and its options.

``create_handler`` lists the options. An unknown option is ignored, as in the classic, but with a warning: most are
typos.
"""

from __future__ import annotations

import logging
import math
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rendezvous_async.backends.access import TLS_FILES, access_options
from rendezvous_async.logs import log_fields
from rendezvous_async.node.addresses import parse_rendezvous_endpoint
from rendezvous_async.settings import (
    DEFAULT_PORTS,
    Endpoint,
    as_number,
    check_grow,
    format_address,
    parse_endpoint,
    parse_seconds,
)
from rendezvous_async.sizes import parse_sizes
from rendezvous_async.sync.backend import READ_TIMEOUT
from rendezvous_async.sync.params import RendezvousParameters, RendezvousSettings, RendezvousTimeout, whole_number
from rendezvous_async.texts import quoted

__all__ = [
    "endpoint_options",
    "find_endpoint",
    "kind_of",
    "log_unused",
    "read_labels",
    "read_settings",
    "read_timeout",
    "store_type",
]

_log = logging.getLogger("rendezvous_async.sync")

MAX_SECONDS = 1_000_000_000
"""Thirty years, well within the range of a timedelta."""
_RUN_OPTIONS = frozenset(
    {
        "join_timeout",
        "last_call_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "regroup_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "grow_timeout",
        "ranks",
        "sizes",
        "domain",
        "per_domain",
        "namespace",
        "read_timeout",
    }
)
_LABEL = "label_"
_CLASSIC_FILES = {"ca_cert": "tls_ca", "ssl_cert": "tls_cert", "ssl_cert_key": "tls_key"}
"""The TLS files, as the classic's etcd backend names them."""
_KIND_OPTIONS = {
    "tcp": frozenset({"is_host", "store_type", "secret_file", "data_dir", "insecure", *TLS_FILES}),
    "etcd": frozenset({"secret_file", "protocol", *TLS_FILES, *_CLASSIC_FILES}),
    "file": frozenset({"store_type", "shared"}),
    "memory": frozenset[str](),
}
_HANDLED = frozenset({"protocol", "store_type", *_CLASSIC_FILES})
"""Options that are part of the endpoint, or have another name there."""
_ALWAYS_THERE = frozenset({"timeout", "rank"})
"""Options that launchers always pass."""


def kind_of(params: RendezvousParameters) -> str:
    """Return the scheme of endpoint that a backend's name stands for."""
    match params.backend.removeprefix("async-"):
        case "c10d":
            return store_type(params)
        case "etcd-v2":
            return "etcd"
        case "tcp" | "file" as kind if params.get("store_type", kind) != kind and store_type(params) != kind:
            raise ValueError(
                f"the rendezvous option 'store_type' is {store_type(params)!r}, which contradicts {params.backend}"
            )
        case kind:
            return kind


def store_type(params: RendezvousParameters) -> str:
    """Return the classic's option: ``tcp`` or ``file``."""
    return _word(params, "store_type", ("tcp", "file"))


def read_settings(params: RendezvousParameters) -> RendezvousSettings:
    """Return the settings of the run and its keep-alives."""
    timeout = RendezvousTimeout(
        _seconds(params, "join_timeout"),
        _seconds(params, "last_call_timeout"),
        _seconds(params, "close_timeout"),
        _seconds(params, "heartbeat_timeout"),
        _fraction(params, "regroup_timeout"),
        _grow(params),
    )
    return RendezvousSettings(
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        timeout,
        timedelta(seconds=_count_seconds(params, "keep_alive_interval", 1)),
        _count(params, "keep_alive_max_attempt", 5),
        str(params.get("ranks", "sticky")),
        _sizes(params),
        _domain(params),
        _count(params, "per_domain", 1),
    )


def read_labels(params: RendezvousParameters) -> dict[str, str]:
    """Return the node's labels: the options ``label_<name>``."""
    labels = {}
    for option, value in params.config.items():
        if option.startswith(_LABEL):
            name = option.removeprefix(_LABEL)
            if not name or value is None:
                raise ValueError(f"the rendezvous option {option!r} must be label_<name> with a value, not {value!r}")
            labels[name] = str(value)
    return labels


def read_timeout(params: Any) -> timedelta:
    """Return how long to wait for a connection, and for an answer of a store."""
    return timedelta(seconds=_count_seconds(params, "read_timeout", int(READ_TIMEOUT)))


def find_endpoint(kind: str, params: RendezvousParameters) -> Endpoint:
    """Return the endpoint. The classic's have no scheme and may lack a host or port, which then get defaults."""
    text = (params.endpoint or "").strip()
    encrypted = kind == "etcd" and _is_encrypted(params)
    if "://" in text:
        endpoint = parse_endpoint(text)
        if endpoint.scheme.removesuffix("s") != kind.removesuffix("s"):
            raise ValueError(f"the endpoint {quoted(text)} does not fit the backend {params.backend}")
        if kind == "etcd" and params.get("protocol") is not None and encrypted != (endpoint.scheme == "etcds"):
            raise ValueError(
                f"the endpoint {quoted(text)} and protocol={params.get('protocol')!r} contradict each other"
            )
        return endpoint
    match kind:
        case "tcp":
            host, port = parse_rendezvous_endpoint(text, DEFAULT_PORTS["tcp"])
            return parse_endpoint(f"tcp://{format_address(host, port)}")
        case "etcd":
            return parse_endpoint(f"{'etcds' if encrypted else 'etcd'}://{text or 'localhost'}")
        case "file":
            if not text:
                raise ValueError(f"{params.backend} needs an endpoint: a directory that all nodes share")
            return parse_endpoint(f"file://{quote(os.path.abspath(text))}")
        case _:
            return parse_endpoint(f"{kind}://{text}")


def _is_encrypted(params: RendezvousParameters) -> bool:
    """Return whether to use TLS for etcd, which any TLS file implies."""
    given = sorted(name for name in (*TLS_FILES, *_CLASSIC_FILES) if params.get(name))
    protocol = _word(params, "protocol", ("http", "https")) if params.get("protocol") is not None else None
    if given and protocol == "http":
        raise ValueError(f"the rendezvous option 'protocol' is 'http', which has no TLS, but {given[0]!r} is set")
    return bool(given) or protocol == "https"


def _named_files(params: RendezvousParameters) -> dict[str, str]:
    """Return the TLS files, under this package's names."""
    files: dict[str, str] = {}
    for name, ours in [*((name, name) for name in TLS_FILES), *_CLASSIC_FILES.items()]:
        if params.get(name):
            if ours in files:
                raise ValueError(f"the rendezvous options {name!r} and {ours!r} mean the same: set only one")
            files[ours] = params.get(name)
    return files


def endpoint_options(kind: str, params: RendezvousParameters, endpoint: Endpoint) -> dict[str, Any]:
    """Return the options to add to the endpoint's query: the given ones, and ``connect_timeout``."""
    known = (_KIND_OPTIONS[kind] | {"namespace"}) - _HANDLED - set(TLS_FILES)
    given = {name: value for name, value in params.config.items() if name in known and value is not None}
    path = given.pop("secret_file", None)
    files = _named_files(params) if kind in ("tcp", "etcd") else {}
    options = given | access_options(kind, secret=None if path is None else _read_secret(path), **files)
    options |= {name: params.get_as_bool(name) for name in ("is_host", "insecure") if name in given}
    patient = kind == "tcp" and "connect_timeout" not in endpoint.options
    if patient or (kind in ("tcp", "etcd") and params.get("read_timeout") is not None):
        options["connect_timeout"] = read_timeout(params).total_seconds()
    return options


def log_unused(params: RendezvousParameters, kind: str) -> None:
    """Warn of options that are unknown or do not apply to this kind of endpoint."""
    for name in params.config.keys() - _RUN_OPTIONS - _KIND_OPTIONS[kind] - _ALWAYS_THERE:
        if not name.startswith(_LABEL):
            _log.warning(
                "ignoring the rendezvous option %s: it is unknown or does not apply to %s",
                name,
                params.backend,
                extra=log_fields(params.run_id),
            )


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ValueError(f"the rendezvous option 'secret_file': cannot read {path!r}: {error.strerror}") from None


def _word(params: Any, name: str, words: tuple[str, ...]) -> str:
    """Return an option that must be one of a few words; by default the first."""
    value = params.get(name, words[0])
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in words:
        raise ValueError(f"the rendezvous option {name!r} must be {' or '.join(words)}, not {quoted(value)}")
    return word


def _seconds(params: Any, name: str) -> timedelta | None:
    return None if params.get(name) is None else timedelta(seconds=_count_seconds(params, name, 0))


def _sizes(params: Any) -> str:
    """Return the sizes as text. torchrun splits its --rdzv-conf at commas, so a list may have slashes instead."""
    value = params.get("sizes")
    if value is None:
        return ""
    nodes = value.replace("/", ",") if isinstance(value, str) else value
    try:
        sizes = parse_sizes(nodes)
        return nodes if isinstance(nodes, str) else str(sizes)
    except ValueError as error:
        raise ValueError(f"the rendezvous option 'sizes': {error}") from None


def _domain(params: Any) -> Any:
    """Return the label whose values are domains; an empty name is a variable that is not set in somebody's script."""
    domain = params.get("domain")
    if domain == "":
        raise ValueError("the rendezvous option 'domain' must be the name of a label, not ''; leave it out for none")
    return "" if domain is None else domain


def _grow(params: Any) -> timedelta | None:
    """Return how long to hold newcomers back: 0 or more; ``timedelta.max`` for ``inf``."""
    name, value = "grow_timeout", params.get("grow_timeout")
    if value is None:
        return None
    seconds = check_grow(f"the rendezvous option {name!r}", as_number(value))
    return timedelta.max if seconds == math.inf else _timedelta(name, seconds)


def _fraction(params: Any, name: str) -> timedelta | None:
    value = params.get(name)
    return None if value is None else _timedelta(name, parse_seconds(f"the rendezvous option {name!r}", value))


def _timedelta(name: str, seconds: float) -> timedelta:
    if seconds > MAX_SECONDS:
        raise ValueError(f"the rendezvous option {name!r} must be at most {MAX_SECONDS} seconds, not {quoted(seconds)}")
    return timedelta(seconds=seconds)


def _count_seconds(params: Any, name: str, default: int) -> int:
    wanted = f"a whole number of seconds from 1 to {MAX_SECONDS}"
    seconds = _count(params, name, default, wanted)
    if not 1 <= seconds <= MAX_SECONDS:
        raise ValueError(f"the rendezvous option {name!r} must be {wanted}, not {quoted(params.get(name))}")
    return seconds


def _count(params: Any, name: str, default: int, wanted: str = "a whole number") -> int:
    """Return a whole number; torch's ``get_as_int`` would truncate a fraction."""
    value = params.get(name, default)
    if value is None:
        raise TypeError(f"the rendezvous option {name!r} must be a whole number, not None")
    count = whole_number(value)
    if count is None:
        raise ValueError(f"the rendezvous option {name!r} must be {wanted}, not {quoted(value)}")
    return count
