"""The backend on an etcd v3 cluster: ``etcd://`` and ``etcds://``.

Only this package imports aetcd and grpc, and only when an endpoint is opened (by ``opening.py``).
"""

from __future__ import annotations

from rendezvous_async.backends.driver import Driver
from rendezvous_async.backends.etcd.options import EtcdOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.schemes import Scheme
from rendezvous_async.settings import Endpoint

__all__ = ["SCHEME", "EtcdOptions"]


async def _open(endpoint: Endpoint, options: EtcdOptions, outage: Outage) -> Driver:
    from rendezvous_async.backends.etcd.opening import open_etcd

    return await open_etcd(endpoint, options, outage)


SCHEME = Scheme(EtcdOptions, _open)
