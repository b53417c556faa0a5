"""Chromium without a window, driven over its DevTools protocol on two pipes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")
WAIT = 90.0
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
)
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads its pipe at descriptor 3 and writes at 4."""


class Tab:
    """One page in the browser."""

    def __init__(self, writer: int) -> None:
        self._writer = writer
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self.problems: list[str] = []

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Take in answers and events."""
        while True:
            try:
                message = json.loads((await reader.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" in message:
                call = self._calls.pop(message["id"])
                if not call.done():
                    call.set_result(message)
            elif message["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(message["params"]))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        id = len(self._calls) + 1
        while id in self._calls:
            id += 1
        answer = self._calls[id] = asyncio.get_running_loop().create_future()
        target = {"sessionId": self._session} if self._session else {}
        os.write(
            self._writer, json.dumps({"id": id, "method": method, "params": parameters, **target}).encode() + b"\0"
        )
        with anyio.fail_after(WAIT):
            message = await answer
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    async def attach(self) -> None:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of this size."""
        await self.resize(width, height, dark)
        await self.call("Page.navigate", url=url)

    async def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, expression: str) -> Any:
        """Evaluate JavaScript, and wait for its result."""
        options = {"awaitPromise": True, "returnByValue": True}
        answer = await self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value, or true for an element."""
        careful = f"(() => {{ try {{ const it = {expression}; return it instanceof Node || it }} catch {{}} }})()"
        with anyio.move_on_after(WAIT):
            while True:
                if value := await self.run(careful):
                    return value
                await anyio.sleep(0.05)
        text = await self.run("document.body.innerText")
        raise AssertionError(f"never true: {expression}\n{text}\n{self.problems}")

    async def press(self, *keys: str) -> None:
        """Press keys by their names; a single character is typed."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
            both = {"key": key, "windowsVirtualKeyCode": code}
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **both)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **both)

    async def screenshot(self, path: Path) -> None:
        """Save what is in the window."""
        data = (await self.call("Page.captureScreenshot"))["data"]
        await anyio.Path(path).write_bytes(base64.b64decode(data))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """Start Chromium with an empty profile, and yield a page."""
    assert CHROMIUM is not None
    to_read, to_us = os.pipe()
    from_us, to_write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", START, str(from_us), str(to_us), CHROMIUM, *ARGUMENTS, f"--user-data-dir={folder}"),
        pass_fds=(from_us, to_us),
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(from_us)
    os.close(to_us)
    reader = asyncio.StreamReader(limit=2**26)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(to_read, "rb")
    )
    tab = Tab(to_write)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(tab.listen, reader)
            await tab.attach()
            yield tab
            group.cancel_scope.cancel()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        transport.close()
        os.close(to_write)
