"""Backends: stores that keep bytes behind fencing tokens.

``open_backend`` finds the driver of an endpoint and imports only that one; grpc and aetcd are loaded for ``etcd://``
only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.options import BackendOptions, read_options
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.schemes import find_scheme
from rendezvous_async.logs import log_fields
from rendezvous_async.settings import Endpoint, check_id, parse_endpoint

__all__ = ["Backend", "open_backend", "open_with", "start_backend"]


async def start_backend(
    endpoint: str | Endpoint, run_id: str, *, outage: Outage | None = None, **options: Any
) -> Backend:
    """Open the backend of ``endpoint``; the caller closes it. Options may also be given in the endpoint's query.

    Args:
        endpoint: As for ``open_backend``.
        run_id: As for ``open_backend``.
        outage: Where failures to reach the backend are reported; by default logged with the run and the endpoint.
        **options: As for ``open_backend``.
    """
    clock.check_asyncio()
    check_id("run_id", run_id)
    where = endpoint if isinstance(endpoint, Endpoint) else parse_endpoint(endpoint)
    return await open_with(where, read_options(find_scheme(where).options, where, options), run_id, outage)


async def open_with(endpoint: Endpoint, options: BackendOptions, run_id: str, outage: Outage | None = None) -> Backend:
    """Open the backend of ``endpoint`` with options that have been parsed and checked."""
    scheme = find_scheme(endpoint)
    driver = await scheme.open(
        endpoint, options, outage or Outage(f"run {run_id!r}", endpoint, fields=log_fields(run_id))
    )
    return Backend(driver, run_id, options.namespace)


@asynccontextmanager
async def open_backend(endpoint: str | Endpoint, *, run_id: str, **options: Any) -> AsyncIterator[Backend]:
    """Open the backend of ``endpoint`` for one run and close it at the end.

    Args:
        endpoint: For example ``tcp://head:29400``; see the README for all schemes and their options.
        run_id: The run whose keys this backend sees.
        **options: The scheme's options, the same as in the endpoint's query string.
    """
    backend = await start_backend(endpoint, run_id, **options)
    try:
        yield backend
    finally:
        with anyio.CancelScope(shield=True):
            await backend.aclose()
