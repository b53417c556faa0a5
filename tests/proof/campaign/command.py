"""``python -m tests.proof campaign``: its options, and what ends it."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import anyio

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "--backend", choices=("tcp", "hosted", "etcd", "file", "cas"), required=True, help="what to play on"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no act after this many (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of all faults (default 0)")
    parser.add_argument("--first", type=int, default=1, help="the number of the first act (default 1)")
    parser.add_argument("--acts", type=int, default=None, help="play at most this many acts")
    parser.add_argument("--pace", type=float, default=1.0, help="how slow this machine is (default 1)")
    parser.add_argument("--keep", type=Path, default=None, help="where histories of a breach go (default: temporary)")


def run(options: argparse.Namespace) -> int:
    """Play a campaign, and print what came of it; 1 if it found a breach or did not come to its end."""
    return anyio.run(_play, options)


async def _play(options: argparse.Namespace) -> int:
    from tests.proof.campaign.performer import Plan
    from tests.proof.campaign.report import run_campaign

    result = None
    async with anyio.create_task_group() as group:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    group.cancel_scope.cancel()  # Servers, mounts and namespaces must not be left behind.

        group.start_soon(end_on_signal)
        result = await run_campaign(
            options.backend,
            options.seed,
            minutes=options.minutes,
            first=options.first,
            acts=options.acts,
            plan=Plan(pace=options.pace),
            keep=options.keep,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        print(result)
        group.cancel_scope.cancel()
    return 1 if result is None or result.breach else 0
