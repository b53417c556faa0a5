"""The command itself: help, usage errors, completion, terminals."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

import rendezvous_async
from rendezvous_async.cli import COMMANDS
from rendezvous_async.cli.terminal import Screen, Terminal, clean, table
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
    assert clean("\x1b[2Jnode\x07\u202e\nmore") == "\\u001b[2Jnode\\u0007\\u202e\nmore"
    assert table(("A", "B"), [("\x1b\n", "b")])[1] == "\\u001b\\n  b"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("status tcp://head --runid job", "there is no option --runid; did you mean --run-id?"),
        ("status tcp://head --runid=job", "there is no option --runid; did you mean --run-id?"),
        ("launch tcp://head --nproc_per_node 2 -- true --x", "did you mean --nproc-per-node?"),
        ("status tcp://head --run-id job -j", "there is no option -j"),
        ("stats tcp://head", "there is no command 'stats'; did you mean status?"),
        ("help", "there is no command 'help'; did you mean --help?"),
        ("zzz", "there is no command 'zzz'; see rdzv --help"),
        ("--versoin", "there is no option --versoin; did you mean --version?"),
    ],
)
def test_what_is_mistyped_is_named(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    assert_one_line(rdzv(capsys, *line.split()), 2, words)


def test_a_number_below_zero_is_not_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(rdzv(capsys, "status", "tcp://head", "--run-id", "job", "--timeout", "-5"), 2, "'-5'")


def test_wide_characters_keep_columns_and_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table(("NODE", "RANK"), [("\u4e2d\u6587\u4e2d", "0"), ("e\u0301", "1")])
    assert rows == ["NODE    RANK", "\u4e2d\u6587\u4e2d  0", "e\u0301       1"]
    monkeypatch.setenv("COLUMNS", "6")
    monkeypatch.setenv("LINES", "1")
    out = FakeTerminal()
    Screen(Terminal(out=out)).draw(["first", "\u4e2d\u6587\u4e2d"])
    assert out.getvalue() == "\r\u4e2d\u6587\x1b[K\n\x1b[J"


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(redirection: str) -> None:
    """Whatever was opened next got their descriptors."""
    line = f'"$0" -m rendezvous_async simulate --seeds 1 {redirection}'
    result = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("Traceback") == 0
    assert ("1 scenario, " in result.stdout) == (">&-" not in redirection.split())


def test_ctrl_c_while_a_command_is_loaded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rendezvous_async.cli.import_module", interrupt)
    assert_one_line(rdzv(capsys, "demo"), 130, "interrupted")
