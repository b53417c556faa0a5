"""Settings for a process that only runs a server; never applied to a user's process."""

from __future__ import annotations

import gc
import resource
from contextlib import suppress

from rendezvous_async.backends.tcp.server.limits import OTHER_FILES, Limits

__all__ = ["dedicate_process"]

NEW_OBJECTS = 50_000
"""Ten thousand connections are a million long-lived objects; scanning them often takes a sixth of the CPU time."""


def dedicate_process() -> None:
    """Raise the limit of open files to that of connections, and collect garbage less often."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 50)
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Limits().connections + OTHER_FILES
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):  # not permitted: the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else most, most))
