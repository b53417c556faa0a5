"""What a process asks of its operating system beside the calls of asyncio: sockets, files, a thread, random bytes.

``system()`` is the one of the running loop: the real one, unless the loop has its own. A loop in virtual time gives
each simulated process a machine on a simulated network, so that the same code runs there.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rendezvous_async.backends.table.files import FILES, Files

if TYPE_CHECKING:
    from rendezvous_async.backends.table.table import Table

__all__ = ["System", "system"]


class System:
    """The real operating system.

    Attributes:
        files: The file systems.
    """

    files: Files = FILES

    def random_bytes(self, count: int) -> bytes:
        """Return bytes that nobody can guess."""
        return secrets.token_bytes(count)

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Return a new socket."""
        return socket.socket(family, kind, protocol)

    def worker(self, name: str) -> ThreadPoolExecutor:
        """Return a thread of this name for calls that block, one at a time."""
        return ThreadPoolExecutor(1, thread_name_prefix=name)

    def serves(self, table: Table) -> None:
        """Note that this process begins to serve a table; a simulation then follows its changes."""


_REAL = System()


def system() -> System:
    """Return the operating system of the running loop; outside of a loop, the real one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _REAL
    found = getattr(loop, "system", None)
    return found if isinstance(found, System) else _REAL
