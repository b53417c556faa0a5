"""Ports for servers that tests start, or start again, by number."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

PORTS = range(20_000, 32_000)
"""Below those that systems take for connections: a client of a test that runs beside must not get the same one."""

_RANDOM = random.Random()


def free_port(rng: random.Random = _RANDOM) -> int:
    """Return a port of 127.0.0.1 that nobody uses now."""
    while True:
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port := rng.choice(PORTS)))
            return port
