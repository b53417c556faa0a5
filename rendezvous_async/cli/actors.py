"""Start, observe and kill node processes for ``rdzv demo`` and ``rdzv bench``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from rendezvous_async.aio import clock

__all__ = ["Actor"]


class Actor:
    """A node in a process of its own, and the events it has reported.

    Attributes:
        state: ``starting``, ``joining``, ``member``, ``closed`` or ``killed``.
        hands: How many members, this one included, had checked in through the round's store.
        up_at: When the node was up.
        news: All events that it has reported.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "starting"
        self.round = 0
        self.rank: int | None = None
        self.size = 0
        self.hands = 0
        self.up_at = 0.0
        self.news: list[dict[str, Any]] = []
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process; ``start()`` must have been called."""
        assert self._process is not None
        return self._process

    @property
    def place(self) -> str:
        """The rank for display; ``-`` without one."""
        return "-" if self.rank is None or self.state in ("killed", "closed") else str(self.rank)

    def holds(self, size: int, after: int) -> bool:
        """Whether it is a member of a world of this size, in a round later than ``after``."""
        return self.state == "member" and self.size == size and self.round > after

    async def start(self, endpoint: str, **options: Any) -> None:
        """Start the process; its node connects to ``endpoint`` with these options.

        The process has its own process group, so Ctrl+C reaches only this process, which then ends the other. If this
        process is killed, the other exits at the end of its stdin.
        """
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rendezvous_async.cli.demo_node",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps([endpoint, {**options, 'node': self.name}])}\n".encode())

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.state = "killed"
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)  # Popen.kill() could reap it before asyncio does.

    async def end(self) -> None:
        """Kill the process if it still runs, and reap it."""
        if self._process is not None:
            if self._process.returncode is None:
                self.kill()
            await self._process.wait()

    async def tell(self) -> AsyncIterator[str]:
        """Yield each reported event in words, until the process ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            yield self._take_in(json.loads(line))

    def _take_in(self, news: dict[str, Any]) -> str:
        self.news.append(news)
        match news["event"]:
            case "joined":
                state, words = "member", f"is in round {news['round']} as rank {news['rank']} of {news['size']}"
                self.round, self.rank, self.size = news["round"], news["rank"], news["size"]
                self.hands = news["hands"]
            case "changed":
                state, words = "joining", f"sees that its world changed: {news['change'].replace('_', ' ')}"
            case "closed":
                state, words = "closed", f"learns that {news['by']} closed the run: {news['reason']}"
            case _:
                state, words = "joining", "is up and joins"
                self.up_at = clock.now()
        if self.state != "killed":  # Output from before the kill may be read after it.
            self.state = state
        return words
