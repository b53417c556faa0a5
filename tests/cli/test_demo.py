"""The demo does what it shows."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys

from tests.cli.support import command


async def test_the_demo_in_plain_lines() -> None:
    async with command("demo") as demo:
        assert await demo.code() == 0
    output = "\n".join(demo.lines)
    assert "\x1b" not in output
    for step in (
        "a world of 3 has formed",
        "a world of 4 has formed",
        "is killed with SIGKILL",
        "a world of 3 goes on",
        "the run is closed",
        "every step happened",
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
    assert b"LAST SIGN OF LIFE" in output
    assert b"s ago" in output
    assert b"\x1b[?25h" in output, "the cursor is back"


async def test_a_demo_that_runs_out_of_time_fails() -> None:
    async with command("demo", "--timeout", "0.2", merged=True) as demo:
        assert await demo.code() == 5
    assert "not done after 0.2 s" in demo.lines[-1]
