"""Where ``sniffio`` is installed (trio, openai and older httpx bring it), anyio finds no event loop in a bare callback.

``sniffio`` finds asyncio by the running task. A timer, a transport's ``data_received`` and a done callback have none,
and neither ``asyncio.run`` nor uvloop tells more. So nothing there may ask anyio for a task group's new task, a cancel
scope or the time. Each case is a process of its own, with the part of ``sniffio`` that anyio uses on its path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rendezvous_async.testing.etcd import etcd_program, start_etcd
from tests.blocking import PATIENCE

SNIFFIO = """
import asyncio
from contextvars import ContextVar

current_async_library_cvar = ContextVar("current_async_library_cvar", default=None)


class AsyncLibraryNotFoundError(RuntimeError):
    pass


def current_async_library():
    library = current_async_library_cvar.get()
    if library is None:
        try:
            library = "asyncio" if asyncio.current_task() is not None else None
        except RuntimeError:
            pass
    if library is None:
        raise AsyncLibraryNotFoundError
    return library
"""


def play(folder: Path, *arguments: str) -> None:
    (folder / "sniffio.py").write_text(SNIFFIO)
    root = Path(__file__).parent.parent
    ended = subprocess.run(
        [sys.executable, "-m", "tests.sniffed", *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert (ended.returncode, ended.stdout) == (0, "held\n"), ended.stderr


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("scheme", ["tcp", "file", "memory"])
def test_a_world_is_held_and_formed_again(loop: str, scheme: str, tmp_path: Path) -> None:
    endpoint = {"tcp": "tcp", "file": f"file://{tmp_path}/shared", "memory": "memory://here"}[scheme]
    play(tmp_path, loop, endpoint)


async def test_a_world_on_etcd_is_held_and_formed_again(tmp_path: Path) -> None:
    if etcd_program() is None:
        pytest.skip("there is no etcd here")
    async with start_etcd() as etcd:
        play(tmp_path, "asyncio", etcd.endpoint)


def test_the_simulation_works(tmp_path: Path) -> None:
    play(tmp_path, "simulate")
