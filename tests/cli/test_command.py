"""The command itself: help, usage errors, completion, terminals."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

import rendezvous_async
from rendezvous_async.cli import COMMANDS
from rendezvous_async.cli.terminal import Terminal, clean, table
from rendezvous_async.cli.watch import picture
from rendezvous_async.core.diagnosis import Present, Role, Status
from rendezvous_async.settings import Settings
from tests.cli.support import assert_one_line, rdzv


def test_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    result = rdzv(capsys, "--help")
    assert result.code == 0
    for name in COMMANDS:
        assert f"\n  {name}" in result.out
    assert "exit codes" in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    result = rdzv(capsys, name, "--help")
    assert result.code == 0
    assert f"example:\n  rdzv {name}" in result.out or f"(rdzv {name}" in result.out
    assert "--quiet" in result.out


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from rendezvous_async.cli import main; main(['--help']); print(sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = output.splitlines()[-1]
    for heavy in ("asyncio", "anyio", "msgspec", "ssl"):
        assert f"'{heavy}'" not in modules


def test_every_public_name_is_found_when_it_is_used() -> None:
    for name in rendezvous_async.__all__:
        assert getattr(rendezvous_async, name).__name__ == name
    assert set(rendezvous_async._HOME_OF) == set(rendezvous_async.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        rendezvous_async.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["demo", "--nonsense"], ["demo", "--timeout", "-1"], ["completion"]], ids=" ".join
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert_one_line(rdzv(capsys, *arguments), 2, "--help")


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    result = rdzv(capsys)
    assert result.code == 2
    assert "rdzv COMMAND" in result.err


def test_completion_knows_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    script = rdzv(capsys, "completion", "bash").out
    assert "demo" in script
    completed = subprocess.run(
        ["bash", "-c", f"{script}\nCOMP_WORDS=(rdzv demo --t); COMP_CWORD=2; _rdzv; echo ${{COMPREPLY[@]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.strip() == "--timeout"
    assert rdzv(capsys, "completion", "zsh").out.startswith("autoload")


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_need_a_terminal_and_no_wish_against_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal(out=FakeTerminal()).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Terminal(out=io.StringIO()).paint("x", "red") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal(out=FakeTerminal()).paint("x", "red") == "x"


def test_quiet_silences_progress_only() -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(quiet=True, out=out, err=err)
    terminal.say("progress")
    terminal.print("result")
    assert (out.getvalue(), err.getvalue()) == ("result\n", "")


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    node = Present("\x1b[2Jevil", Role.MEMBER, 0)
    status = Status(run_id="job", settings=Settings(1, 1), round=1, here=(node,), coordinator=node.node)
    assert "\x1b" not in "".join(picture(Terminal(out=io.StringIO()), status))
    assert clean("\x1b[2Jnode\x07\u202e") == "\ufffd[2Jnode\ufffd\ufffd"
    assert table(("A", "B"), [("\x1b", "b")])[1] == "\ufffd  b"
