"""What a process that is a server and nothing else should change about itself; never done to a user's process."""

from __future__ import annotations

import gc
import resource
from contextlib import suppress

from rendezvous_async.backends.tcp.limits import OTHER_FILES, Limits

__all__ = ["dedicate_process"]

NEW_OBJECTS = 50_000
"""Ten thousand connections are a million objects that stay: to look through them at every turn costs a sixth of all."""


def dedicate_process() -> None:
    """Allow as many files as the server may have connections, and collect garbage less often."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 50)
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Limits().connections + OTHER_FILES
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):  # Where it is not allowed, the limit stays what it is.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else most, most))
