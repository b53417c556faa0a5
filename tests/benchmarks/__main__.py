"""The whole suite by one command: every part, one table.

    python -m tests.benchmarks [--quick] [--runs 5] [--output DIRECTORY] [PART ...]

JSON lines as they come, progress on standard error, and in the end ``benchmarks.md`` and ``benchmarks.json``. Torch's
figures are there if ``torch==2.13.0`` is installed. A machine at rest is needed for figures that are worth something;
compare only what one run has printed.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from pathlib import Path

import msgspec

from tests.benchmarks import bench_footprint, bench_meeting, bench_shape
from tests.benchmarks.figures import Figures, list_lines, parser_of

SCRIPTS = ("bench_tcp", "bench_etcd", "bench_file", "bench_sync", "bench_simulation", "bench_torchrun")
"""Those that print JSON lines of their own; they run one after the other behind the table's."""


async def main(names: list[str], runs: int, quick: bool, output: Path) -> None:
    """Run what is named, or all."""
    figures = Figures()
    for module in (bench_meeting, bench_footprint, bench_shape):
        for name, part in module.PARTS.items():
            if not names or name in names:
                await timed(name, part(figures, runs, quick))
    lines: dict[str, list[dict[str, object]]] = {}
    for script in SCRIPTS:
        if not names or script in names:
            lines[script] = []
            await timed(script, run_script(script, quick, lines[script]))
    write(figures, lines, runs, output)


def write(figures: Figures, lines: dict[str, list[dict[str, object]]], runs: int, output: Path) -> None:
    """Write the table, what the scripts said, and everything as JSON."""
    head = f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores, {runs} runs"
    output.mkdir(parents=True, exist_ok=True)
    text = f"{head}\n\n" + (figures.table() if figures.all else "")
    for script, found in lines.items():
        text += f"\n## {script}\n\n{list_lines(found)}"
    (output / "benchmarks.md").write_text(text)
    everything = {"machine": head, "figures": figures.all, **lines}
    (output / "benchmarks.json").write_bytes(msgspec.json.format(msgspec.json.encode(everything)))
    print(f"\n{text}\nwritten to {output}/benchmarks.md and .json", flush=True)


async def timed(name: str, part: object) -> None:
    """Say what is being measured, and how long it took."""
    begin = time.monotonic()
    print(f"{name} ...", file=sys.stderr, flush=True)
    assert asyncio.iscoroutine(part)
    await part
    print(f"{name} took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


async def run_script(script: str, quick: bool, lines: list[dict[str, object]]) -> None:
    """Run one of the other benchmarks as a user would."""
    args = ["--quick"] if quick and script in ("bench_tcp", "bench_etcd", "bench_file") else []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", f"tests.benchmarks.{script}", *args), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async for line in process.stdout:
        sys.stdout.write(line.decode())
        sys.stdout.flush()
        if line.startswith(b"{"):
            lines.append(msgspec.json.decode(line))
    if await process.wait():
        lines.append({"failed": process.returncode})


if __name__ == "__main__":
    parser = parser_of([*bench_meeting.PARTS, *bench_footprint.PARTS, *bench_shape.PARTS, *SCRIPTS], __doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"))
    arguments = parser.parse_args()
    asyncio.run(main(arguments.names, arguments.runs, arguments.quick, arguments.output))
