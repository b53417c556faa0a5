"""A helper process that cannot be started, that hangs, or that sends nonsense; and one whose owner is cancelled."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from aetcd import rpc

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.etcd import bridge, forks
from rendezvous_async.backends.etcd.bridge_frames import LARGEST, BridgeFrameError, frames, pack
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.testing.etcd import EtcdCluster
from tests.backends.etcd.test_bridge import helper_of
from tests.meeting import until

OF_THE_LOOP = 2
"""A loop may open a pair of sockets with its first process; each failed start of a helper would leave two."""
HOSTILE = (LARGEST + 1).to_bytes(4, "big")


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_user", os.getppid())


def descriptors() -> list[int]:
    return sorted(map(int, os.listdir("/proc/self/fd")))


def sockets() -> list[str]:
    """Return the open sockets."""
    found = []
    for number in descriptors():
        with suppress(OSError):  # The one of the listing is closed by now.
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in found if name.startswith("socket:"))


@contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """Leave this process only so many descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors()) + 8, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def until_gone(pid: int) -> None:
    """Wait until a process has ended, and is no zombie."""
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


@asynccontextmanager
async def helper() -> AsyncIterator[bridge.HelperProcess]:
    process = bridge.HelperProcess()
    await process.start(None)
    try:
        yield process
    finally:
        await process.aclose()


async def use(endpoint: str) -> None:
    async with open_backend(endpoint, run_id="no-helper", connect_timeout=1):
        pass


async def test_without_an_executable_there_is_no_helper(etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = sockets()
    with pytest.raises(RendezvousConnectionError, match=r"helper process for gRPC cannot be started: .*No such file"):
        await use(etcd.endpoint)
    await until(lambda: len(sockets()) <= len(before) + OF_THE_LOOP)


@pytest.mark.parametrize("free", [0, 2, 3])
async def test_without_descriptors_there_is_no_helper(etcd: EtcdCluster, free: int) -> None:
    before = sockets()
    with few_descriptors(free), pytest.raises(RendezvousConnectionError, match=r"cannot be started: .*Too many open"):
        await use(etcd.endpoint)
    await until(lambda: len(sockets()) <= len(before) + OF_THE_LOOP)


async def test_calls_are_tried_again_until_a_helper_can_be_started(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_backend(etcd.endpoint, run_id="later", connect_timeout=30) as backend:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", "/nowhere/python")
            os.kill(helper_of(backend), signal.SIGKILL)
            async with anyio.create_task_group() as group:
                group.start_soon(backend.commit, Put("a", b"1"))
                await until(lambda: "cannot be started" in str(backend.driver.trouble))
                broken.undo()
        entry = await backend.get("a")
        assert entry is not None


async def commit(backend: Backend) -> None:
    assert (await backend.commit(Put("a", b"1"))).won


async def keep_alive(backend: Backend) -> None:
    session = await backend.open_session(60)
    await session.keep_alive()
    os.kill(helper_of(backend), signal.SIGSTOP)
    await session.keep_alive()


async def follow(backend: Backend) -> None:
    async with backend.watch("a") as watch:
        await anext(watch)
        os.kill(helper_of(backend), signal.SIGSTOP)
        await commit(backend)
        assert [entry.value for entry in (await anext(watch)).entries] == [b"1"]


@pytest.mark.parametrize("work", [commit, keep_alive, follow])
async def test_a_helper_that_hangs_is_replaced(etcd: EtcdCluster, work: Callable[[Backend], object]) -> None:
    options = {"call_timeout": 0.5, "connect_timeout": 30.0}
    async with open_backend(etcd.endpoint, run_id=f"hangs-{work.__name__}", **options) as backend:
        before = helper_of(backend)
        if work is commit:
            os.kill(before, signal.SIGSTOP)
        with anyio.fail_after(40):
            await work(backend)  # type: ignore[misc]
        assert helper_of(backend) != before
        await until_gone(before)


async def test_a_call_ends_soon_after_its_timeout() -> None:
    async with helper() as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(rpc.AioRpcError) as raised:
            await process.ask("call", "dns:///127.0.0.1:1", "/nowhere", b"", 0.1, [], seconds=0.3)
        assert raised.value.code() is rpc.StatusCode.DEADLINE_EXCEEDED
        assert process.is_lost
        await until_gone(process.pid)


async def test_a_helper_that_reads_nothing_is_not_sent_everything() -> None:
    sent, each = 64, b"x" * (1 << 20)
    async with helper() as process:
        os.kill(process.pid, signal.SIGSTOP)
        ended = []

        async def ask() -> None:
            with pytest.raises(rpc.AioRpcError):
                await process.ask("call", "dns:///127.0.0.1:1", "/nowhere", each, 0.1, [], seconds=1.0)
            ended.append(1)

        async with anyio.create_task_group() as group:
            for _ in range(sent):
                group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert process._transport is not None
            assert process._transport.get_write_buffer_size() < 2 * len(each)
        assert len(ended) == sent


async def test_a_cancelled_call_leaves_the_helper_as_it_is() -> None:
    async with helper() as process:
        with socket.create_server(("127.0.0.1", 0)) as silent, anyio.move_on_after(0.05) as scope:
            target = f"dns:///127.0.0.1:{silent.getsockname()[1]}"
            await process.ask("call", target, "/nowhere", b"", 30.0, [], seconds=60)
        assert scope.cancelled_caught
        with pytest.raises(rpc.AioRpcError, match="cancelled"):
            await process.ask("read", 7)
        assert not process.is_lost


@pytest.mark.parametrize("data", [HOSTILE, b"\xff" * 4, pack()[:4] + b"\xc1", b"\x00\x00\x00\x01\x01"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(BridgeFrameError):
        list(frames(bytearray(data)))


def test_a_frame_that_is_too_large_is_not_packed() -> None:
    with pytest.raises(BridgeFrameError, match="too large"):
        pack(bytes(LARGEST))


@pytest.mark.parametrize("data", [HOSTILE, b"\x00\x00\x00\x01\x90", b"\x00\x00\x00\x02\x91\xa0"])
async def test_a_helper_that_sends_nonsense_is_killed(
    data: bytes, etcd: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    octal = "".join(f"\\{byte:03o}" for byte in data)
    program.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nprintf '{octal}' >&0\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(RendezvousConnectionError, match="helper process for gRPC has ended"):
        await use(etcd.endpoint)
    for pid in (tmp_path / "pids").read_text().split():
        await until_gone(int(pid))


def test_a_helper_that_is_sent_nonsense_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", bridge.PROGRAM], stdin=theirs.fileno(), stderr=subprocess.PIPE
            )
        ours.sendall(HOSTILE)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"was sent a frame of" in errors


@pytest.mark.parametrize("state", ["running", "stopped"])
async def test_a_cancelled_close_leaves_no_helper(etcd: EtcdCluster, state: str) -> None:
    async with open_backend(etcd.endpoint, run_id="cancelled") as backend:
        pid = helper_of(backend)
        if state == "stopped":
            os.kill(pid, signal.SIGSTOP)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await backend.driver.aclose()
        await until_gone(pid)
