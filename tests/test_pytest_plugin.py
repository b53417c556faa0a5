"""The pytest plugin, in projects of somebody else: it is there by itself, light, and in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
TESTS = """
import anyio
from rendezvous_async.backends.base import Put
from rendezvous_async.testing import virtual_loop

def test_in_virtual_time(virtual, capsys):
    async def an_hour():
        await anyio.sleep(3600)
        return anyio.current_time(), virtual_loop()._random.random()

    now, drawn = virtual(an_hour)
    assert now == 3600
    with capsys.disabled():
        print("drawn", drawn)

def test_backends_of_one_store(virtual, memory_backends):
    async def share():
        one, other = memory_backends("run"), memory_backends("run")
        await one.commit(Put("key", b"value"))
        return (await other.get("key")).value

    assert virtual(share) == b"value"
"""
SHARED = """
import pytest

@pytest.fixture(params=[1, 2])
def virtual(request):
    return request.param

def test_of_my_own(virtual):
    assert virtual in (1, 2)
"""
FAILING = """
def test_it(virtual):
    async def fail():
        raise KeyError("planted")
    virtual(fail)
"""
WARNINGS = (
    "-W",
    "error",
    "-W",
    "ignore:The configuration option",
)  # pytest-asyncio warns of an option that is not set.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run_pytest(folder: Path, *arguments: str, code: int = 0, environment: Mapping[str, str] = {}) -> str:
    """Run pytest as a user would, with every warning an error; return what it prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *WARNINGS, *arguments, str(folder)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | dict(
        environment
    )
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


def drawn(output: str) -> str:
    assert "2 passed" in output
    return next(line for line in output.splitlines() if "drawn" in line).partition("drawn")[2]


def test_it_is_there_by_itself_and_the_seed_decides(project: Path) -> None:
    assert drawn(run_pytest(project)) == drawn(run_pytest(project)) != drawn(run_pytest(project, "--rdzv-seed=8"))


@pytest.mark.parametrize("name", ["rendezvous_async.testing.fixtures", "rendezvous_async.pytest_plugin"])
@pytest.mark.parametrize("alone", [False, True], ids=["by itself", "without autoload"])
def test_whoever_names_it_in_a_conftest_gets_it_once(name: str, alone: bool, project: Path) -> None:
    (project / "conftest.py").write_text(f"pytest_plugins = [{name!r}]\n")
    drawn(run_pytest(project, environment=ALONE if alone else {}))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--asyncio-mode=strict",),
        ("--asyncio-mode=auto",),
        ("-p", "no:asyncio"),
        ("-p", "no:asyncio", "-p", "no:anyio"),
    ],
    ids=" ".join,
)
def test_it_needs_no_other_plugin(arguments: tuple[str, ...], project: Path) -> None:
    drawn(run_pytest(project, *arguments))


def test_a_failing_test_shows_its_seed(project: Path) -> None:
    (project / "test_it.py").write_text(FAILING)
    assert "--rdzv-seed=11" in run_pytest(project, "--rdzv-seed=11", code=1)
    assert "--rdzv-seed=7" in run_pytest(project, code=1)


def test_fixtures_of_the_same_name_win(project: Path) -> None:
    (project / "test_it.py").write_text(SHARED)
    assert "2 passed" in run_pytest(project)


def test_it_can_be_turned_off(project: Path) -> None:
    assert "fixture 'virtual' not found" in run_pytest(project, "-p", "no:rendezvous_async.pytest_plugin", code=1)


def test_it_imports_nothing_that_no_test_needs(project: Path) -> None:
    heavy = ["anyio", "msgspec", "rendezvous_async.testing", "rendezvous_async.backends", "rendezvous_async.errors"]
    (project / "test_it.py").write_text(
        "import sys\n\n"
        "def test_it():\n"
        "    assert 'rendezvous_async.pytest_plugin' in sys.modules\n"
        f"    assert [name for name in {heavy} if name in sys.modules] == []\n"
    )
    run_pytest(project, "-p", "rendezvous_async.pytest_plugin", environment=ALONE)


def test_it_comes_with_an_install(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From a wheel, where pytest also rewrites the library's assertions."""
    site = tmp_path_factory.mktemp("site")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(site), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (entry_points,) = site.glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\nrendezvous_async.pytest_plugin = rendezvous_async.pytest_plugin\n" in entry_points.read_text()
    with (project / "test_it.py").open("a") as file:
        file.write(
            "\n\ndef test_this_is_the_install():\n"
            "    import rendezvous_async\n"
            f"    assert rendezvous_async.__file__.startswith({str(site)!r})\n"
        )
    assert "3 passed" in run_pytest(project, environment={"PYTHONPATH": str(site)})
