"""How long a client waits for a silent server before it gives up the connection. Pure: no clock, no timer."""

from __future__ import annotations

__all__ = ["Silence"]

LONGEST_STALL = 15.0


class Silence:
    """Tells a dead connection from a slow server, and from a stall of this process.

    Args:
        timeout: Seconds without a byte from the server after which the connection counts as dead.

    Attributes:
        timeout: The same.
        linked_at: When the current connection was made.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.linked_at = 0.0
        self._patience = timeout
        self._looked_at = 0.0

    def is_dead(self, now: float, late: float, heard_at: float) -> bool:
        """Tell whether to give up the connection.

        Args:
            now: The loop's time.
            late: How much later than planned this check runs.
            heard_at: When the last bytes came.
        """
        if now - self.linked_at > 4 * self._patience:
            self._patience = self.timeout
        # After a stall of this loop, answers may be waiting unread. At the previous check, everything was read.
        until = now if late < self.timeout / 4 else self._looked_at
        self._looked_at = now
        if until - heard_at <= self._patience:
            return False
        # A server that is only slow does not get faster when all its clients reconnect.
        self._patience = min(2 * self._patience, max(self.timeout, LONGEST_STALL))
        return True
