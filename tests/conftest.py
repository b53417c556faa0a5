"""Settings for all tests: how many run at once, in which order they are started, which need more than this process.

Tests mostly wait, so ``pytest`` runs three of them for each core. Those named on the command line by file run in this
process, as do slow ones and everything under ``-n 0``, ``--pdb`` and ``-s``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import warnings
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples each time, and no limit on their time: machines are slow now and then.
# To search further: pytest --hypothesis-profile=search
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile("repeatable")

# A shell that starts pytest in the background has it ignore SIGINT, and every process that a test starts would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WORKERS_PER_CORE = 3
MOST_WORKERS = 24

# RENDEZVOUS_TEST_LOOP=uvloop runs all tests on uvloop, except those in virtual time, which bring a loop of their own.
ON_UVLOOP = os.environ.get("RENDEZVOUS_TEST_LOOP") == "uvloop"
if ON_UVLOOP:
    import uvloop

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # policies, from Python 3.14 on
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

TESTS = Path(__file__).parent
INTEGRATION = (
    "proof/test_campaign.py",
    "torchrun",
    "hostile/test_hogs.py",
    "proof/test_cycles.py",
    "backends/file/test_processes.py",
    "backends/test_clocks.py",
    "backends/etcd",
    "backends/cas/test_processes.py",
    "backends/cas/test_conformance.py",
    "cli/test_launch.py",
    "launch",
    "cli/test_places.py",
    "backends/tcp/test_conformance_tcp.py",
    "backends/tcp/test_linearizable.py",
    "backends/tcp/test_durability.py",
    "backends/file/test_conformance.py",
    "proof/test_campaign_stages.py",
    "proof/test_sagas.py",
    "proof/test_mutants.py",
    "proof/test_model_bugs.py",
    "proof/test_wire_bugs.py",
    "testing/test_public_arguments.py",
    "test_surroundings.py",
    "test_sniffed.py",
    "backends/tcp/test_stalls.py",
    "backends/tcp/test_data_dir.py",
    "backends/tcp/test_cost.py",
    "node/test_agreement.py",
    "node/test_suspension.py",
    "proof/test_planted_bugs.py",
    "testing/test_scenarios.py",
    "sync/test_process.py",
    "cli/test_interrupts.py",
    "cli/test_history.py",
    "cli/test_runs.py",
    "cli/test_demo.py",
    "cli/test_doctor_and_bench.py",
    "cli/test_serve.py",
    "page/test_status_page.py",
    "page/test_browser.py",
    "page/test_drawing.py",
    "testing/test_picture.py",
    "testing/test_shrinking.py",
    "test_pytest_plugin.py",
    "sync/test_backend.py",
    "sync/test_from_backend.py",
    "test_examples.py",
    "proof/test_mutations.py",
)
"""Tests of real processes, etcd, torch, long waits and whole simulations; those that take longest come first."""

SURROUNDINGS = (
    "test_surroundings.py",
    "test_sniffed.py",
    "testing/test_scenarios.py",
    "cli/test_history.py",
    "cli/test_runs.py",
    "sync/test_process.py",
    "test_examples.py",
    "cli/test_demo.py",
    "backends/etcd/test_batches.py",
)
"""Of those, the ones that each leg of CI runs beside the fast tests."""

TOGETHER = "etcd3"
"""The tests with this fixture stay on one worker: it is three processes."""


def pytest_configure() -> None:
    """Refuse names of tests that have moved: they would count as fast, and start last."""
    if missing := [name for name in (*INTEGRATION, *SURROUNDINGS) if not (TESTS / name).exists()]:
        raise pytest.UsageError(f"tests/conftest.py names what is not there: {', '.join(missing)}")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run in parallel where nothing else was asked for."""
    option = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    by_file = all(Path(argument.partition("::")[0]).is_file() for argument in config.args)
    watched = option.usepdb or option.trace or option.capture == "no" or option.collectonly
    if option.numprocesses is None and not by_file and not watched and "not slow" in option.markexpr:
        option.numprocesses = "auto"
        option.dist = "worksteal"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    chosen = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(chosen) if chosen else min(WORKERS_PER_CORE * len(os.sched_getaffinity(0)), MOST_WORKERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what would be deselected: torch and gRPC take each worker seconds."""
    chosen = config.option.markexpr
    left_out = "not integration" in chosen and collection_path.is_file() and is_among(INTEGRATION, collection_path)
    return True if left_out and not ("surroundings" in chosen and is_among(SURROUNDINGS, collection_path)) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    for item in items:
        if is_among(INTEGRATION, item.path):
            item.add_marker(pytest.mark.integration)
        if is_among(SURROUNDINGS, item.path):
            item.add_marker(pytest.mark.surroundings)
    yield
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_in(INTEGRATION, item.path))
        items[:] = dealt(items, config.workerinput["workercount"])


@cache
def place_in(names: tuple[str, ...], path: Path) -> int:
    """Return the place of a file, or of a folder that it is in; the number of names if it is in none."""
    if not path.is_relative_to(TESTS):
        return len(names)
    inside = path.relative_to(TESTS)
    return next((place for place, name in enumerate(names) if inside.is_relative_to(name)), len(names))


def is_among(names: tuple[str, ...], path: Path) -> bool:
    return place_in(names, path) < len(names)


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Deal tests out like cards, so that each worker begins with its share of the long ones.

    Worksteal cuts the list into one run of neighbours for each worker, and later moves tests to workers that are idle.
    """
    together = [item for item in items if TOGETHER in getattr(item, "fixturenames", ())]
    others = [item for item in items if item not in set(together)]
    hands = [others[worker::workers] for worker in range(workers)]
    hands[-1] = together + hands[-1]
    return list(itertools.chain.from_iterable(hands))
