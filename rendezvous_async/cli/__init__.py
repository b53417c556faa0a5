"""The ``rdzv`` command.

This module knows the names of the commands and nothing of what they do: each lives in a module of its own name, which
is imported when it is called, so that ``rdzv --help`` answers at once. Such a module has ``configure(parser)`` and
``run(options)``, which returns the exit code. Errors come out as one line on stderr and an exit code of ``exits``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "see it work: real processes meet, one comes late, one is killed, the rest go on",
    "serve": "serve tcp:// for any number of runs, with a status page if you like",
    "launch": "run a command on every node of an elastic world, and again when the world changes",
    "status": "say how a run stands, and why it has not formed",
    "watch": "follow a run live",
    "close": "close a run for everyone, for good; --purge removes what it left",
    "evict": "throw a node out of a run",
    "doctor": "check an endpoint: names, ports, latency, TLS, secret, permissions",
    "bench": "measure an endpoint: formation, keep-alives, detection",
    "simulate": "play random scenarios in virtual time and check every guarantee",
    "completion": "print a completion script for bash or zsh",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    from rendezvous_async.cli.exits import Exit, end, guarded
    from rendezvous_async.cli.parsing import did_you_mean, main_parser, parse_command
    from rendezvous_async.cli.terminal import make_output_safe

    make_output_safe()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments or arguments[0] not in COMMANDS:
            parser = main_parser()
            parser.check_names(arguments)
            if arguments and not arguments[0].startswith("-"):
                hint = did_you_mean(arguments[0], [*COMMANDS, "--help", "--version"])
                parser.error(f"there is no command {arguments[0]!r}{hint}")
            parser.parse_args(arguments)
            parser.print_help(sys.stderr)
            return Exit.USAGE
        name, *rest = arguments
        module = import_module(f"{__name__}.{name}")
        options = parse_command(name, module, rest)
    except SystemExit as done:  # argparse has said what there was to say.
        return done.code if isinstance(done.code, int) else Exit.USAGE
    except KeyboardInterrupt:
        return end(Exit.INTERRUPTED, "interrupted")
    return guarded(module.run, options)
