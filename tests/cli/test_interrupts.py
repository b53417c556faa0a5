"""Ctrl+C in a real terminal, which sends it to all processes there: every command ends at once, with one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.support import Typist

RUN = ("--run-id", "job", "--nodes")
WORKER = ("--", "sh", "-c", "echo worker is up; exec sleep 60")


@pytest.fixture
def endpoint() -> Iterator[str]:
    with Typist("serve", "--port", "0") as server:
        server.read_until("ready ")
        server.read_until("\n")
        yield server.shown.partition("ready ")[2].split()[0]


@pytest.mark.parametrize(
    ("arguments", "moment", "said"),
    [
        (("launch", "{}", *RUN, "2", *WORKER), "1 more must join", "SIGINT: stopping the workers and leaving the run"),
        (("launch", "{}", *RUN, "1", *WORKER), "worker is up", "SIGINT: stopping the workers and leaving the run"),
        (("watch", "{}", "--run-id", "job", "--wait"), "nobody has joined yet", "rdzv: interrupted"),
        (("bench", "{}", "--nodes", "2"), "keeping 2 nodes alive", "rdzv: interrupted"),
        (("bench", "{}", "--nodes", "2", "--seconds", "0.1"), "in its own process", "rdzv: interrupted"),
        (("simulate", "--seeds", "1000"), "scenarios", "rdzv: interrupted"),
    ],
    ids=["launch waits", "launch runs", "watch", "bench", "bench with a process", "simulate"],
)
def test_ctrl_c(endpoint: str, arguments: tuple[str, ...], moment: str, said: str) -> None:
    with Typist(*(argument.format(endpoint) for argument in arguments)) as terminal:
        terminal.read_until(moment)
        terminal.type(b"\x03")
        assert terminal.code() == 130
    assert "Traceback" not in terminal.shown
    assert "KeyboardInterrupt" not in terminal.shown
    last = terminal.text.replace("^C", "").strip().split("\n")[-1]
    assert last == said
    assert ("[?25l" in terminal.shown) == ("[?25h" in terminal.shown), "the cursor is back"
