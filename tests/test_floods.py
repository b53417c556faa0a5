"""Log lines that others cause: one at once, then a count."""

from __future__ import annotations

import logging

import anyio
import pytest

from rendezvous_async.floods import LimitedLog
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
