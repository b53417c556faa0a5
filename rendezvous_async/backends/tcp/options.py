"""The options of ``tcp://``, given as keywords or in the endpoint's query."""

from __future__ import annotations

import random
import ssl
from typing import Annotated, Literal, TypeAlias

from rendezvous_async.backends.options import (
    BackendOptions,
    FilePath,
    Flag,
    Seconds,
    SecretText,
    one_of_type,
    parse_flag,
)
from rendezvous_async.backends.tcp.server.limits import DISCONNECT_GRACE, Limits

__all__ = ["HostMode", "TcpOptions"]

HostMode: TypeAlias = Literal["auto", "true", "false"]


def parse_host_mode(name: str, value: object) -> HostMode:
    """Parse ``auto`` or a truth value."""
    if value == "auto":
        return "auto"
    return "true" if parse_flag(name, value) else "false"


def parse_tls(name: str, value: object) -> ssl.SSLContext | bool:
    """Parse a context or a truth value."""
    return value if isinstance(value, ssl.SSLContext) else parse_flag(name, value)


class TcpOptions(BackendOptions, frozen=True, kw_only=True):
    """The options of ``tcp://``.

    Attributes:
        is_host: ``auto`` hosts the server if the endpoint is on this machine and no server runs there; ``true`` hosts
            or fails; ``false`` never hosts.
        connect_timeout: Seconds until the first connection, which includes the start of the server.
        stall_timeout: Seconds without a byte from the server after which a connection counts as dead.
        secret: The secret that both sides must prove to know.
        tls: An ``ssl.SSLContext``, or true for TLS with the system's authorities.
        tls_ca: A file with the trusted authorities.
        tls_cert: A file with this side's certificate.
        tls_key: A file with its key.
        rng: For the jitter of reconnects.
        data_dir: For a host: keep everything on disk here.
        insecure: For a host: serve others with neither secret nor TLS.
        disconnect_grace: For a host: seconds that a session outlives its connection.
        limits: For a host: the limits for clients. This client keeps to its ``writes`` too.
        linger: For a host: seconds to wait on close for the sessions of other processes.
    """

    is_host: Annotated[HostMode, parse_host_mode] = "auto"
    connect_timeout: Seconds = 10.0
    stall_timeout: Seconds = 3.0
    secret: SecretText | None = None
    tls: Annotated[ssl.SSLContext | bool, parse_tls] | None = None
    tls_ca: FilePath | None = None
    tls_cert: FilePath | None = None
    tls_key: FilePath | None = None
    rng: Annotated[random.Random, one_of_type(random.Random)] | None = None
    data_dir: FilePath | None = None
    insecure: Flag = False
    disconnect_grace: Seconds = DISCONNECT_GRACE
    limits: Annotated[Limits, one_of_type(Limits)] | None = None
    linger: Seconds = 30.0
