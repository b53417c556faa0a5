"""Tracks why a backend cannot be reached, and logs it at a bounded rate.

Drivers report every failed attempt here. The log shows the first failure at once, then one every 30 seconds, and the
recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rendezvous_async.aio import clock

__all__ = ["Outage"]

_log = logging.getLogger("rendezvous_async.connection")

REPEAT_EVERY = 30.0


class Outage:
    """Holds the cause of the current outage, and logs it.

    Args:
        who: The owner of the backend; every message begins with it.
        where: What cannot be reached.
        level: The level of the first message and of the repeated ones.
        fields: What log records about this backend carry in ``extra=``.

    Attributes:
        cause: Why the backend cannot be reached; empty if no failure is known.
        fields: The same as given; whatever else logs about this backend passes them, too.
    """

    def __init__(
        self, who: str, where: object, level: int = logging.WARNING, fields: Mapping[str, object] | None = None
    ) -> None:
        self.cause = ""
        self.fields = fields
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
        """Report a failed connection attempt or call."""
        now = clock.now()
        if not self.cause:
            self._since = now
        self.cause = cause
        text = str(self)  # A handler may format later, in a thread without a loop and so without a clock.
        if self._told_at is None or now - self._told_at >= REPEAT_EVERY:
            self._told_at = now
            _log.log(self._level, "%s: %s; still trying", self._who, text, extra=self.fields)
        else:
            _log.debug("%s: %s", self._who, text, extra=self.fields)

    def ended(self) -> None:
        """Report that the backend has answered."""
        if self.cause:
            lasted = clock.now() - self._since
            _log.info("%s: %s answers again after %.1f s", self._who, self._where, lasted, extra=self.fields)
            self.cause, self._told_at = "", None
