"""What an install brings: what is in the wheel, and what is said where an extra is missing."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import rendezvous_async as rdzv
from rendezvous_async.sync import RendezvousParameters, create_handler
from tests.cli.support import assert_one_line
from tests.cli.support import rdzv as command

ROOT = Path(__file__).parents[1]
HINT = r"pip install 'rendezvous-async\[etcd\]'"


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    source = ROOT / "rendezvous_async"
    there = {str(path.relative_to(ROOT)) for path in source.rglob("*") if path.is_file()}
    assert inside == {name for name in there if "__pycache__" not in name}
    assert {"rendezvous_async/py.typed", "rendezvous_async/page/assets/index.html"} <= inside


@pytest.fixture
def no_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an install without the extra: the module is not found."""
    monkeypatch.setitem(sys.modules, "aetcd", None)


@pytest.mark.usefixtures("no_etcd")
@pytest.mark.parametrize("scheme", ["etcd", "etcds"])
async def test_etcd_without_its_extra_says_what_to_install(scheme: str) -> None:
    with pytest.raises(ImportError, match=HINT):
        rdzv.connect(f"{scheme}://localhost", run_id="job", nodes=1)
    with pytest.raises(ImportError, match=HINT):
        async with rdzv.open_backend(f"{scheme}://localhost", run_id="job"):
            pass


@pytest.mark.usefixtures("no_etcd")
def test_the_blocking_interface_and_the_command_say_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError, match=HINT):
        create_handler(RendezvousParameters("etcd", "localhost", "job", min_nodes=1, max_nodes=1))
    result = command(capsys, "status", "etcd://localhost", "--run-id", "job")
    assert_one_line(result, 2, "pip install 'rendezvous-async[etcd]'")


def test_the_torch_handler_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "rendezvous_async.sync.torchrun", raising=False)
    for name in [name for name in sys.modules if name.startswith("torch.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'rendezvous-async\[torch\]'"):
        import rendezvous_async.sync.torchrun  # noqa: F401
