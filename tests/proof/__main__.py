"""``python -m tests.proof``: ``endure`` plays sagas, ``campaign`` disturbs real processes, ``power`` cuts the power,
``history`` asks the run's own history what was done to it, ``incidents`` prints three.

All check every guarantee, print the command that repeats a failure, and exit 1 then. The others are
commands of their own: ``python -m tests.proof.model``, and ``.mutants``, ``.mutations``, ``.cycles``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.proof import blackbox, endurance, incidents, power
from tests.proof.campaign import command as campaign


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    endurance.configure(commands.add_parser("endure", help="play sagas until a million rounds have formed"))
    campaign.add_options(commands.add_parser("campaign", help="real processes, a real backend, real faults"))
    power.add_options(commands.add_parser("power", help="simulated losses of power, and what is found after them"))
    blackbox.add_options(commands.add_parser("history", help="does the history name the right machine and cause?"))
    incidents.add_options(commands.add_parser("incidents", help="print the incidents of docs/incidents.md"))
    options = parser.parse_args(arguments)
    if options.command == "incidents":
        return incidents.main(options)
    if options.command == "history":
        return blackbox.main(options)
    if options.command == "campaign":
        return campaign.run(options)
    if options.command == "power":
        return power.main(options)
    return endurance.run(options, lambda what: print(what, file=sys.stderr, flush=True))


if __name__ == "__main__":
    sys.exit(main())
