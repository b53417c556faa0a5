"""The options of ``etcd://`` and ``etcds://``, from the query or as keywords, checked before anything is sent."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import anyio
import grpc

from rendezvous_async.backends.base import DEFAULT_NAMESPACE
from rendezvous_async.backends.names import check_name
from rendezvous_async.settings import Endpoint, parse_seconds

__all__ = ["Options", "read_options"]

_FILES = ("ca", "cert", "key")
_SECONDS = ("call_timeout", "connect_timeout")


@dataclass(frozen=True)
class Options:
    """What can be set.

    Attributes:
        namespace: The prefix of all keys, with or without slashes around it.
        user: With ``password``, who to log in as; the token is renewed by itself.
        call_timeout: Seconds for one attempt at one call; after 0.15 of it the next member is asked, too.
        connect_timeout: Seconds for all attempts at one call, and for opening the backend.
        credentials: What ``ca``, ``cert`` and ``key`` hold; None without TLS.
    """

    namespace: str = DEFAULT_NAMESPACE
    user: str | None = None
    password: str | None = None
    call_timeout: float = 2.0
    connect_timeout: float = 10.0
    credentials: grpc.ChannelCredentials | None = None


KNOWN = (*(field.name for field in dataclasses.fields(Options) if field.name != "credentials"), *_FILES)


async def read_options(endpoint: Endpoint, given: dict[str, Any]) -> Options:
    """Return the options of an endpoint; files are read here."""
    where = f"{endpoint.scheme}://"
    given = {name: value for name, value in given.items() if value is not None}
    for name in sorted(given.keys() - set(KNOWN)):
        raise ValueError(f"{where} takes no option {name!r}; it knows {', '.join(KNOWN)}")
    for name in _SECONDS:
        if name in given:
            given[name] = parse_seconds(name, given[name])
    for name in ("namespace", "user", "password"):
        if name in given and not (isinstance(given[name], str) and given[name].strip("/")):
            raise ValueError(f"{name} must be a text that is not empty")
    if "namespace" in given:
        check_name(given["namespace"].strip("/"))
    if ("user" in given) != ("password" in given):
        raise ValueError(f"{where} needs both user and password, or neither")
    files = {name: given.pop(name) for name in _FILES if name in given}
    if files and endpoint.scheme != "etcds":
        raise ValueError(f"{', '.join(files)}: certificates are for etcds://, not for {where}")
    if ("cert" in files) != ("key" in files):
        raise ValueError("a client certificate needs both cert and key")
    if endpoint.scheme == "etcds":
        given["credentials"] = await _credentials(files)
    return Options(**given)


async def _credentials(files: dict[str, str]) -> grpc.ChannelCredentials:
    contents: dict[str, bytes] = {}
    for name, path in files.items():
        try:
            contents[name] = await anyio.Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"{name}={path!r} cannot be read: {error.strerror}") from error
    return grpc.ssl_channel_credentials(
        root_certificates=contents.get("ca"), private_key=contents.get("key"), certificate_chain=contents.get("cert")
    )
