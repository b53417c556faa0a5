"""Why a backend cannot be reached, for as long as it cannot.

Whoever tries to connect reports each failure here; a person who watches the log reads of the first one at once, of the
others every 30 seconds, and of the end.
"""

from __future__ import annotations

import logging

from rendezvous_async import clock

__all__ = ["Outage"]

_log = logging.getLogger("rendezvous_async.connection")

REPEAT_EVERY = 30.0


class Outage:
    """Keeps the cause of the present outage, and logs it without flooding the log.

    Args:
        who: Whose backend it is; opens every message.
        where: What cannot be reached.
        level: Of the first message and of those every 30 seconds.

    Attributes:
        cause: Why the backend cannot be reached; empty while nothing is known to be wrong.
    """

    def __init__(self, who: str, where: object, level: int = logging.WARNING) -> None:
        self.cause = ""
        self._who = who
        self._where = where
        self._level = level
        self._since = 0.0
        self._told_at: float | None = None

    def __repr__(self) -> str:
        return f"<Outage of {self._where}: {self.cause or 'none'}>"

    def __str__(self) -> str:
        lasted = clock.now() - self._since
        return f"cannot reach {self._where}{f' for {lasted:.0f} s' if lasted >= 1 else ''}: {self.cause}"

    def failed(self, cause: str) -> None:
        """Report that an attempt to connect, or a call, has failed."""
        now = clock.now()
        if not self.cause:
            self._since = now
        self.cause = cause
        text = str(self)  # Now: a handler may format the message in a thread that has no loop, and so no clock.
        if self._told_at is None or now - self._told_at >= REPEAT_EVERY:
            self._told_at = now
            _log.log(self._level, "%s: %s; still trying", self._who, text)
        else:
            _log.debug("%s: %s", self._who, text)

    def ended(self) -> None:
        """Report that the backend answers."""
        if self.cause:
            _log.info("%s: %s answers again after %.1f s", self._who, self._where, clock.now() - self._since)
            self.cause, self._told_at = "", None
