"""Where torchrun finds its handlers ``async-tcp``, ``async-etcd`` and ``async-file``: entry points of this package.

torch loads them whenever its rendezvous package is imported, and may be in the middle of that import. So this module
imports nothing of torch, nor what only a handler needs: that comes with the first handler that is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["torchrun_handler"]


def torchrun_handler() -> Callable[[Any], Any]:
    """Return what makes a handler from torch's parameters; their ``backend`` tells which kind."""
    return _create


def _create(params: Any) -> Any:
    from rendezvous_async.torchrun import TorchrunHandler

    return TorchrunHandler(params)
