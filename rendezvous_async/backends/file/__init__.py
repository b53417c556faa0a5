"""The backend on a shared directory: for the processes of one machine, or a cluster with a shared file system.

There is no server. The directory holds

    log         a write-ahead log with a snapshot at its head (``backends/table/log.py``)
    lock        locked, together with the log, by the process that appends
    sessions/   a small file for each session, which its owner keeps changing (``life.py``)

Each process has one thread per directory (``hub.py``). It appends under the lock, follows what others append, and ends
the sessions of owners that have gone silent. ``directory.py`` decides which directories can be trusted.
"""

from __future__ import annotations

import anyio

from rendezvous_async.backends.file.directory import Directory
from rendezvous_async.backends.file.driver import FileDriver
from rendezvous_async.backends.file.options import FileOptions
from rendezvous_async.backends.file.registry import acquire_hub
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.schemes import Scheme
from rendezvous_async.settings import Endpoint

__all__ = ["SCHEME", "FileDriver", "FileOptions", "open_file"]


async def open_file(endpoint: Endpoint, options: FileOptions, outage: Outage) -> FileDriver:
    """Open ``file:///dir``; create the directory, for this user only, if it does not exist."""
    directory = await anyio.to_thread.run_sync(lambda: Directory.open(endpoint.path, shared=options.shared))
    driver = FileDriver(acquire_hub(directory, options), options.timeout)
    try:
        await driver.ready()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await driver.aclose()
        raise
    return driver


SCHEME = Scheme(FileOptions, open_file)
