"""Run a module with clocks that are wrong: ``python skewed_clock.py OFFSET RATE MODULE ARGUMENTS...``.

Every clock that Python offers this process, wall and monotonic, is OFFSET seconds ahead and runs RATE times as fast,
and its event loop waits accordingly: a process whose machine has such a clock.
"""

from __future__ import annotations

import asyncio
import runpy
import selectors
import sys
import time
from pathlib import Path
from typing import Any

_CLOCKS = (time.CLOCK_MONOTONIC, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def skew(offset: float, rate: float) -> None:
    """Make all clocks of this process wrong from now on."""
    for name in ("time", "monotonic", "perf_counter"):
        true, true_ns = getattr(time, name), getattr(time, f"{name}_ns")
        began, began_ns = true(), true_ns()
        setattr(time, name, lambda true=true, began=began: began + offset + rate * (true() - began))
        setattr(
            time,
            f"{name}_ns",
            lambda true=true_ns, began=began_ns: int(began + offset * 1e9 + rate * (true() - began)),
        )

    true_gettime, began_at = time.clock_gettime, {id: time.clock_gettime(id) for id in _CLOCKS}
    time.clock_gettime = lambda id: began_at[id] + offset + rate * (true_gettime(id) - began_at[id])

    class Skewed(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            return super().select(timeout if timeout is None else timeout / rate)

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return asyncio.SelectorEventLoop(Skewed())

    asyncio.set_event_loop_policy(Policy())


if __name__ == "__main__":
    _, offset, rate, module, *arguments = sys.argv
    skew(float(offset), float(rate))
    sys.argv = [module, *arguments]
    sys.path[0] = str(Path(__file__).parents[1])  # The module may be one of the tests.
    runpy.run_module(module, run_name="__main__")
