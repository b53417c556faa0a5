"""The entry points through which torchrun finds the handlers ``async-tcp``, ``async-etcd`` and ``async-file``.

torch loads them while it imports its own rendezvous package. So this module imports neither torch nor what only a
handler needs; the first handler does that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["torchrun_handler"]


def torchrun_handler() -> Callable[[Any], Any]:
    """Return the function that makes a handler from torch's parameters; ``params.backend`` selects the kind."""
    return _create


def _create(params: Any) -> Any:
    from rendezvous_async.sync.torchrun import TorchrunHandler

    return TorchrunHandler(params)
