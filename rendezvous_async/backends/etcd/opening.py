"""Opens ``etcd://`` and ``etcds://``: reads the certificates and connects the driver."""

from __future__ import annotations

from rendezvous_async.backends.etcd import forks as forks  # Before anything else imports grpc.

# isort: split
import os

import anyio

from rendezvous_async.backends.etcd.bridge import TlsFiles
from rendezvous_async.backends.etcd.driver import EtcdDriver
from rendezvous_async.backends.etcd.options import EtcdOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.settings import Endpoint

__all__ = ["open_etcd"]


async def open_etcd(endpoint: Endpoint, options: EtcdOptions, outage: Outage) -> EtcdDriver:
    """Open ``etcd://h1:2379,h2:2379,h3:2379``, or ``etcds://`` for TLS."""
    tls = await _read_tls(options) if endpoint.scheme == "etcds" else None
    driver = EtcdDriver(endpoint, options, tls, outage=outage)
    await driver.start()
    return driver


async def _read_tls(options: EtcdOptions) -> TlsFiles:
    return TlsFiles(await _read("ca", options.ca), await _read("key", options.key), await _read("cert", options.cert))


async def _read(name: str, path: str | os.PathLike[str] | None) -> bytes | None:
    try:
        return None if path is None else await anyio.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}={os.fspath(path or '')!r} cannot be read: {error.strerror}") from error
