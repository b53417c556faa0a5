"""Check an endpoint from this machine: names, ports, TLS, secret, permissions, latency, pushes. Suggests fixes.

Writes a few keys to a run of its own and removes them. Exits with 0 if nothing is wrong, 3 if the endpoint cannot be
used, and 1 if anything else is wrong.
"""

from __future__ import annotations

from argparse import Namespace
from contextlib import aclosing

from rendezvous_async.cli.endpoints import add_connection, add_timeout, shown
from rendezvous_async.cli.exits import Exit, Failure, one_line
from rendezvous_async.cli.parsing import Parser, name
from rendezvous_async.cli.terminal import Terminal

EXAMPLE = """  rdzv doctor tcp://head:29400
  rdzv doctor tcp://head:29400 --secret-file secret.txt --json"""
_MARKS = {"ok": "green", "warning": "yellow", "wrong": "red"}


def configure(parser: Parser) -> None:
    add_connection(parser)
    add_timeout(parser)
    parser.add_argument(
        "--run-id",
        type=name,
        metavar="ID",
        help="check permissions in this run, and how its nodes fit (default: a temporary run)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.cli.checkup import examine
    from rendezvous_async.cli.findings import Finding

    terminal = Terminal(quiet=options.quiet)

    async def check() -> list[Finding]:
        findings = []
        async with aclosing(examine(options)) as found:
            async for finding in found:
                findings.append(finding)
                if not options.json:
                    mark = (f"{finding.verdict:8}", _MARKS[finding.verdict])
                    terminal.print(mark, f" {finding.check:12} {finding}")
        return findings

    findings = anyio.run(check)
    if options.json:
        terminal.print_json(findings)
    wrong = [finding for finding in findings if finding.verdict == "wrong"]
    if wrong:
        code = Exit.UNREACHABLE if any(finding.unusable for finding in wrong) else Exit.FAILED
        what = "cannot be used" if code == Exit.UNREACHABLE else "has problems"
        # Without --json the details are printed above.
        why = one_line(wrong[0].found) if options.json else " and ".join(finding.check for finding in wrong)
        raise Failure(code, f"{shown(options)} {what}: {why}")
    return Exit.OK
