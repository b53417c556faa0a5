"""The ``rdzv`` command.

This module only lists the commands. Each one lives in a module of its own name, which is imported when the command
runs, so that ``rdzv --help`` stays fast. A command module has ``configure(parser)`` and ``run(options)``, which returns
the exit code. An error becomes one line on stderr and an exit code from ``exits``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "see it work: real processes meet, one joins late, one is killed, the rest continue",
    "serve": "serve tcp:// for any number of runs, optionally with a status page",
    "launch": "run a command on every node of an elastic world, and restart it when the world changes",
    "status": "show the state of a run and why it has not formed",
    "list": "list all runs at an endpoint, those that need attention first",
    "watch": "follow a run live",
    "history": "tell what happened to a run and why, and where its time went",
    "scale": "change the sizes of a run, or its target, while it runs",
    "close": "close a run permanently for all nodes; --purge removes its keys",
    "evict": "remove a node from a run",
    "doctor": "check an endpoint: names, ports, latency, TLS, secret, permissions",
    "bench": "measure an endpoint: formation, keep-alives, failure detection",
    "simulate": "run random scenarios in virtual time and check every guarantee",
    "completion": "print a completion script for bash, zsh or fish",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    from rendezvous_async.cli.exits import Exit, end, guarded
    from rendezvous_async.cli.parsing import did_you_mean, main_parser, parse_command
    from rendezvous_async.cli.terminal import make_output_safe

    make_output_safe()
    arguments = [*(sys.argv[1:] if argv is None else argv)]  # Here ``list`` is the module of that command.
    try:
        if not arguments or arguments[0] not in COMMANDS:
            parser = main_parser()
            parser.check_names(arguments)
            if arguments and not arguments[0].startswith("-"):
                hint = did_you_mean(arguments[0], [*COMMANDS, "--help", "--version"])
                parser.error(f"unknown command {arguments[0]!r}{hint}")
            parser.parse_args(arguments)
            parser.print_help(sys.stderr)
            return Exit.USAGE
        name, *rest = arguments
        module = import_module(f"{__name__}.{name}")
        options = parse_command(name, module, rest)
    except SystemExit as done:  # argparse has printed its message.
        return done.code if isinstance(done.code, int) else Exit.USAGE
    except KeyboardInterrupt:
        return end(Exit.INTERRUPTED, "interrupted")
    return guarded(module.run, options)
