"""A process that hosts the server and blocks its event loop, again and again: whoever is gone must still be noticed.

The loop is blocked for real, since real processes and sockets go on meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import AsyncExitStack

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import DEFAULT_NAMESPACE
from rendezvous_async.backends.tcp import TcpServer, serve, wire
from tests.backends.tcp.support import Process, RawClient

TTL = 2.5
SLACK = 3.0
"""Seconds for a machine that is busy with other tests."""

MEMBER = """
import sys
import anyio
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.errors import RendezvousConnectionError
async def main(endpoint, name, ttl):
    async with open_backend(endpoint, run_id="run", is_host=False) as backend:
        session = await backend.open_session(float(ttl))
        await backend.commit(Put(name, b"", session.id))
        print("in", flush=True)
        while True:
            try:
                await session.keep_alive(Deadline.after(0.25, "keep-alive"))
                await anyio.sleep(0.25)
            except RendezvousConnectionError:
                pass  # The next one follows at once, as a node's does.
anyio.run(main, *sys.argv[1:])
"""


def here(server: TcpServer) -> set[str]:
    """Return the members whose keys are there."""
    return {entry.key.rpartition("/")[2] for entry in server.table.list(f"{DEFAULT_NAMESPACE}/run/").entries}


@pytest.mark.parametrize(("block", "pause"), [(0.1, 0.0), (0.3, 0.0), (0.7, 0.0), (0.7, 0.005), (2.0, 0.005)])
async def test_a_host_that_blocks_its_loop_misses_the_dead_and_keeps_the_living(block: float, pause: float) -> None:
    """Whoever is gone is missed within its TTL and two blocks, also if the host only ever does ``sleep(0)``.

    asyncio runs what is ready already, the host's next block, before it serves the sockets and timers that became ready
    during the last one. So with ``sleep(0)`` a keep-alive is read, and an expiry is noticed, up to two blocks late. The
    first of these does not count: the kernel knows when the keep-alive arrived.
    """
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serve(port=0))
        members = {}
        for name in ("killed", "frozen", "live"):
            members[name] = await stack.enter_async_context(Process(MEMBER, server.endpoint, name, str(TTL)))
            assert await members[name].read() == "in"
        members["killed"].signal(signal.SIGKILL)
        members["frozen"].signal(signal.SIGSTOP)
        began = clock.now()
        longest = TTL + 2 * block + SLACK
        missed: dict[str, float] = {}
        while len(missed) < 2 and clock.now() - began < longest:
            time.sleep(block)  # noqa: TID251, ASYNC251 - the host's own code, which blocks the loop
            await anyio.sleep(pause)
            missed |= {
                name: clock.now() - began for name in ("killed", "frozen") if name not in here(server) | set(missed)
            }
        assert here(server) == {"live"}
        assert max(missed.values()) <= longest


async def test_a_keep_alive_that_is_read_late_counts_from_its_arrival() -> None:
    block = 1.0
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as raw:
        await raw.greet()
        raw.send(wire.OpenSession(1, TTL))
        opened = await raw.read()
        assert isinstance(opened, wire.SessionOpened)
        sent_at = clock.now()
        # Past the transport: uvloop's would send it after the block.
        os.write(raw.writer.get_extra_info("socket").fileno(), wire.frame(wire.Renew(2, opened.session)))
        time.sleep(block)  # noqa: TID251, ASYNC251 - the host's own code: the keep-alive waits in the kernel meanwhile
        assert isinstance(await raw.read(), wire.Done)
        renewed_at = server.table.refreshed_at(opened.session)
        assert renewed_at is not None
        assert sent_at - 0.1 <= renewed_at <= sent_at + block / 2
