"""Print a script that completes commands, options and file names in your shell."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module

from rendezvous_async.cli import COMMANDS
from rendezvous_async.cli.parsing import Parser, configured

EXAMPLE = """  eval "$(rdzv completion bash)"       # in ~/.bashrc
  eval "$(rdzv completion zsh)"        # in ~/.zshrc, after compinit
  rdzv completion fish | source        # in ~/.config/fish/config.fish"""


def configure(parser: Parser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="which shell")


def run(options: Namespace) -> int:
    import shtab

    files = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    parser = Parser(prog="rdzv")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers(parser_class=Parser)
    for name, summary in COMMANDS.items():
        command = configured(commands.add_parser(name, help=summary), import_module(f"rendezvous_async.cli.{name}"))
        for action in command.actions:
            if isinstance(action.metavar, str) and action.metavar in files:
                setattr(action, "complete", files[action.metavar])  # noqa: B010
    print(shtab.complete(parser, options.shell))
    return 0
