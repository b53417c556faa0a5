"""The classic blocking interface, without torch: handlers, backends, parameters, registry, stores.

::

    from rendezvous_async.sync import RendezvousParameters, create_handler

    handler = create_handler(RendezvousParameters("tcp", "head:29400", "job-7", min_nodes=2, max_nodes=4))
    info = handler.next_rendezvous()
    info.rank, info.world_size, info.store.get("key")
    handler.num_nodes_waiting()     # no traffic: the answer was pushed
    handler.shutdown()

Names, arguments and errors are those of ``torch.distributed.elastic.rendezvous``; ``docs/classic.md`` lists them all,
with the differences. One event loop in a background thread serves all handlers and stores of a process
(``portal.py``). All objects are thread-safe; none may be used in a forked child.
"""

from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rendezvous_async.node.addresses import get_free_port, get_socket_with_port, parse_rendezvous_endpoint
from rendezvous_async.sync.backend import EndpointRendezvousBackend
from rendezvous_async.sync.c10d import C10dRendezvousBackend
from rendezvous_async.sync.collectives import barrier, get_all, store_timeout, synchronize
from rendezvous_async.sync.creation import create_store
from rendezvous_async.sync.etcd import EtcdRendezvousBackend
from rendezvous_async.sync.handler import DynamicRendezvousHandler, Round
from rendezvous_async.sync.interface import RendezvousBackend, RendezvousHandler, RendezvousInfo
from rendezvous_async.sync.params import RendezvousParameters, RendezvousSettings, RendezvousTimeout
from rendezvous_async.sync.registry import (
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    create_backend,
    create_handler,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)
from rendezvous_async.sync.store import BlockingStore, RendezvousStoreInfo

__all__ = [
    "BlockingStore",
    "C10dRendezvousBackend",
    "DynamicRendezvousHandler",
    "EndpointRendezvousBackend",
    "EtcdRendezvousBackend",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "Round",
    "barrier",
    "create_backend",
    "create_handler",
    "create_store",
    "get_all",
    "get_free_port",
    "get_rendezvous_handler",
    "get_socket_with_port",
    "parse_rendezvous_endpoint",
    "rendezvous_handler_registry",
    "store_timeout",
    "synchronize",
]
