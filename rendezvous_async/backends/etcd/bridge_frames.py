"""The frames between a process that cannot use gRPC and its helper (bridge.py): a length, and a msgpack array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["LARGEST", "BridgeFrameError", "frames", "pack"]

LENGTH = 4
LARGEST = 1 << 28
"""Upper bound on the bytes of a frame; a whole subtree is read in one answer."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class BridgeFrameError(Exception):
    """A frame that is too large, or that the other end did not pack."""


def pack(*frame: object) -> bytes:
    """Return the bytes of a frame.

    Raises:
        BridgeFrameError: It is too large.
    """
    body = _encode(frame)
    if len(body) > LARGEST:
        raise BridgeFrameError(f"{len(body)} bytes are too large for the helper process for gRPC: at most {LARGEST}")
    return len(body).to_bytes(LENGTH, "big") + body


def frames(buffer: bytearray) -> Iterator[list[Any]]:
    """Take the whole frames from a buffer.

    Raises:
        BridgeFrameError: What the buffer begins with is no frame.
    """
    while len(buffer) >= LENGTH:
        size = int.from_bytes(buffer[:LENGTH], "big")
        if size > LARGEST:
            raise BridgeFrameError(f"a frame of {size} bytes")
        end = LENGTH + size
        if len(buffer) < end:
            return
        body = bytes(buffer[LENGTH:end])
        del buffer[:end]
        try:
            frame = _decode(body)
        except msgspec.DecodeError as error:
            raise BridgeFrameError(f"no frame: {error}") from None
        yield frame
