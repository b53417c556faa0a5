"""Check an endpoint from this machine, and say what to fix: names, ports, TLS, secret, permissions, latency, pushes.

It writes a few keys of a run of its own and removes them. Exits 0 if nothing is wrong, 3 if the endpoint cannot be
used, 1 if something else is wrong.
"""

from __future__ import annotations

from argparse import Namespace
from contextlib import aclosing

from rendezvous_async.cli.endpoints import add_connection, add_timeout, shown
from rendezvous_async.cli.exits import Exit, Failure, one_line
from rendezvous_async.cli.parsing import Parser
from rendezvous_async.cli.terminal import Terminal

EXAMPLE = """  rdzv doctor tcp://head:29400
  rdzv doctor tcp://head:29400 --secret-file secret.txt --json"""
_MARKS = {"ok": "green", "warning": "yellow", "wrong": "red"}


def configure(parser: Parser) -> None:
    add_connection(parser)
    add_timeout(parser)
    parser.add_argument("--run-id", metavar="ID", help="check what is allowed in this run (a run of its own)")
    parser.add_argument("--json", action="store_true", help="print it for machines")


def run(options: Namespace) -> int:
    import anyio
    import msgspec

    from rendezvous_async.cli.checkup import Finding, examine

    terminal = Terminal(quiet=options.quiet)

    async def check() -> list[Finding]:
        findings = []
        async with aclosing(examine(options)) as found:  # However this ends, nothing stays open.
            async for finding in found:
                findings.append(finding)
                if not options.json:
                    mark = terminal.paint(f"{finding.verdict:8}", _MARKS[finding.verdict])
                    print(f"{mark} {finding.check:12} {terminal_text(finding)}", flush=True)
        return findings

    findings = anyio.run(check)
    if options.json:
        terminal.print(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())
    wrong = [finding for finding in findings if finding.verdict == "wrong"]
    if wrong:
        code = Exit.UNREACHABLE if any(finding.unusable for finding in wrong) else Exit.FAILED
        what = "cannot be used" if code == Exit.UNREACHABLE else "is not as it should be"
        # Without --json the reason stands just above.
        why = one_line(wrong[0].found) if options.json else " and ".join(finding.check for finding in wrong)
        raise Failure(code, f"{shown(options)} {what}: {why}")
    return Exit.OK


def terminal_text(finding: object) -> str:
    """Return what was found, and behind an arrow what to do."""
    from rendezvous_async.cli.checkup import Finding
    from rendezvous_async.cli.terminal import clean

    assert isinstance(finding, Finding)
    found = clean(finding.found).replace("\n", "\n" + " " * 22)
    return f"{found}\n{'':21} -> {finding.fix}" if finding.fix else found
