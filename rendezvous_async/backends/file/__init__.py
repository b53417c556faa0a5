"""The backend over a shared directory: for a machine with many processes, or a cluster with a shared file system.

There is no service. The directory holds

    log         the history of the table: an append-only log with a snapshot at its head (``backends/log.py``)
    lock        whoever appends to the log has this one locked, and the log itself
    sessions/   a small file for each session, which its owner keeps changing (``life.py``)

and each process has one thread for it (``hub.py``), which appends under the lock, follows what others append, and
ends the sessions of owners that have fallen silent. ``directory.py`` decides which directory can be trusted.
"""

from __future__ import annotations

import anyio

from rendezvous_async.backends.base import DEFAULT_NAMESPACE, Backend
from rendezvous_async.backends.file.backend import FileBackend
from rendezvous_async.backends.file.directory import Directory
from rendezvous_async.backends.file.hub import Options
from rendezvous_async.backends.file.registry import acquire_hub
from rendezvous_async.settings import Endpoint, parse_seconds

__all__ = ["FileBackend", "open_file"]

_KNOWN = ("namespace", "fsync", "inotify", "check", "shared", "timeout")


async def open_file(endpoint: Endpoint, run_id: str, **options: object) -> Backend:
    """Open ``file:///dir``; the directory is created, for this user alone, if there is none.

    Args:
        endpoint: Names the directory.
        run_id: Whose keys the backend sees.
        **options: ``fsync`` (true): a commit is on the disk before it is acknowledged; needed on network file systems,
            and elsewhere for what must survive a power cut. ``inotify`` (true): let the kernel tell of changes.
            ``check`` (0.25): seconds between checks, at most, where it does not. ``shared`` (false): accept a directory
            that others can write. ``timeout`` (10): seconds for one call. ``namespace``: see ``Backend``.
    """
    unknown = sorted(options.keys() - set(_KNOWN))
    if unknown:
        raise ValueError(f"file:// takes no option {unknown[0]!r}; it knows {', '.join(_KNOWN)}")
    use = Options(
        fsync=_flag("fsync", options.get("fsync", True)),
        inotify=_flag("inotify", options.get("inotify", True)),
        check=parse_seconds("check", options.get("check", 0.25)),
    )
    shared = _flag("shared", options.get("shared", False))
    timeout = parse_seconds("timeout", options.get("timeout", 10.0))
    namespace = str(options.get("namespace", DEFAULT_NAMESPACE))
    directory = await anyio.to_thread.run_sync(lambda: Directory.open(endpoint.path, shared=shared))
    backend = FileBackend(acquire_hub(directory, use), run_id, namespace, timeout)
    try:
        await backend.ready()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await backend.aclose()
        raise
    return backend


def _flag(name: str, value: object) -> bool:
    match value:
        case bool():
            return value
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise ValueError(f"{name} must be true or false, not {value!r}")
