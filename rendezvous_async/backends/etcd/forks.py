"""Guards against forks: gRPC does not survive one, so a child forked after etcd was used gets an error, not a crash.

* gRPC's threads do not exist in the child. gRPC's own fork handlers restart them on state that was being changed
  during the fork: up to a third of all children crashed, even if they did nothing (grpcio 1.85.1). So the handlers are
  disabled, unless the user has set ``GRPC_ENABLE_FORK_SUPPORT`` or imported grpc before.
* A call in the child would never be answered, and would steal answers from the parent, so it is refused.
* The child shares its parent's connections: closing them would break the parent. So the child closes nothing.
"""

from __future__ import annotations

import os

from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["check_process", "in_child"]

_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

if _SUPPORT in os.environ:
    import grpc
else:
    os.environ[_SUPPORT] = "0"
    try:
        import grpc  # The variable is read once, on import.
    finally:
        del os.environ[_SUPPORT]
del grpc

_user: int | None = None
"""The process that uses gRPC; a forked child inherits it."""


def in_child() -> bool:
    """Return whether this process was forked from one that had used gRPC."""
    return _user not in (None, os.getpid())


def check_process() -> None:
    """Note that this process uses gRPC.

    Raises:
        RendezvousConnectionError: It was forked from a process that had used gRPC.
    """
    global _user
    if in_child():
        raise RendezvousConnectionError(
            f"etcd was used in process {_user}, and process {os.getpid()} was forked from it later: gRPC does not work "
            "there. Start the child with spawn or exec (multiprocessing's start method 'spawn', subprocess), or fork "
            "before etcd is used",
            final=True,
        )
    _user = os.getpid()
