"""Text from others in messages: one line, nothing that a terminal obeys."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import pytest

from rendezvous_async.cli.terminal import clean, make_output_safe
from rendezvous_async.core.changes import changes
from rendezvous_async.core.diagnosis import Absent, Present, Role, Status
from rendezvous_async.core.state import Closed, Phase
from rendezvous_async.errors import RendezvousClosedError
from rendezvous_async.node.events import EventKind, Events
from rendezvous_async.settings import Settings, parse_endpoint
from rendezvous_async.sizes import parse_sizes
from rendezvous_async.texts import counted, printable, quoted

EVIL = "\x1b[2Jevil\nforged\x9b31m\u2028\udc80"


def test_a_wrong_value_is_cut() -> None:
    assert quoted("a") == "'a'"
    assert quoted(None) == "None"
    assert quoted("x" * 10_000) == "'" + "x" * 199 + "..."
    assert quoted(10**5000) == "a value of type int"


@pytest.mark.parametrize(
    "nodes", [10**5000, [10**5000, 1], (1, 10**5000), "9" * 5000], ids=lambda nodes: type(nodes).__name__
)
def test_a_message_about_a_wrong_value_is_short(nodes: Any) -> None:
    with pytest.raises(ValueError, match="nodes") as raised:
        parse_sizes(nodes)
    assert len(str(raised.value)) < 600
    assert "Exceeds the limit" not in str(raised.value)


def test_what_does_not_print_is_escaped() -> None:
    assert printable("node-1 \u00e9\u4e2d") == "node-1 \u00e9\u4e2d"
    assert printable("a\nb\x1b[0m\u202e") == "a\\nb\\u001b[0m\\u202e"
    assert counted(1, "node") == "1 node"
    assert counted(0, "node") == "0 nodes"


def test_a_name_forges_no_line_of_a_status() -> None:
    here = tuple(Present(EVIL, role, 0, EVIL) for role in Role)
    status = Status(
        run_id=EVIL,
        settings=Settings(1, 1),
        round=1,
        phase=Phase.FORMED,
        here=here,
        absent=(Absent(EVIL, 1),),
        coordinator=EVIL,
        damaged=(EVIL,),
    )
    closed = Status(run_id="job", settings=Settings(1, 1), closed=Closed(EVIL, EVIL))
    for shown in (status, closed):
        lines = [*str(shown).splitlines(), *shown.why(), *changes(None, shown)]
        assert not [line for line in lines if not line.isprintable() or line.startswith("forged")]


def test_an_error_about_an_endpoint_does_not_repeat_its_secret() -> None:
    with pytest.raises(ValueError, match="has a query") as raised:
        parse_endpoint("tcp://head?secret=sesame&a")
    assert "sesame" not in str(raised.value)


def test_a_reason_forges_no_line_of_an_error() -> None:
    error = RendezvousClosedError(EVIL, EVIL)
    assert str(error).isprintable()
    assert error.reason == EVIL


def test_log_lines_of_the_command_do_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    handler = logging.StreamHandler(err)
    monkeypatch.setattr(logging, "lastResort", handler)
    make_output_safe()
    handler.handle(logging.makeLogRecord({"msg": "passing over %s", "args": ("\x1b[2J",)}))
    assert err.getvalue() == "passing over \\u001b[2J\n"


def test_json_stays_json() -> None:
    text = "\x1b\x9b\u2028\U000e0001\n"
    assert json.loads(clean(json.dumps([text], ensure_ascii=False, indent=2))) == [text]


def test_a_reason_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def emit() -> None:
        for kind in EventKind:
            Events("run 'job': node a").emit(kind, 1, EVIL)

    asyncio.run(emit())
    assert caplog.messages
    assert not [message for message in caplog.messages if not message.isprintable()]
