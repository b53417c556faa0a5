"""gRPC does not survive a fork: a child that was forked after etcd was used is told so, and does not crash.

* None of gRPC's threads is in the child. gRPC's own fork handlers start them again, on state that was being changed
  when the process forked: up to a third of all children died of it, even if they did nothing (grpcio 1.85.1). So the
  handlers are switched off, unless the user has set ``GRPC_ENABLE_FORK_SUPPORT`` or imported grpc before.
* A call in the child would never be answered, and would take answers away from the parent, so it is refused.
* The child shares its parent's connections: what it closed or cancelled would end for the parent. So it closes nothing.
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
        import grpc  # It reads the variable when it is imported, and never again.
    finally:
        del os.environ[_SUPPORT]
del grpc

_user: int | None = None
"""The process that uses gRPC; a forked child inherits it."""


def in_child() -> bool:
    """Tell whether this process was forked from one that had used gRPC."""
    return _user not in (None, os.getpid())


def check_process() -> None:
    """Note that this process uses gRPC.

    Raises:
        RendezvousConnectionError: It must not, since it was forked from one that did.
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
