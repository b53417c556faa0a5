"""The demo does what it shows."""

from __future__ import annotations

import errno
import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.backends.tcp.support import eventually
from tests.cli.support import Typist, command


async def test_the_demo_in_plain_lines() -> None:
    async with command("demo") as demo:
        assert await demo.code() == 0
    output = "\n".join(demo.lines)
    assert "\x1b" not in output
    for step in (
        "a world of 3 formed",
        "a world of 4 formed",
        "is killed with SIGKILL",
        "a world of 3 continues",
        "the run is closed",
        "every step ran",
    ):
        assert step in output


def test_the_demo_in_a_terminal() -> None:
    """In a terminal it draws a table in place."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rendezvous_async", "demo"], stdout=slave, env={**os.environ, "TERM": "xterm"}
    )
    os.close(slave)
    output = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError as error:  # The other side is closed.
            assert error.errno == errno.EIO
            break
        if not piece:
            break
        output += piece
    os.close(master)
    assert process.wait(60) == 0
    assert b"LAST KEEP-ALIVE" in output
    assert b"s ago" in output
    assert b"\x1b[?25h" in output, "the cursor is back"


async def test_a_demo_that_runs_out_of_time_fails() -> None:
    async with command("demo", "--timeout", "0.2", merged=True) as demo:
        assert await demo.code() == 5
    assert "did not finish within 0.2 s" in demo.lines[-1]


@pytest.mark.parametrize("moment", ["starts as process", "is in round 1", "=> a world of 4"])
def test_ctrl_c_ends_the_demo_with_one_line(moment: str) -> None:
    """The terminal sends it to the nodes too: they filled the screen with tracebacks."""
    with Typist("demo") as terminal:
        terminal.read_until(moment)
        terminal.type(b"\x03")
        assert terminal.code() == 130
    assert "Traceback" not in terminal.shown
    assert "KeyboardInterrupt" not in terminal.shown
    assert terminal.shown.rstrip().endswith("rdzv: interrupted")
    assert "\x1b[?25h" in terminal.shown, "the cursor is back"


async def test_nodes_of_the_demo_do_not_outlive_it() -> None:
    async with command("demo") as demo:
        pid = int((await demo.line("starts as process")).split()[-1])
        await demo.line("is up")
        demo.signal(signal.SIGKILL)
        await demo.code()
        await eventually(lambda: not is_running(pid), 30)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
