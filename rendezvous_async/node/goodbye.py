"""How a node leaves: it ends its session, and does not wait long for a backend that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from rendezvous_async.backends.base import Session
from rendezvous_async.causes import Cause

__all__ = ["say_goodbye"]

GOODBYE = 1.5
"""Seconds to wait for the answer. A healthy backend needs a fraction of that; otherwise the session expires."""
SAY_SO_AFTER = 0.3


async def say_goodbye(
    session: Session,
    who: str,
    seconds: float,
    trouble: Callable[[], str | None],
    log: Callable[..., None],
    cause: str = Cause.LEFT,
) -> bool:
    """End a session; False if the backend could not be told. It never raises.

    Args:
        session: The session to end.
        who: The node and the run that it leaves, for the log.
        seconds: How long to wait, ``GOODBYE`` at most.
        trouble: Returns why the backend cannot be reached, if that is known.
        log: Logs a message with its arguments.
        cause: Why, for the others to know.
    """
    seconds = min(seconds, GOODBYE)

    def say_why() -> None:
        reason = trouble() or "the backend does not answer"
        log("%s: %s; waiting up to %g s to say goodbye", who, reason, seconds)

    waiting = asyncio.get_running_loop().call_later(0 if trouble() else SAY_SO_AFTER, say_why)
    why = ""
    try:
        with anyio.move_on_after(seconds):
            await session.aclose(cause)
            return True
    except Exception as error:  # Leaving must not fail, whatever the error.
        why = f": {error}"
    finally:
        waiting.cancel()
    log("%s without a goodbye; the others miss it after its TTL of %g s%s", who, session.ttl, why)
    return False
