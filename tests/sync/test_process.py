"""The blocking facade and its process: what is left behind by 200 cycles, at exit, after a fork, after a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rendezvous_async.sync import RendezvousError, RendezvousParameters, create_handler
from tests.blocking import PATIENCE, count_nodes, join_all, make_handler, serve_apart, wait_until
from tests.ports import free_port

_JOIN = """
import os, signal, sys
from tests.blocking import make_handler

handler = make_handler(sys.argv[1], (1, 2), last_call=0.05)
"""


@contextmanager
def start(body: str, endpoint: str) -> Iterator[subprocess.Popen[str]]:
    """Have a process that joins; whatever it does, it is gone at the end of the block."""
    root = Path(__file__).parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", _JOIN + body, endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def open_files() -> set[str]:
    names = {f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
    return {os.readlink(name) for name in names if os.path.lexists(name)}


def unfinished_tasks() -> set[int]:
    gc.collect()
    return {id(found) for found in gc.get_objects() if isinstance(found, asyncio.Task) and not found.done()}


def test_cycles_leave_nothing_behind() -> None:
    port = free_port()

    def cycle(number: int) -> None:
        handler = create_handler(RendezvousParameters("tcp", f"127.0.0.1:{port}", f"run-{number}", 1, 1))
        info = handler.next_rendezvous()
        info.store.set("key", "value")
        assert handler.shutdown()

    cycle(0)
    threads, files, tasks = set(threading.enumerate()), open_files(), unfinished_tasks()
    for number in range(1, 201):
        cycle(number)
    # What other tests left behind in this process may go meanwhile; nothing may have come.
    assert not set(threading.enumerate()) - threads
    assert not open_files() - files
    assert not unfinished_tasks() - tasks


def test_one_thread_serves_all_handlers() -> None:
    before = set(threading.enumerate())
    handlers = [make_handler("memory://one-thread", (8, 8)) for _ in range(8)]
    join_all(*handlers)
    wait_until(lambda: len(set(threading.enumerate()) - before) == 1)  # those that called may need a moment to end
    for handler in handlers:
        assert handler.shutdown()
    assert not set(threading.enumerate()) - before


def test_a_process_that_exits_leaves_and_does_not_close() -> None:
    with serve_apart() as (endpoint, _):
        stays = make_handler(endpoint, (1, 2), last_call=0.05)
        assert stays.next_rendezvous().world_size == 1
        with start("handler.next_rendezvous(); sys.stdin.read(); sys.exit(7)", endpoint) as other:
            wait_until(lambda: stays.num_nodes_waiting() > 0)
            assert stays.next_rendezvous().world_size == 2
            other.communicate(timeout=PATIENCE)
            assert other.returncode == 7
            assert count_nodes(stays) == 1, "it said farewell; its record does not wait for its session to run out"
        wait_until(lambda: stays.num_nodes_waiting() > 0)
        assert not stays.is_closed()
        assert stays.next_rendezvous().world_size == 1
        assert stays.shutdown()


def test_a_signal_ends_a_join() -> None:
    body = """
waits = make_handler(sys.argv[1], (2, 2), run_id="never")
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
try:
    print("joining", flush=True)
    waits.next_rendezvous()
except KeyboardInterrupt:
    print("interrupted", waits.shutdown(), flush=True)
"""
    with serve_apart() as (endpoint, _), start(body, endpoint) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "joining\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "interrupted True\n"
        assert process.wait(PATIENCE) == 0
        looker = make_handler(endpoint, (2, 2), run_id="never")
        assert not looker.is_closed()
        assert looker.shutdown()


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit()"])
def test_a_forked_child_is_told_so(end: str) -> None:
    body = f"""
handler.next_rendezvous()
child = os.fork()
if child == 0:
    for call in (handler.num_nodes_waiting, handler.is_closed, handler.next_rendezvous, handler.shutdown):
        try:
            call()
        except RuntimeError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    own = make_handler("memory://own", (1, 1))
    assert own.next_rendezvous().world_size == 1
    {end}
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), handler.num_nodes_waiting(), handler.shutdown(), flush=True)
"""
    with serve_apart() as (endpoint, _), start(body, endpoint) as process:
        out, _ = process.communicate(timeout=PATIENCE)
        assert out == "0 0 True\n"
        assert process.returncode == 0


def test_a_handler_that_is_used_on_the_loop_says_so() -> None:
    handler = make_handler("memory://on-the-loop", (1, 1))
    handler.next_rendezvous()

    async def misuse() -> None:
        with pytest.raises(RuntimeError, match="event loop thread"):
            handler.set_closed()

    lease, _ = handler._open()
    lease.call(misuse)
    assert handler.shutdown()


def test_a_handler_that_is_dropped_leaves() -> None:
    """Its heartbeats stop, though the round's store is still held."""
    with serve_apart() as (endpoint, _):
        stays, dropped = make_handler(endpoint), make_handler(endpoint)
        store = join_all(stays, dropped)[1].store
        was = weakref.ref(dropped)
        del dropped
        wait_until(lambda: was() is None)  # The thread that joined may need a moment to end.
        wait_until(lambda: stays.num_nodes_waiting() > 0)
        assert count_nodes(stays) == 1
        assert not stays.is_closed()
        with pytest.raises(RendezvousError, match=r"has left|shut down"):
            store.get("key")
        assert stays.shutdown()


def test_the_last_handler_that_is_dropped_ends_the_loop() -> None:
    before = set(threading.enumerate())
    make_handler("memory://dropped", (1, 1)).next_rendezvous()
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - before)
    again = make_handler("memory://dropped", (1, 1))
    assert again.next_rendezvous().world_size == 1
    assert again.shutdown()


def test_a_handler_that_is_dropped_on_the_loop_leaves() -> None:
    """The garbage collector runs in any thread: in that of the loop too, which must not wait for itself."""
    stays = make_handler("memory://dropped-on-the-loop")
    held = [make_handler("memory://dropped-on-the-loop")]
    join_all(stays, held[0])

    async def drop() -> None:
        held.clear()
        gc.collect()

    lease, _ = stays._open()
    lease.call(drop)
    wait_until(lambda: count_nodes(stays) == 1)
    assert stays.shutdown()


def test_a_process_that_drops_its_handler_and_exits_leaves() -> None:
    with serve_apart() as (endpoint, _):
        stays = make_handler(endpoint, (1, 2), last_call=0.05)
        assert stays.next_rendezvous().world_size == 1
        with start("handler.next_rendezvous(); sys.stdin.read(); del handler; sys.exit(7)", endpoint) as other:
            wait_until(lambda: stays.num_nodes_waiting() > 0)
            assert stays.next_rendezvous().world_size == 2
            other.communicate(timeout=PATIENCE)
            assert other.returncode == 7
            wait_until(lambda: count_nodes(stays) == 1)
        assert stays.shutdown()


_DROP_AT_EXIT = """
import sys
import anyio
from rendezvous_async.sync.portal import LoopLease

started = anyio.Event()
calls = []

async def farewell():
    calls.append(1)
    if len(calls) == 1:
        await started.wait()  # Until the process exits as well.
    else:
        started.set()
        while lease._portal is not None:
            await anyio.sleep(0.001)
        await anyio.sleep(0.1)

lease = LoopLease("a lease", farewell)
lease.abandon()
while not calls:
    pass
"""


def test_a_lease_that_ends_while_the_process_exits_does_not_disturb_it() -> None:
    command = [sys.executable, "-c", _DROP_AT_EXIT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
