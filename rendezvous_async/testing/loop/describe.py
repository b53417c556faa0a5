"""What the errors of the virtual loop say: of tasks and callbacks, and of a loop that runs already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

__all__ = ["check_no_loop", "describe_callback", "describe_task"]

MAX_DEPTH = 6


def check_no_loop() -> None:
    """Raise RuntimeError if a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("virtual time has its own loop, and one is running here: call this in a test that is not async")


def describe_task(task: asyncio.Task[Any]) -> str:
    """Return a task's name and the calls that it is suspended in, outermost first."""
    calls = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        where = f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
        calls.append(f"{getattr(awaited, '__qualname__', frame.f_code.co_name)} ({where})")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    if len(calls) > MAX_DEPTH:
        calls[2 : len(calls) - MAX_DEPTH + 3] = ["..."]
    return f"{task.get_name()}: {' > '.join(calls) or 'nothing'}"


def describe_callback(callback: Callable[..., object] | None) -> str:
    """Describe a callback of the event loop: the step of a task, or a function."""
    if callback is None:
        return "a cancelled callback"
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"a step of {describe_task(owner)}"
    inner = getattr(callback, "func", callback)
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"
