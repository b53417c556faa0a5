"""Words for people: text from others made safe to show, wrong values cut, counts with the right plural. Pure."""

from __future__ import annotations

import json

__all__ = ["counted", "printable", "quoted"]

MAX_QUOTED = 200


def printable(text: str) -> str:
    r"""Return text from others for a message: one line, and nothing in it that a terminal would obey.

    Characters that do not print are escaped as in JSON: a newline becomes ``\n``, an escape ``\u001b``.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def counted(count: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def quoted(value: object) -> str:
    """Return a wrong argument for a message: what ``repr`` says, cut to 200 characters."""
    try:
        text = repr(value)
    except Exception:  # It is wrong anyway; an int may have more digits than Python prints.
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."
