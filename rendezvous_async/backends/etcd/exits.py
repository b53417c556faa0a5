"""Keeps gRPC from hanging the exit of a process.

When its last channel is freed, gRPC stops its polling thread and waits for it. While the interpreter exits, that thread
is gone already, and the wait may never end (grpcio 1.66.2: 3 of 200 processes had to be killed). So channels are freed
before that: a driver drops them when it is closed, and garbage is collected at exit, since a call that was cancelled
keeps its channel in a cycle. If a driver is never closed, gRPC is told of one more user, and does not stop at all.
"""

from __future__ import annotations

import asyncio
import atexit
import gc

from grpc.aio import init_grpc_aio

from rendezvous_async.backends.etcd.forks import channels, was_forked

__all__ = ["note_channel"]


def note_channel(channel: object) -> None:
    """Remember a channel for as long as it exists."""
    channels.add(channel)


@atexit.register
def _free_channels() -> None:
    if not was_forked():  # A child must not stop what it shares with its parent.
        gc.collect()
    if channels:
        loop = asyncio.new_event_loop()  # gRPC needs one, which never runs.
        asyncio.set_event_loop(loop)
        init_grpc_aio()
        loop.close()
