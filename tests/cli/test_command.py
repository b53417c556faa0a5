"""The command itself: help, usage errors, completion, terminals."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console, Group, RenderableType

import rendezvous_async
from rendezvous_async.cli import COMMANDS
from rendezvous_async.cli.terminal import Terminal, clean, lines, table
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
    for heavy in ("asyncio", "anyio", "msgspec", "ssl", "rich", "shtab", "h11"):
        assert f"'{heavy}'" not in modules


def test_every_public_name_is_found_when_it_is_used() -> None:
    for name in rendezvous_async.__all__:
        value = getattr(rendezvous_async, name)
        assert getattr(value, "__name__", name) == name  # A union of types has none.
        homes = [import_module(f"rendezvous_async.{home}") for home in rendezvous_async._HOMES]
        assert value in [getattr(home, name) for home in homes if name in home.__all__]
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


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    result = rdzv(capsys, "completion", shell)
    assert result.code == 0
    return result.out


def ask(shell: str, script: str, question: str) -> list[str]:
    """Run a question after a completion script, as on a start of the shell; returns the words of the answer."""
    line = [shell, "-c", f"{script}\n{question}"]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_its_completion_script(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text(script_for(shell, capsys))
    read = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert (read.returncode, read.stderr) == (0, "")


def test_bash_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for("bash", capsys)

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_rdzv; echo ${{COMPREPLY[@]}}"
        return ask("bash", script, line)

    assert completed("rdzv", "sta") == ["status"]
    assert completed("rdzv", "demo", "--t") == ["--timeout"]
    assert completed("rdzv", "launch", "--nproc") == ["--nproc-per-node"]
    assert completed("rdzv", "completion", "z") == ["zsh"]


def test_fish_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for("fish", capsys)
    assert ask("fish", script, "complete -C 'rdzv sta'")[0] == "status"
    assert ask("fish", script, "complete -C 'rdzv demo --t'")[0] == "--timeout"


def test_zsh_registers_its_completion(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script_for("zsh", capsys))
    start = f'autoload -U compinit; compinit -D -u; eval "$(cat {tmp_path / "script"})"; echo $_comps[rdzv]'
    assert ask("zsh", "", start) == ["_shtab_rdzv"]


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def painted(out: io.StringIO) -> str:
    Terminal(out=out).print(("x", "red"), " [red]y[/red] \x1b[31m")
    return out.getvalue()


def test_colours_need_a_terminal_and_no_wish_against_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = "x [red]y[/red] \\u001b[31m\n"
    assert painted(FakeTerminal()) == "\x1b[31mx\x1b[0m" + plain[1:]
    assert painted(io.StringIO()) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted(FakeTerminal()) == plain
    monkeypatch.setenv("TERM", "dumb")
    assert painted(FakeTerminal()) == plain


def test_quiet_silences_progress_only() -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(quiet=True, out=out, err=err)
    terminal.say("progress")
    terminal.print("result")
    assert (out.getvalue(), err.getvalue()) == ("result\n", "")


def drawn(picture: RenderableType, width: int = 80) -> str:
    """Return a picture as a terminal of this width gets it."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(picture)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(height: int, *nodes: str) -> str:
    here = tuple(Present(node, Role.MEMBER, rank) for rank, node in enumerate(nodes))
    status = Status(run_id="job", settings=Settings(1, 9), round=1, here=here, coordinator=nodes[0])
    return drawn(picture(status, ["last news"], height))


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    text = shown(24, "\x1b[2Jevil", "[bold]markup[/bold]")
    assert "\x1b" not in text
    assert "\\u001b[2Jevil" in text
    assert "[bold]markup[/bold]" in text
    assert clean("\x1b[2Jnode\x07\u202e\nmore") == "\\u001b[2Jnode\\u0007\\u202e\nmore"
    assert "\\u001b\\n  b" in drawn(table(("A", "B"), [("\x1b\n", "b")]))


def test_a_picture_fits_the_terminal_and_says_what_it_leaves_out() -> None:
    nodes = [f"node-{number}" for number in range(100)]
    text = shown(24, *nodes)
    assert text.startswith("run 'job': gathering")
    assert "last news" in text
    assert "100 nodes: node-0 to node-99  member  0-99" in text
    fitting = next(count for count in range(1, 100) if "nodes: " in shown(24, *nodes[: count + 1]))
    whole = shown(24, *nodes[:fitting])
    assert len(whole.splitlines()) == 23  # One line is for the cursor.
    assert sum(line.startswith("node-") for line in whole.splitlines()) == fitting


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("status tcp://head --runid job", "unknown option --runid; did you mean --run-id?"),
        ("status tcp://head --runid=job", "unknown option --runid; did you mean --run-id?"),
        ("launch tcp://head --nproc_per_node 2 -- true --x", "did you mean --nproc-per-node?"),
        ("status tcp://head --run-id job -j", "unknown option -j"),
        ("stats tcp://head", "unknown command 'stats'; did you mean status?"),
        ("help", "unknown command 'help'; did you mean --help?"),
        ("zzz", "unknown command 'zzz'; see rdzv --help"),
        ("--versoin", "unknown option --versoin; did you mean --version?"),
    ],
)
def test_what_is_mistyped_is_named(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    assert_one_line(rdzv(capsys, *line.split()), 2, words)


def test_a_number_below_zero_is_not_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(rdzv(capsys, "status", "tcp://head", "--run-id", "job", "--timeout", "-5"), 2, "'-5'")


def test_wide_characters_keep_columns_and_fit_the_terminal() -> None:
    rows = table(("NODE", "RANK"), [("\u4e2d\u6587\u4e2d", "0"), ("e\u0301", "1")])
    wanted = ["NODE    RANK", "\u4e2d\u6587\u4e2d  0", "e\u0301       1"]
    assert [line.rstrip() for line in drawn(rows).splitlines()] == wanted
    assert drawn(Group(lines(["first", "\u4e2d\u6587\u4e2d"])), 5) == "first\n\u4e2d\u6587\u2026\n"


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
