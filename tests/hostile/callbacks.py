"""What fails where nobody awaits it: in the callbacks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["no_callback_fails"]


@contextmanager
def no_callback_fails() -> Iterator[list[str]]:
    """Collect what fails in callbacks of the running loop, such as a protocol's ``data_received``."""
    loop = asyncio.get_running_loop()
    failures: list[str] = []

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    before = loop.get_exception_handler()
    loop.set_exception_handler(handle)
    try:
        yield failures
    finally:
        loop.set_exception_handler(before)
