"""What each kind of endpoint can be asked for, checked before anything is imported or sent.

``connect`` and ``open_backend`` go through here, so a mistyped option is an error where it is given. A backend may know
more about its options than their kind, and checks the rest when it is opened.
"""

from __future__ import annotations

import difflib
import os
import random
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from rendezvous_async.backends.names import check_name
from rendezvous_async.settings import Endpoint, parse_seconds

__all__ = ["OPTIONS", "check_options"]

Check: TypeAlias = Callable[[str, object], object]

MAX_NAMESPACE_LENGTH = 256
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _check_flag(name: str, value: object) -> None:
    """Raise unless it is true or false, or a word for one of them."""
    if not isinstance(value, bool) and not (isinstance(value, str) and value.lower() in _WORDS):
        raise ValueError(f"{name} must be true or false, not {value!r}")


def _check_path(name: str, value: object) -> None:
    """Raise unless it names a file or a directory."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name} must be a path, not {value!r}")


def _check_secret(name: str, value: object) -> None:
    """Raise unless it can be a secret; the error does not tell it."""
    if not isinstance(value, str | bytes):
        raise ValueError(f"{name} must be a text or bytes, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip("/"):
        raise ValueError(f"{name} must be a text that is not empty, not {value!r}")


def _check_namespace(name: str, value: object) -> None:
    """Raise unless all keys can begin with it; slashes around it do not matter."""
    _check_text(name, value)
    text = str(value)
    if len(text) > MAX_NAMESPACE_LENGTH:
        raise ValueError(
            f"{name} must have at most {MAX_NAMESPACE_LENGTH} characters, not {len(text)}: {text[:32]!r}..."
        )
    try:
        check_name(text.strip("/"))
    except ValueError:
        raise ValueError(
            f"{name} must have segments of printable characters between single slashes, not {text!r}"
        ) from None


def _check_is_host(name: str, value: object) -> None:
    if value != "auto":
        _check_flag(name, value)


def _check_tls(name: str, value: object) -> None:
    if not isinstance(value, ssl.SSLContext):
        _check_flag(name, value)


def _check_rng(name: str, value: object) -> None:
    if not isinstance(value, random.Random):
        raise ValueError(f"{name} must be a random.Random, not {value!r}")


def _check_limits(name: str, value: object) -> None:
    from rendezvous_async.backends.tcp.limits import Limits

    if not isinstance(value, Limits):
        raise ValueError(f"{name} must be a Limits, not {value!r}")


_ETCD: dict[str, Check] = {
    "namespace": _check_namespace,
    "user": _check_text,
    "password": _check_secret,
    "call_timeout": parse_seconds,
    "connect_timeout": parse_seconds,
    "ca": _check_path,
    "cert": _check_path,
    "key": _check_path,
}

OPTIONS: dict[str, dict[str, Check]] = {
    "memory": {"namespace": _check_namespace},
    "tcp": {
        "namespace": _check_namespace,
        "is_host": _check_is_host,
        "connect_timeout": parse_seconds,
        "stall_timeout": parse_seconds,
        "secret": _check_secret,
        "tls": _check_tls,
        "tls_ca": _check_path,
        "tls_cert": _check_path,
        "tls_key": _check_path,
        "rng": _check_rng,
        "data_dir": _check_path,
        "insecure": _check_flag,
        "disconnect_grace": parse_seconds,
        "limits": _check_limits,
        "linger": parse_seconds,
    },
    "file": {
        "namespace": _check_namespace,
        "fsync": _check_flag,
        "inotify": _check_flag,
        "check": parse_seconds,
        "shared": _check_flag,
        "timeout": parse_seconds,
    },
    "etcd": _ETCD,
    "etcds": _ETCD,
}
"""By scheme, the options that it knows and what each must be."""


def check_options(endpoint: Endpoint, options: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options of an endpoint, those of its query included; None means that one is not given.

    Args:
        endpoint: Whose options they are.
        options: Those that were given as keywords.
        others: What else could have been meant.

    Raises:
        ValueError: There is no such option, it has a wrong value, or it is given twice.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in sorted(given.keys() & endpoint.options.keys()):
        raise ValueError(f"option {name!r} is given both in the endpoint {str(endpoint)!r} and as a keyword")
    known = OPTIONS[endpoint.scheme]
    given |= endpoint.options
    for name, value in given.items():
        if name not in known:
            meant = _meant(endpoint.scheme, name, [*known, *others])
            raise ValueError(f"{endpoint.scheme}:// takes no option {name!r}; {meant}it knows {', '.join(known)}")
        known[name](name, value)
    return given


def _meant(scheme: str, name: str, names: list[str]) -> str:
    """Return what to say of an option that there is not; what connect() itself takes by that name was meant as such."""
    if scheme in ("etcd", "etcds") and name == "secret":
        return "use user= and password=; "
    close = [] if name in names else difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}? " if close else ""
