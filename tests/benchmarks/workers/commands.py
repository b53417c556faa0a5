"""What every worker does: read a command a line, do it, answer with a JSON object."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import io
import json
import os
import pstats
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__all__ = ["Profiler", "collect_no_garbage", "obey", "say", "traffic"]

Command = Callable[..., Awaitable[Any]]


def say(answer: object) -> None:
    """Print an answer."""
    print(json.dumps(answer), flush=True)


async def obey(commands: Mapping[str, Command]) -> None:
    """Do what comes in, until there is no more."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say("ready")
    while line := await reader.readline():
        name, *args = line.decode().split()
        say(await commands[name](*args))


def collect_no_garbage() -> None:
    """Switch the garbage collector off: hundreds of nodes in a process make work for it that a node alone does not."""
    gc.collect()
    gc.disable()


class Profiler:
    """Counts calls and CPU time of this process's main thread, from ``profile`` to ``profiled``."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile(time.thread_time)

    async def profile(self) -> Any:
        """Begin."""
        self._profile.enable()
        return {}

    async def profiled(self, lines: str) -> Any:
        """End; returns how many calls there were, and the functions that took most."""
        self._profile.disable()
        text = io.StringIO()
        stats = pstats.Stats(self._profile, stream=text).strip_dirs().sort_stats("tottime")
        stats.print_stats(int(lines))
        # pstats knows how many calls it has counted, its type stub does not.
        return {"calls": vars(stats)["total_calls"], "text": text.getvalue()}


def traffic() -> dict[str, int]:
    """Return what the kernel counted on this process's TCP connections so far: bytes and segments with data."""
    total = {"bytes_out": 0, "bytes_in": 0, "segments_out": 0, "segments_in": 0}
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                continue
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        # Offsets in the kernel's struct tcp_info, which only ever grows at its end.
        acked, received = struct.unpack_from("<QQ", info, 120)
        segments_in, segments_out = struct.unpack_from("<II", info, 152)
        total["bytes_out"] += acked
        total["bytes_in"] += received
        total["segments_in"] += segments_in
        total["segments_out"] += segments_out
    return total
