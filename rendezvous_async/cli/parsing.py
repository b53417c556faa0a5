"""Parse command lines: errors are one line, and help ends with an example."""

from __future__ import annotations

import re
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NoReturn

from rendezvous_async.cli import COMMANDS
from rendezvous_async.cli.exits import Exit
from rendezvous_async.cli.terminal import clean
from rendezvous_async.texts import quoted

__all__ = [
    "SIZES",
    "Parser",
    "command_parser",
    "configured",
    "count",
    "did_you_mean",
    "grow_seconds",
    "label",
    "main_parser",
    "name",
    "number",
    "parse_command",
    "port",
    "seconds",
    "simulated",
]

SIZES = "4, 2:4 (any number from 2 to 4), 4:64:4 (in steps of 4), or 4,8,16 (only these)"
"""How to write the sizes of a round, for help."""
_OPTION = re.compile("--?[A-Za-z]")


class Parser(ArgumentParser):
    """An argument parser that reports an error in one line.

    Attributes:
        actions: All options and arguments.
    """

    def __init__(self, **options: Any) -> None:
        self.actions: list[Action] = []
        super().__init__(**{"formatter_class": RawDescriptionHelpFormatter, "allow_abbrev": False, **options})

    def add_argument(self, *args: Any, **options: Any) -> Action:
        action = super().add_argument(*args, **options)
        self.actions.append(action)
        return action

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, clean(f"{self.prog}: {message}; see {self.prog} --help") + "\n")

    def check_names(self, arguments: list[str]) -> None:
        """Fail on the first unknown option, before argparse complains about a missing one."""
        known = [option for action in self.actions for option in action.option_strings]
        for argument in arguments:
            name = argument.partition("=")[0]
            if _OPTION.match(name) and name not in known:
                self.error(f"unknown option {name}{did_you_mean(name, known)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest known word, or an empty string."""
    found = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def main_parser() -> Parser:
    """Return the parser for ``rdzv`` without a command."""
    from rendezvous_async import __version__

    width = max(map(len, COMMANDS))
    about = "Elastic rendezvous: nodes meet, agree on ranks and size, detect lost nodes, and meet again."
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = Parser(
        prog="rdzv",
        usage="rdzv COMMAND ...",
        description=f"{about}\n\n{commands}",
        epilog="exit codes: 0 success, 1 failure, 2 usage error, 3 cannot connect (serve: address in use),\n"
        "  4 run closed, 5 timeout, 6 no such run or node, 130 interrupted\n\n"
        "example:\n  rdzv demo\n  rdzv launch --help",
    )
    parser.add_argument("--version", action="version", version=f"rdzv {__version__}")
    parser.add_argument("command", nargs="?", choices=list(COMMANDS), metavar="COMMAND", help="one of the above")
    return parser


def command_parser(name: str, module: ModuleType) -> Parser:
    """Return the parser for one command."""
    return configured(
        Parser(prog=f"rdzv {name}", description=module.__doc__, epilog=f"example:\n{module.EXAMPLE}"), module
    )


def configured(parser: Parser, module: ModuleType) -> Parser:
    """Add a command's options and the common ones."""
    module.configure(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print only results and errors, no progress")
    return parser


def parse_command(name: str, module: ModuleType, arguments: list[str]) -> Namespace:
    """Parse a command's arguments; ``options.command`` holds what follows ``--``."""
    parser = command_parser(name, module)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser.check_names(arguments[:at])
    options = parser.parse_args(arguments[:at])
    options.command = arguments[at + 1 :]
    if options.command and not getattr(module, "TAKES_COMMAND", False):
        parser.error(f"this command takes no arguments after --, but got {options.command[0]!r}")
    return options


def name(text: str) -> str:
    """Parse the id of a run or a node."""
    from rendezvous_async.settings import check_id

    try:
        return check_id("it", text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def label(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise ArgumentTypeError(f"{quoted(text)} is not NAME=VALUE")
    return name, value


def grow_seconds(text: str) -> float:
    """Parse how long to hold newcomers back: 0 or more seconds, or inf."""
    from rendezvous_async.settings import as_number, check_grow

    try:
        return check_grow("it", as_number(text))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < sys.maxsize:
        raise ArgumentTypeError(f"{quoted(text)} is not a positive number of seconds")
    return value


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _whole(text, 1, sys.maxsize, "a whole number of at least 1")


def number(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _whole(text, 0, sys.maxsize, "a whole number of at least 0")


def simulated(text: str) -> int:
    """Parse how many nodes to simulate."""
    from rendezvous_async.sizes import MAX_SIMULATED

    return _whole(text, 1, MAX_SIMULATED, f"a whole number from 1 to {MAX_SIMULATED}")


def port(text: str) -> int:
    """Parse a port; 0 picks a free one."""
    return _whole(text, 0, 65535, "a port from 0 to 65535")


def _whole(text: str, least: int, most: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20) or not least <= int(text) <= most:
        raise ArgumentTypeError(f"{quoted(text)} is not {what}")
    return int(text)
