"""How a node leaves: it ends its session, and does not wait long for a backend that is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import anyio

from rendezvous_async.backends.base import Session

__all__ = ["say_goodbye"]

_log = logging.getLogger("rendezvous_async.node")

GOODBYE = 1.5
"""Seconds for the backend's answer. One that is well answers in a fraction of that, and others miss a node anyway."""
SAY_SO_AFTER = 0.3


async def say_goodbye(
    session: Session, who: str, seconds: float, trouble: Callable[[], str | None], level: int = logging.WARNING
) -> bool:
    """End a session; False if the backend could not be told. Never fails.

    Args:
        session: What to end.
        who: Which node leaves which run, for the log.
        seconds: How long that may take, ``GOODBYE`` at most.
        trouble: Says why the backend cannot be reached, if that is known.
        level: Of the log lines.
    """
    seconds = min(seconds, GOODBYE)

    def say_why() -> None:
        reason = trouble() or "the backend does not answer"
        _log.log(level, "%s: %s; waiting up to %g s to say goodbye", who, reason, seconds)

    waiting = asyncio.get_running_loop().call_later(0 if trouble() else SAY_SO_AFTER, say_why)
    why = ""
    try:
        with anyio.move_on_after(seconds):
            await session.aclose()
            return True
    except Exception as error:  # Whatever it is: to leave must not fail.
        why = f": {error}"
    finally:
        waiting.cancel()
    _log.log(level, "%s without a goodbye; the others miss it after its TTL of %g s%s", who, session.ttl, why)
    return False
