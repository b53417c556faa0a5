"""``open_tcp``: what may be asked of ``tcp://``, as keywords or in the endpoint's query, and the backend made of it."""

from __future__ import annotations

import os
import random
import ssl
from typing import Any

import anyio
import msgspec

from rendezvous_async.backends.base import DEFAULT_NAMESPACE
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.channel import STALL_TIMEOUT, Channel
from rendezvous_async.backends.tcp.client import TcpBackend
from rendezvous_async.backends.tcp.dialing import Dialer
from rendezvous_async.backends.tcp.hosting import Host
from rendezvous_async.backends.tcp.limits import Limits
from rendezvous_async.backends.tcp.server import DISCONNECT_GRACE
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import Endpoint, parse_seconds

__all__ = ["TcpOptions", "open_tcp"]

_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class TcpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``tcp://``.

    Attributes:
        namespace: The first part of all keys.
        is_host: ``auto`` hosts the server if the endpoint is this machine's and nobody serves there; ``true`` hosts or
            fails; ``false`` never hosts.
        connect_timeout: Seconds for the first connection, and for the server to be up.
        stall_timeout: Seconds without a word from the server after which a connection counts as dead.
        secret: What both sides prove to know.
        tls: An ``ssl.SSLContext``, or true for TLS with the system's authorities.
        tls_ca: A file with the authorities to believe.
        tls_cert: A file with this side's certificate.
        tls_key: A file with its key.
        rng: For the jitter of reconnects.
        data_dir: For a host: keep everything on disk here.
        insecure: For a host: serve others with neither secret nor TLS.
        disconnect_grace: For a host: seconds that a session outlives its connection.
        limits: For a host: what clients are given.
        linger: For a host: seconds to wait at the end for the sessions of others.
    """

    namespace: str = DEFAULT_NAMESPACE
    is_host: str = "auto"
    connect_timeout: float = 10.0
    stall_timeout: float = STALL_TIMEOUT
    secret: str | bytes | None = None
    tls: ssl.SSLContext | bool | None = None
    tls_ca: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    rng: random.Random | None = None
    data_dir: str | os.PathLike[str] | None = None
    insecure: bool = False
    disconnect_grace: float = DISCONNECT_GRACE
    limits: Limits | None = None
    linger: float = 30.0

    @classmethod
    def parse(cls, options: dict[str, Any]) -> TcpOptions:
        """Return the options; those that come from a query are text."""
        unknown = sorted(options.keys() - set(cls.__struct_fields__))
        if unknown:
            known = ", ".join(cls.__struct_fields__)
            raise ValueError(f"tcp:// takes no option {unknown[0]!r}; it knows {known}")
        parsed = dict(options)
        for name in ("connect_timeout", "stall_timeout", "disconnect_grace", "linger"):
            if name in parsed:
                parsed[name] = parse_seconds(name, parsed[name])
        for name in ("insecure", "tls"):
            if isinstance(parsed.get(name), str):
                parsed[name] = _word(name, parsed[name])
        if "is_host" in parsed:
            value = parsed["is_host"]
            parsed["is_host"] = "auto" if value in (None, "auto") else str(_word("is_host", value)).lower()
        return cls(**parsed)


async def open_tcp(endpoint: Endpoint, run_id: str, *, outage: Outage | None = None, **options: Any) -> TcpBackend:
    """Open ``tcp://host:port``; see ``TcpOptions``. The caller closes it.

    Raises:
        RendezvousConnectionError: There was no connection within ``connect_timeout``, or it was refused for good; the
            error lists every attempt.
    """
    asked = TcpOptions.parse(options)
    secret = None if asked.secret is None else Secret.parse(asked.secret)
    tls = Tls.make(asked.tls, ca=asked.tls_ca, cert=asked.tls_cert, key=asked.tls_key)
    (host_name, port), *_ = endpoint.hosts
    dialer = Dialer(host_name, port, tls.client)
    host = None
    if asked.is_host != "false":
        host = Host(
            dialer,
            must=asked.is_host == "true",
            tls=tls,
            secret=secret,
            data_dir=asked.data_dir,
            insecure=asked.insecure,
            disconnect_grace=asked.disconnect_grace,
            limits=asked.limits,
            linger=asked.linger,
        )
    channel = Channel(
        dialer,
        secret=secret,
        rng=asked.rng,
        prepare=None if host is None else host.prepare,
        stall_timeout=asked.stall_timeout,
        outage=outage or Outage(f"run {run_id!r}", endpoint),
    )
    backend = TcpBackend(channel, run_id, asked.namespace, host=host)
    channel.start()
    try:
        with anyio.move_on_after(asked.connect_timeout):
            await channel.connected()
            return backend
        raise RendezvousConnectionError(
            f"no connection to the server at tcp://{dialer} within {asked.connect_timeout:g} s; "
            "is it running, and is the address right?",
            backend.attempts,
        )
    except BaseException:
        with anyio.CancelScope(shield=True):
            await backend.aclose()
        raise


def _word(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = _WORDS.get(str(value).lower())
    if word is None:
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return word
