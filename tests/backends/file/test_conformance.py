"""The file backend keeps every promise of the contract, for tasks that share a thread and for clients that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.file.directory import Directory
from rendezvous_async.backends.file.driver import FileDriver
from rendezvous_async.backends.file.hub import Hub
from rendezvous_async.backends.file.options import FileOptions
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check, Make


def together(path: Path) -> Make:
    """Clients as one process has them: one thread for all."""

    def make(run_id: str) -> AbstractAsyncContextManager[Backend]:
        return open_backend(f"file://{path}", run_id=run_id)

    return make


def apart(path: Path, options: FileOptions) -> Make:
    """Clients as different processes have them: each with a thread, a table and a lock of its own."""

    @asynccontextmanager
    async def make(run_id: str) -> AsyncIterator[Backend]:
        hub = Hub(Directory.open(str(path)), options)
        hub.users = 1
        hub.start()
        driver = FileDriver(hub)
        async with Backend(driver, run_id) as backend:
            await driver.ready()
            yield backend

    return make


WAYS: dict[str, Callable[[Path], Make]] = {
    "together": together,
    "apart": lambda path: apart(path, FileOptions()),
    "apart without inotify": lambda path: apart(path, FileOptions(inotify=False, fsync=False)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("check", BACKEND_CHECKS)
async def test_file_keeps_its_promises(check: Check, way: str, tmp_path: Path) -> None:
    await check(WAYS[way](tmp_path / "shared"))
