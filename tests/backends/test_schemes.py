"""A scheme of another distribution is found by its entry point, when it is asked for, and its faults name it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from rendezvous_async import connect, open_backend
from rendezvous_async.backends.memory import MemoryDriver
from rendezvous_async.backends.schemes import GROUP, find_scheme
from rendezvous_async.backends.tcp import SCHEME as TCP
from rendezvous_async.settings import parse_endpoint

MODULE = """
from typing import Any
from rendezvous_async.backends.memory import MemoryDriver, memory_server
from rendezvous_async.backends.options import BackendOptions, Seconds, SecretText
from rendezvous_async.backends.schemes import Scheme

class Options(BackendOptions, frozen=True, kw_only=True):
    password: SecretText | None = None
    pause: Seconds = 1.0

opened: list[Any] = []

async def open_shelf(endpoint, options, outage):
    opened.append((endpoint, options, str(outage)))
    return MemoryDriver(memory_server(endpoint.path))

SCHEME = Scheme(Options, open_shelf)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution with one scheme, as pip leaves it."""
    monkeypatch.syspath_prepend(tmp_path)

    def install_one(name: str, scheme: str = "shelf", value: str = "rdzv_shelf:SCHEME", module: str = MODULE) -> None:
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{scheme} = {value}\n")
        (tmp_path / "rdzv_shelf.py").write_text(module)
        monkeypatch.delitem(sys.modules, "rdzv_shelf", raising=False)

    return install_one


async def test_a_scheme_of_another_distribution(install: Install) -> None:
    install("rdzv-shelf")
    with pytest.raises(
        ValueError, match=r"shelf:// takes no option 'puase'; did you mean 'pause'\? it knows namespace"
    ):
        connect("shelf://books/top", run_id="job", nodes=1, puase=2)
    async with (
        open_backend("shelf://books/top?pause=2&namespace=mine", run_id="job", password="x") as backend,
        connect("shelf://books/top?pause=0.5", run_id="job", nodes=1) as rendezvous,
    ):
        assert isinstance(backend.driver, MemoryDriver)
        assert backend.prefix == "mine/job/"
        assert (await rendezvous.join()).size == 1
    import rdzv_shelf  # type: ignore[import-not-found]

    endpoint, options, _ = rdzv_shelf.opened[0]
    assert (endpoint.scheme, endpoint.path, endpoint.hosts) == ("shelf", "books/top", ())
    assert (options.pause, options.password) == (2.0, "x")
    assert [options.pause for _, options, _ in rdzv_shelf.opened] == [2.0, 0.5]
    assert rdzv_shelf.opened[1][2].startswith("cannot reach shelf://books/top")


PYPROJECT = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "rdzv-audited"
version = "1.2"
[project.entry-points."{GROUP}"]
audited = "rdzv_audited:SCHEME"
[tool.hatch.build.targets.wheel]
only-include = ["rdzv_audited.py", "custom_backend.py"]
"""
AUDITED = """
from custom_backend import AUDIT, AuditedDriver
from rendezvous_async.backends.memory import MemoryDriver, memory_server
from rendezvous_async.backends.options import BackendOptions
from rendezvous_async.backends.schemes import Scheme

async def open_audited(endpoint, options, outage):
    return AuditedDriver(MemoryDriver(memory_server(endpoint.path)))

SCHEME = Scheme(BackendOptions, open_audited)
"""
JOIN = """
import asyncio
import rendezvous_async as rdzv

async def main():
    async with rdzv.connect("audited://shelf", run_id="job", nodes=1) as rendezvous:
        print((await rendezvous.join()).size)

asyncio.run(main())
import rdzv_audited
print(len(rdzv_audited.AUDIT) > 0, rdzv_audited.__file__)
"""


def test_the_driver_of_the_example_in_a_wheel_of_its_own(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "rdzv_audited.py").write_text(AUDITED)
    shutil.copy(Path(__file__).parents[2] / "examples" / "custom_backend.py", source)
    (wheel,) = WheelBuilder(str(source)).build(directory=str(tmp_path), versions=["standard"])
    zipfile.ZipFile(wheel).extractall(site)  # what an installer does with a wheel of plain Python
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(
        [sys.executable, "-c", JOIN], capture_output=True, text=True, timeout=60, check=True, env=where
    )
    assert result.stdout.split() == ["1", "True", str(site / "rdzv_audited.py")]


def test_an_unknown_scheme_is_told_with_those_that_are_known(install: Install) -> None:
    install("rdzv-shelf")
    text = "endpoint 'shlef://books' has the unknown scheme 'shlef'; known are etcd, etcds, file, memory, shelf, tcp"
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        connect("shlef://books?password=hunter2", run_id="job", nodes=1)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "module", "text"),
    [
        ("rdzv_shelf:SCHEME", "import no_such_module", "cannot be loaded: ModuleNotFoundError"),
        ("rdzv_shelf:SCHEME", "1 / 0", "cannot be loaded: ZeroDivisionError('division by zero')"),
        ("rdzv_shelf:NOTHING", MODULE, "cannot be loaded: AttributeError"),
        ("rdzv_shelf:Options", MODULE, "must be a Scheme, not <class 'rdzv_shelf.Options'>"),
    ],
)
def test_a_broken_entry_point_names_its_distribution(install: Install, value: str, module: str, text: str) -> None:
    install("rdzv-shelf", value=value, module=module)
    with pytest.raises(ValueError, match=re.escape(f"the scheme shelf:// of rdzv-shelf 1.2 ({value}) {text}")):
        connect("shelf://books", run_id="job", nodes=1)


def test_two_distributions_with_one_scheme_are_both_named(install: Install) -> None:
    install("rdzv-shelf")
    install("another-shelf")
    text = (
        "several distributions provide the scheme shelf://, uninstall all but one: "
        "another-shelf 1.2 (rdzv_shelf:SCHEME), rdzv-shelf 1.2 (rdzv_shelf:SCHEME)"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        connect("shelf://books", run_id="job", nodes=1)


def test_a_scheme_of_this_package_is_nobody_elses(install: Install) -> None:
    install("rdzv-shelf", scheme="tcp", module="1 / 0")
    assert find_scheme(parse_endpoint("tcp://head")) is TCP


def test_etcd_without_its_packages_says_what_to_install() -> None:
    code = (
        "import sys, asyncio, rendezvous_async as rdzv\n"
        "sys.modules['grpc'] = None\n"
        "try:\n"
        "    rdzv.connect('etcd://a', run_id='job', nodes=2)\n"
        "except ImportError as error:\n"
        "    print(error.name, error)\n"
        "try:\n"
        "    asyncio.run(rdzv.open_backend('etcd://a', run_id='job').__aenter__())\n"
        "except ImportError as error:\n"
        "    print(error.name, error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    told = "grpc etcd:// needs grpc, which is not installed: pip install 'rendezvous-async[etcd]'\n"
    assert result.stdout == 2 * told
