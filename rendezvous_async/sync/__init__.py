"""The classic blocking interface, without torch: handlers, parameters, registry, stores.

::

    from rendezvous_async.sync import RendezvousParameters, create_handler

    handler = create_handler(RendezvousParameters("tcp", "head:29400", "job-7", min_nodes=2, max_nodes=4))
    info = handler.next_rendezvous()
    info.rank, info.world_size, info.store.get("key")
    handler.num_nodes_waiting()     # costs nothing: it was pushed
    handler.shutdown()

Names, arguments and errors are those of ``torch.distributed.elastic.rendezvous``; what differs is said where it does.
One event loop in one background thread serves all handlers and stores of a process (``portal.py``). Every object may be
used from many threads, and none in a forked child.
"""

from rendezvous_async.addresses import get_free_port, get_socket_with_port, parse_rendezvous_endpoint
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rendezvous_async.sync.backend import RendezvousBackend
from rendezvous_async.sync.creation import create_store
from rendezvous_async.sync.handler import RendezvousHandler, RendezvousInfo, Round
from rendezvous_async.sync.params import RendezvousParameters, RendezvousSettings, RendezvousTimeout
from rendezvous_async.sync.registry import (
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    create_handler,
    rendezvous_handler_registry,
)
from rendezvous_async.sync.store import RendezvousStoreInfo, Store

__all__ = [
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
    "Store",
    "create_handler",
    "create_store",
    "get_free_port",
    "get_socket_with_port",
    "parse_rendezvous_endpoint",
    "rendezvous_handler_registry",
]
