"""Run tests on mutants: find the tests that reach each line, and run them on each mutant in a fork of a warm process.

A worker has a copy of the package on disk, so that processes that a test starts see the mutant too. The tests are the
fast ones. Those of the module's own name come first, then the quickest; together they may take ``BUDGET`` seconds.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.proof.mutants.generate import Mutant
from tests.proof.mutations import ROOT, write_source

__all__ = ["Reach", "reach_of", "verdict_of", "warm_up"]

PYTEST = (
    "-q", "-n", "0", "-m", "not slow and not integration", "-p", "no:cacheprovider", "-p", "no:randomly",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
"""The fast tests, in this process; plugins are already imported there, and pytest warns of it."""
BUDGET = 20.0
GRACE = 15.0
BROKEN = 70
LONGEST_RECORDING = 1800.0
WARM = (
    "anyio._backends._asyncio",
    "hypothesis.strategies",
    "msgspec",
    "pytest_asyncio.plugin",
    "ssl",
    "trustme",
    "uvloop",
)


class Reach(NamedTuple):
    """What the tests reach.

    Attributes:
        seconds: How long each test takes.
        lines: File, then line, then the tests that reach it, by their places in ``seconds``.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests to try, the likeliest to fail first."""
        lines = self.lines.get(mutant.file, {})
        own = f"test_{Path(mutant.file).stem}.py"
        # A line that runs at import is for all tests of the module, and for those beside them: they may use its values.
        last = mutant.line + mutant.before.count("\n")
        places = {place for line in range(mutant.line, last + 1) for place in lines.get(str(line), ())}
        names = list(self.seconds)
        if not places:
            beside = f"tests/{Path(mutant.file).parent.as_posix()}/"
            places = {place for found in lines.values() for place in found}
            places |= {
                place
                for place, name in enumerate(names)
                if (name.startswith(beside) or f"/{own}::" in name) and self.seconds[name] < BUDGET
            }
        ordered = sorted(
            (names[place] for place in places), key=lambda test: (own not in test, self.seconds[test], test)
        )
        return list(_within(BUDGET, ordered, self.seconds))


def _within(budget: float, tests: list[str], seconds: dict[str, float]) -> Iterator[str]:
    for test in tests:
        budget -= seconds[test] + 0.005
        if budget < 0:
            return
        yield test


class Recorder:
    """A plugin of pytest that notes which test runs which line."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.seconds[report.nodeid] = float("inf")  # what fails without a mutant tells nothing


def reach_of(place: Path, tests: list[str]) -> Reach:
    """Run the fast tests once in the copy at ``place``; the answer is kept for as long as no source changes."""
    sources = sorted(path for part in ("rendezvous_async", "tests") for path in (ROOT / part).rglob("*.py"))
    texts = [path.read_bytes() for path in sources if path.parent != Path(__file__).parent]
    digest = hashlib.sha256(b"\0".join([*map(str.encode, tests), *texts])).hexdigest()[:16]
    kept = ROOT / "build" / f"reach-{digest}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        status = _forked(place, lambda: _record(place, tests, kept), LONGEST_RECORDING)
        if status != 0:
            raise RuntimeError(f"the tests could not be recorded in {place}: pytest finds none or cannot collect them")
    return Reach(**json.loads(kept.read_text()))


def _record(place: Path, tests: list[str], target: Path) -> int:
    coverage = importlib.import_module("coverage").Coverage(
        data_file=None, source=[str(place / "rendezvous_async")], config_file=False
    )
    recorder = Recorder(coverage)
    coverage.start()
    pytest.main([*PYTEST, *tests], plugins=[recorder])
    coverage.stop()
    if not recorder.seconds:
        return BROKEN
    lines = {}
    places = {test: place for place, test in enumerate(recorder.seconds)}
    data = coverage.get_data()
    for path in data.measured_files():
        contexts = data.contexts_by_lineno(path)
        file = Path(path).relative_to(place / "rendezvous_async").as_posix()
        sound = {
            str(line): [places[test] for test in reached if recorder.seconds.get(test, BUDGET) < BUDGET]
            for line, reached in contexts.items()
        }
        lines[file] = {line: reached for line, reached in sound.items() if reached}
    target.write_text(json.dumps({"seconds": recorder.seconds, "lines": lines}))
    return 0


def verdict_of(mutant: Mutant, reach: Reach, place: Path) -> str:
    """Run tests on a mutant: it is ``killed``, ``late`` (it hangs), ``survived`` or ``unreached``."""
    tests = reach.tests_of(mutant)
    if not tests:
        return "unreached"
    limit = GRACE + 5 * sum(reach.seconds[test] for test in tests)
    path = place / "rendezvous_async" / mutant.file
    sound = path.read_text()
    write_source(path, mutant.source)
    try:
        status = _forked(place, lambda: _run(tests), limit)
    finally:
        write_source(path, sound)
    if status in (pytest.ExitCode.NO_TESTS_COLLECTED, BROKEN):
        raise RuntimeError(f"pytest could not run {tests[0]} and others on {mutant}")
    return "late" if status is None else "survived" if status == 0 else "killed"


def _run(tests: list[str]) -> int:
    """Run tests up to the first that fails; return pytest's exit status."""
    try:
        return pytest.main([*PYTEST, "-x", *tests])
    except pytest.PytestUnraisableExceptionWarning:  # Raised behind the last test, by what the mutant left open.
        return pytest.ExitCode.TESTS_FAILED


def warm_up() -> None:
    """Import what every test needs and no mutant changes."""
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)


def _forked(place: Path, work: Callable[[], int], limit: float) -> int | None:
    """Do work in a forked process, in a session of its own; return its exit status, or None if it took too long."""
    pid = os.fork()
    if pid == 0:
        status = BROKEN
        try:
            os.setsid()
            os.chdir(place)
            os.environ["PYTHONPATH"] = str(place)
            os.environ["RENDEZVOUS_TEST_PATIENCE"] = "15"
            sys.path.insert(0, str(place))
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "rendezvous_async")]:
                del sys.modules[name]
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            status = int(work())
        finally:
            os._exit(status)
    watched = os.pidfd_open(pid)
    ended, _, _ = select.select([watched], [], [], limit)
    os.close(watched)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what hangs, and what a test on a mutant left behind
    _, wait_status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(wait_status) if ended else None
