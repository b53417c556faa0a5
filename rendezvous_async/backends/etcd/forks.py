"""Guards against forks: gRPC does not survive one, so a child forked after etcd was used has a helper process instead.

* gRPC's threads do not exist in the child. gRPC's own fork handlers restart them on state that was being changed
  during the fork: up to a third of all children crashed, even if they did nothing (grpcio 1.85.1). So the handlers are
  disabled, unless the user has set ``GRPC_ENABLE_FORK_SUPPORT`` or imported grpc before.
* A call in the child would never be answered, and would steal answers from the parent. So a backend that is opened in
  the child makes its calls in a helper process (bridge.py), and one that the child inherited refuses them.
* The child shares its parent's connections: closing them would break the parent. So what it inherited stays open.
* A child that collects gRPC's objects hangs or aborts. So it never collects what it inherited: its garbage collector
  passes over all of that (``gc.freeze``), and channels are held.
"""

from __future__ import annotations

import gc
import os
from weakref import WeakSet

from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Owner", "channels", "may_use_grpc", "was_forked"]

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
channels: WeakSet[object] = WeakSet()
"""The channels of this process, and those that it inherited: a forked child holds them for as long as it lives."""
_inherited: list[object] = []


def _keep_what_was_inherited() -> None:
    if _user is not None:
        _inherited.extend(channels)
        gc.freeze()


os.register_at_fork(after_in_child=_keep_what_was_inherited)


def was_forked() -> bool:
    """Return whether this process was forked from one that had used gRPC."""
    return _user not in (None, os.getpid())


def may_use_grpc() -> bool:
    """Note that this process uses gRPC; return False if it was forked from one that had used it."""
    global _user
    if was_forked():
        return False
    _user = os.getpid()
    return True


class Owner:
    """The process that made something."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Owner {self._pid}>"

    @property
    def is_here(self) -> bool:
        """Whether it is this process, not one that was forked from it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise RendezvousConnectionError if this process was forked from it."""
        if not self.is_here:
            raise RendezvousConnectionError(
                f"this backend on etcd belongs to process {self._pid} and does not work in process {os.getpid()}, "
                "which was forked from it: open a new one in the child, or start the child with spawn",
                final=True,
            )
