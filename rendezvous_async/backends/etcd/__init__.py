"""``etcd://`` and ``etcds://``: the backend on an etcd v3 cluster. Only this package imports aetcd and grpc."""

from __future__ import annotations

from typing import Any

from rendezvous_async.backends.etcd import forks as forks  # Before anything else imports grpc.

# isort: split
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.etcd.backend import EtcdBackend
from rendezvous_async.backends.etcd.options import read_options
from rendezvous_async.backends.outage import Outage
from rendezvous_async.settings import Endpoint

__all__ = ["EtcdBackend", "open_etcd"]


async def open_etcd(endpoint: Endpoint, run_id: str, *, outage: Outage | None = None, **options: Any) -> Backend:
    """Open ``etcd://h1:2379,h2:2379,h3:2379``, or ``etcds://`` for TLS; see ``Options`` for what can be set."""
    backend = EtcdBackend(endpoint, run_id, await read_options(endpoint, options), outage=outage)
    await backend.start()
    return backend
