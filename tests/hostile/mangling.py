"""Ways to spoil bytes: cut, flip, insert, repeat, splice, and change a value inside sound msgpack; all by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["mangle"]

ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -1.5, float("nan"), float("inf"),
    "", "/", "..", "a/../b", "/a", "a//b", "a\0b", "\u202e", "é" * 40, "x" * 5000, b"", b"\xff" * 40, [], {}, [[]] * 9,
    {"a": []}, msgspec.Raw(b"\xa3\xff\xfe\xfd"), msgspec.Raw(b"\xc1"), msgspec.Raw(b"\xdd\xff\xff\xff\xff"),
    msgspec.Raw(b"\xc6\xff\xff\xff\xff"), msgspec.Raw(b"\x91" * 3000),
)  # fmt: skip
"""Values to put where another one was: ends of ranges, odd names, text that is no text, lengths that are lies."""


def mangle(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return something like one of the ``corpus``, spoiled in one way or a few; sometimes none of it is left."""
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        match rng.randrange(9):
            case 0:
                data = rng.randbytes(rng.randrange(64))
            case 1:
                data = data[: rng.randrange(len(data) + 1)]
            case 2 if data:
                at = rng.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            case 3:
                at = rng.randrange(len(data) + 1)
                data = data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]
            case 4 if data:
                start, end = sorted((rng.randrange(len(data)), rng.randrange(len(data) + 1)))
                data = data[:end] + data[start:]
            case 5:
                other = rng.choice(corpus)
                data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
            case _:
                data = _change_inside(rng, data)
    return data


def _change_inside(rng: random.Random, data: bytes) -> bytes:
    """Change a value inside msgpack and keep the rest sound; two bytes before it may say what it is."""
    for skip in (0, 2):
        try:
            value = msgspec.msgpack.decode(data[skip:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
            continue
        return data[:skip] + msgspec.msgpack.encode(_changed(rng, value))
    return data


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value, key=str))
        return {**value, key: _changed(rng, value[key])}
    return rng.choice(ODD)
