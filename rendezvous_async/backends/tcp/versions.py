"""The supported versions of the TCP protocol, and the negotiation of one. Pure.

A client offers all versions that it supports, and the server picks the newest one in common. A new kind of message, or
a field that must not be ignored, needs a new version. An old version stays while a supported release needs it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

__all__ = ["MAX_OFFERED", "PROTOCOLS", "no_common_version", "pick_version"]

PROTOCOLS: Final[tuple[int, ...]] = (1,)
"""The oldest first."""
MAX_OFFERED: Final = 16
"""Upper bound on the versions in a Hello."""


def pick_version(offered: Collection[int]) -> int | None:
    """Return the newest version in common; None if there is none."""
    return max(set(offered) & set(PROTOCOLS), default=None)


def no_common_version(offered: Collection[int]) -> str:
    """Return a message with the versions of both sides and which side to upgrade."""
    older = "server" if max(offered, default=0) > PROTOCOLS[-1] else "client"
    return (
        f"the client speaks {_in_words(offered)} of the protocol, the server {_in_words(PROTOCOLS)}; "
        f"upgrade rendezvous_async on the {older}'s side"
    )


def _in_words(versions: Collection[int]) -> str:
    numbers = sorted(set(versions))
    if not numbers:
        return "no version"
    return f"version{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
