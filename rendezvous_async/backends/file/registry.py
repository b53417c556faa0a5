"""One hub per directory and process, shared by all drivers on all event loops."""

from __future__ import annotations

import os
import threading

from rendezvous_async.backends.file.directory import Directory
from rendezvous_async.backends.file.hub import Hub
from rendezvous_async.backends.file.options import FileOptions
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["acquire_hub", "release_hub"]

_hubs: dict[tuple[int, int], Hub] = {}
_registry = threading.Lock()


def acquire_hub(directory: Directory, options: FileOptions) -> Hub:
    """Return this process's hub of a directory, started if needed; it takes over ``directory``."""
    with _registry:
        hub = _hubs.get(directory.key)
        if hub is None or hub.inbox.closed is not None:
            hub = _hubs[directory.key] = Hub(directory, options)
            hub.start()
        else:
            directory.close()
            if hub.options.of_thread != options.of_thread:
                raise ValueError(
                    f"{directory.path} is open in this process with {hub.options.of_thread}, not {options.of_thread}"
                )
        hub.users += 1
        return hub


async def release_hub(hub: Hub) -> None:
    """Release a hub; stop it with its last user."""
    with _registry:
        hub.users -= 1
        if hub.users:
            return
        if _hubs.get(hub.directory.key) is hub:
            del _hubs[hub.directory.key]
    await hub.stop()


def _forget_after_fork() -> None:
    """Drop all hubs in a forked child: it has none of the threads and must not keep its parent's locks."""
    global _registry
    _registry = threading.Lock()
    for hub in _hubs.values():
        path = hub.directory.path
        hub.forget(
            RendezvousConnectionError(
                f"the file backend of {path} was opened before this process was forked; open it in the child"
            )
        )
    _hubs.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
