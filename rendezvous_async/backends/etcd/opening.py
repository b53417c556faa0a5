"""Opens ``etcd://`` and ``etcds://``: reads the certificates and connects the driver."""

from __future__ import annotations

from rendezvous_async.backends.etcd import forks as forks  # Before anything else imports grpc.

# isort: split
import os

import anyio
import grpc

from rendezvous_async.backends.etcd.driver import EtcdDriver
from rendezvous_async.backends.etcd.options import EtcdOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.settings import Endpoint

__all__ = ["open_etcd"]


async def open_etcd(endpoint: Endpoint, options: EtcdOptions, outage: Outage) -> EtcdDriver:
    """Open ``etcd://h1:2379,h2:2379,h3:2379``, or ``etcds://`` for TLS."""
    credentials = await _credentials(options) if endpoint.scheme == "etcds" else None
    driver = EtcdDriver(endpoint, options, credentials, outage=outage)
    await driver.start()
    return driver


async def _credentials(options: EtcdOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=await _read("ca", options.ca),
        private_key=await _read("key", options.key),
        certificate_chain=await _read("cert", options.cert),
    )


async def _read(name: str, path: str | os.PathLike[str] | None) -> bytes | None:
    try:
        return None if path is None else await anyio.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}={os.fspath(path or '')!r} cannot be read: {error.strerror}") from error
