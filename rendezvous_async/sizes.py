"""The sizes that a world may have, as a user writes them: ``4``, ``"2:4"``, ``"4:64:4"``, ``"4,8,16"``.

``parse_sizes`` checks them and returns one frozen value, which has one text. Who is in a world of such a size is said
in ``core/shape.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from rendezvous_async.texts import quoted

__all__ = ["MAX_NODES", "MAX_SIMULATED", "MAX_SIZES", "Sizes", "check_domains", "parse_sizes"]

MAX_NODES = 1_000_000
MAX_SIMULATED = 10_000
"""How many nodes a simulation may have: all of them are in one process."""
MAX_SIZES = 256
"""How many sizes a list may name. A progression is not stored one by one, so it needs no such limit."""
_RANGE = re.compile(r"(\d{1,9})(?::(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_LIST = re.compile(r"\d{1,9}(?:,\d{1,9})+", re.ASCII)


class Sizes(msgspec.Struct, frozen=True):
    """The sizes that a world may have: a progression, or a list.

    Equal sets of sizes are equal values with one text, if ``parse_sizes`` made them: ``"4,8,12"`` is ``"4:12:4"``.

    Attributes:
        smallest: The smallest size.
        largest: The largest size.
        step: From each size to the next; 0 for a list.
        listed: All sizes, if they are not a progression.
    """

    smallest: int
    largest: int
    step: int = 1
    listed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.largest <= MAX_NODES:
            given = f"{quoted(self.smallest)}:{quoted(self.largest)}"
            raise ValueError(f"sizes must satisfy 1 <= min <= max <= {MAX_NODES}, not {given}")
        if self.listed:
            _check_list(self.listed)
            if (self.smallest, self.largest, self.step) != (self.listed[0], self.listed[-1], 0):
                raise ValueError(f"a list of sizes must start with min, end with max and have step 0, not {self!r}")
        elif self.step < 1:
            raise ValueError(f"the step must be at least 1, not {self.step}")
        elif over := (self.largest - self.smallest) % self.step:
            below = self.largest - over
            raise ValueError(
                f"steps of {self.step} from {self.smallest} do not reach {self.largest}, only {below} "
                f"and {below + self.step}"
            )

    def __str__(self) -> str:
        if self.listed:
            return ",".join(map(str, self.listed))
        return f"{self.smallest}:{self.largest}" + (f":{self.step}" if self.step > 1 else "")

    @property
    def allowed(self) -> Sequence[int]:
        """Every size, in increasing order."""
        return self.listed or range(self.smallest, self.largest + 1, self.step)

    def multiples_of(self, unit: int) -> Sequence[int]:
        """Return every size that is a multiple of ``unit``, in increasing order."""
        if unit == 1:
            return self.allowed
        if self.listed:
            return [size for size in self.listed if size % unit == 0]
        common = math.gcd(self.step, unit)
        if self.smallest % common:
            return ()
        # smallest + k * step is a multiple of unit for one k in each unit // common, by the inverse of step there.
        every = unit // common
        k = -self.smallest // common * pow(self.step // common, -1, every) % every
        return range(self.smallest + k * self.step, self.largest + 1, self.step * every)


def check_domains(sizes: Sizes, domain: str, per_domain: int) -> None:
    """Raise ValueError if no world of these sizes can be made of whole domains.

    Args:
        sizes: The sizes that are allowed.
        domain: The label whose values are domains; empty: there are none.
        per_domain: A world has a multiple of this number of nodes from each domain.
    """
    if not 1 <= per_domain <= MAX_NODES:
        raise ValueError(f"per_domain must be from 1 to {MAX_NODES}, not {quoted(per_domain)}")
    if per_domain > 1 and not domain:
        raise ValueError(f"per_domain={per_domain} needs a domain: the label that says which node is where")
    if not sizes.multiples_of(per_domain):
        raise ValueError(f"none of the sizes {sizes} is a multiple of per_domain={per_domain}")


def parse_sizes(nodes: int | str | tuple[int, int] | list[int]) -> Sizes:
    """Return the sizes that ``nodes`` allows.

    Args:
        nodes: A count, ``"min:max"``, ``(min, max)``, ``"min:max:step"``, or a list: ``"4,8,16"`` or ``[4, 8, 16]``.

    Raises:
        ValueError: It is none of these, or it allows nothing; the text says what is wrong.
    """
    given: object = nodes
    try:
        if isinstance(nodes, str) and (found := _RANGE.fullmatch(nodes)):
            return _progression(*(int(number) for number in found.groups() if number is not None))
        if isinstance(nodes, str) and _LIST.fullmatch(nodes):
            return _list([int(number) for number in nodes.split(",")])
        if isinstance(given, list) and all(type(size) is int for size in given):
            return _list(given)
        if isinstance(given, tuple) and len(given) == 2 and all(type(size) is int for size in given):
            return _progression(*given)
        if type(given) is int:
            return _progression(given)
    except ValueError as error:
        raise ValueError(f"nodes={quoted(given)}: {error}") from None
    raise ValueError(
        'nodes must be a count, "min:max" or a tuple (min, max), "min:max:step", or a list of sizes such as "4,8,16" '
        f"or [4, 8, 16], with 1 <= min <= max, not {quoted(given)}"
    )


def _progression(low: int, high: int | None = None, step: int = 1) -> Sizes:
    sizes = Sizes(low, low if high is None else high, step)
    return sizes if sizes.smallest < sizes.largest else Sizes(low, low)


def _list(listed: Sequence[int]) -> Sizes:
    _check_list(listed)
    steps = {size - before for before, size in pairwise(listed)}
    if len(steps) > 1:
        return Sizes(listed[0], listed[-1], 0, tuple(listed))
    return _progression(listed[0], listed[-1], *steps)


def _check_list(listed: Sequence[int]) -> None:
    if not 1 <= len(listed) <= MAX_SIZES:
        raise ValueError(f"a list must have 1 to {MAX_SIZES} sizes, not {len(listed)}")
    for before, size in pairwise(listed):
        if size == before:
            raise ValueError(f"the size {quoted(size)} is listed twice")
        if size < before:
            raise ValueError(f"sizes must be in increasing order, and {quoted(before)} is before {quoted(size)}")
