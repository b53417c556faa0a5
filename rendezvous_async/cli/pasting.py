"""Prints a scenario as a test to paste."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from textwrap import indent, wrap
from typing import TypeVar

import rendezvous_async
from rendezvous_async import testing
from rendezvous_async.texts import printable

__all__ = ["as_test"]

V = TypeVar("V")
WIDTH = 100
TAB = "    "


def as_test(scenario: V, play: Callable[[V], object]) -> str:
    """Return a test module that plays a scenario; a comment says what it fails of now.

    Args:
        scenario: A struct whose ``repr`` is code.
        play: A function of the scenario's module, or of ``rendezvous_async.testing``.
    """
    from rich.pretty import pretty_repr

    code = indent(pretty_repr(scenario, max_width=WIDTH), 2 * TAB)
    why = ""
    try:
        play(scenario)
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}")
    comment = "".join(f"{TAB}# {line}\n" for line in wrap(why, WIDTH))
    homes: dict[str, list[str]] = {}
    for name in sorted({play.__name__, *re.findall(r"\b([A-Z]\w*)\(", code)}):
        modules = (rendezvous_async, testing, sys.modules[type(scenario).__module__])
        home = next(module.__name__ for module in modules if name in module.__all__)
        homes.setdefault(home, []).append(name)
    imports = "".join(f"from {home} import {', '.join(names)}\n" for home, names in sorted(homes.items()))
    return f"{imports}\n\ndef test_it() -> None:\n{comment}{TAB}{play.__name__}(\n{code}\n{TAB})\n"
