"""Rate-limited log lines, for warnings that peers can trigger at will."""

from __future__ import annotations

import asyncio
import logging

__all__ = ["LimitedLog"]

PERIOD = 30.0


class LimitedLog:
    """Writes a warning once and then, every ``period`` seconds, the number of repeats.

    Each distinct text is remembered for a while, so it must not contain what a peer chooses.

    Args:
        logger: The logger to write to.
        period: Seconds between two summaries.
    """

    def __init__(self, logger: logging.Logger, period: float = PERIOD) -> None:
        self._logger = logger
        self._period = period
        self._counts: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def warning(self, message: str) -> None:
        """Write a warning, or count it if the same text was written recently."""
        if message in self._timers:
            self._counts[message] = self._counts.get(message, 0) + 1
            return
        self._logger.warning(message)
        self._wait(message)

    def close(self) -> None:
        """Write the counts and stop."""
        for message in tuple(self._timers):
            self._timers.pop(message).cancel()
            self._tell(message)

    def _wait(self, message: str) -> None:
        self._timers[message] = asyncio.get_running_loop().call_later(self._period, self._go_on, message)

    def _go_on(self, message: str) -> None:
        del self._timers[message]
        if message in self._counts:
            self._tell(message)
            self._wait(message)

    def _tell(self, message: str) -> None:
        count = self._counts.pop(message, 0)
        if count:
            self._logger.warning("%s (and %d more in the last %g s)", message, count, self._period)
