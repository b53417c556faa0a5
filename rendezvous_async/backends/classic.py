"""The envelope of the classic state: a magic number and a checksum, so that foreign or damaged values are refused."""

from __future__ import annotations

import struct
import zlib

from rendezvous_async.backends.values import Entry
from rendezvous_async.errors import RendezvousStateError

__all__ = ["KEY", "close_envelope", "open_envelope"]

KEY = "classic"
"""The key of the state."""
_MAGIC = b"rdzv1"
_CHECKSUM = struct.Struct(">I")


def close_envelope(state: bytes) -> bytes:
    """Return the value to store for ``state``."""
    return _MAGIC + _CHECKSUM.pack(zlib.crc32(state)) + state


def open_envelope(entry: Entry) -> bytes:
    """Return the state that was stored.

    Raises:
        RendezvousStateError: It was not written by ``set_state``, or is damaged.
    """
    value = entry.value or b""
    start = len(_MAGIC) + _CHECKSUM.size
    state = value[start:]
    if value[:start] != _MAGIC + _CHECKSUM.pack(zlib.crc32(state)):
        raise RendezvousStateError(
            f"the classic state at revision {entry.token.revision} is damaged or was not written by set_state()"
        )
    return state
