"""Log lines that others cause: one at once, then a count."""

from __future__ import annotations

import asyncio
import logging

import anyio
import pytest

from rendezvous_async.backends.tcp.server.floods import LimitedLog
from rendezvous_async.testing import run

logger = logging.getLogger("tests.floods")


def test_a_flood_is_one_line_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    async def flood() -> None:
        log = LimitedLog(logger)
        for _ in range(214):
            log.warning("full")
        log.warning("slow")
        await anyio.sleep(31)
        log.warning("full")
        await anyio.sleep(60)
        log.warning("full")
        log.warning("full")
        log.close()
        await anyio.sleep(60)

    run(flood)
    assert caplog.messages == [
        "full",
        "slow",
        "full (and 213 more in the last 30 s)",
        "full (and 1 more in the last 30 s)",
        "full",
        "full (and 1 more in the last 30 s)",
    ]


def test_who_closes_a_log_hears_no_more_of_it(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[object] = []

    async def flood() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        log = LimitedLog(logger, 5)
        log.warning("once")
        log.warning("twice")
        log.warning("twice")
        log.close()
        log.close()
        assert not log._timers
        await anyio.sleep(60)

    run(flood)
    assert caplog.messages == ["once", "twice", "twice (and 1 more in the last 5 s)"]
    assert errors == []
