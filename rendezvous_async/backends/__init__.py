"""Where state lives: backends that keep bytes behind fencing tokens.

``open_backend`` finds the backend of an endpoint and imports only that one: grpc and aetcd are loaded by the first
``etcd://`` and by nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import anyio

from rendezvous_async import clock
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.options import check_options
from rendezvous_async.backends.outage import Outage
from rendezvous_async.settings import Endpoint, check_id, parse_endpoint

__all__ = ["Backend", "open_backend"]

_OPENERS = {
    "memory": ("rendezvous_async.backends.memory", "open_memory"),
    "tcp": ("rendezvous_async.backends.tcp", "open_tcp"),
    "etcd": ("rendezvous_async.backends.etcd", "open_etcd"),
    "etcds": ("rendezvous_async.backends.etcd", "open_etcd"),
    "file": ("rendezvous_async.backends.file", "open_file"),
}
_REMOTE = frozenset({"tcp", "etcd", "etcds"})


async def start_backend(
    endpoint: str | Endpoint, run_id: str, *, outage: Outage | None = None, **options: Any
) -> Backend:
    """Open the backend of ``endpoint``; the caller closes it. Options of the endpoint's query count as keywords.

    Args:
        endpoint: As for ``open_backend``.
        run_id: As for ``open_backend``.
        outage: Told when the backend cannot be reached; by default one that names the run and the endpoint in the log.
        **options: As for ``open_backend``.
    """
    clock.check_asyncio()
    check_id("run_id", run_id)
    where = endpoint if isinstance(endpoint, Endpoint) else parse_endpoint(endpoint)
    given = check_options(where, options)
    module, function = _OPENERS[where.scheme]
    opener = getattr(import_module(module), function)
    if where.scheme in _REMOTE:
        given["outage"] = outage or Outage(f"run {run_id!r}", where)
    backend = await opener(where, run_id, **given)
    assert isinstance(backend, Backend)
    return backend


@asynccontextmanager
async def open_backend(endpoint: str | Endpoint, *, run_id: str, **options: Any) -> AsyncIterator[Backend]:
    """Open the backend of ``endpoint`` for one run and close it at the end.

    Args:
        endpoint: For example ``tcp://head:29400``; see the README for all schemes and their options.
        run_id: Whose keys this backend sees.
        **options: The scheme's options, the same as in the endpoint's query string.
    """
    backend = await start_backend(endpoint, run_id, **options)
    try:
        yield backend
    finally:
        with anyio.CancelScope(shield=True):
            await backend.aclose()
