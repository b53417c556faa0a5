"""Command lines: parsers whose errors are one line, and whose help ends with an example."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import NoReturn

from rendezvous_async.cli import COMMANDS
from rendezvous_async.cli.exits import Exit
from rendezvous_async.cli.terminal import clean

__all__ = [
    "Parser",
    "command_parser",
    "count",
    "did_you_mean",
    "main_parser",
    "number",
    "parse_command",
    "port",
    "seconds",
]

_OPTION = re.compile("--?[A-Za-z]")


class Parser(ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, clean(f"{self.prog}: {message}; see {self.prog} --help") + "\n")

    def check_names(self, arguments: list[str]) -> None:
        """End with an error at the first option that there is not, before anything is missed."""
        known = list(self._option_string_actions)
        for argument in arguments:
            name = argument.partition("=")[0]
            if _OPTION.match(name) and name not in known:
                self.error(f"there is no option {name}{did_you_mean(name, known)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is most like another one; empty if none is."""
    found = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def main_parser() -> Parser:
    """Return the parser of everything that is not a command."""
    from rendezvous_async import __version__

    width = max(map(len, COMMANDS))
    about = "Elastic rendezvous: nodes meet, agree on rank and size, notice loss, and meet again."
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = Parser(
        prog="rdzv",
        usage="rdzv COMMAND ...",
        description=f"{about}\n\n{commands}",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage, 3 cannot connect (serve: in use), 4 the run is closed,\n"
        "  5 timed out, 6 no such run or node, 130 interrupted\n\n"
        "example:\n  rdzv demo\n  rdzv launch --help",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rdzv {__version__}")
    parser.add_argument("command", nargs="?", choices=list(COMMANDS), metavar="COMMAND", help="one of the above")
    return parser


def command_parser(name: str, module: ModuleType) -> Parser:
    """Return the parser of one command."""
    parser = Parser(
        prog=f"rdzv {name}",
        description=module.__doc__,
        epilog=f"example:\n{module.EXAMPLE}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only results and errors")
    return parser


def parse_command(name: str, module: ModuleType, arguments: list[str]) -> Namespace:
    """Return the options of a command; its ``command`` is what stands behind ``--``, for those that run something."""
    parser = command_parser(name, module)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser.check_names(arguments[:at])
    options = parser.parse_args(arguments[:at])
    options.command = arguments[at + 1 :]
    if options.command and not getattr(module, "TAKES_COMMAND", False):
        parser.error(f"nothing may stand behind --, not {options.command[0]!r}")
    return options


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < sys.maxsize:
        raise ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def count(text: str) -> int:
    """A number of things, 1 or more."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a count of 1 or more")
    return int(text)


def number(text: str) -> int:
    """A number of things, 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def port(text: str) -> int:
    """A port; 0 is any free one."""
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
