"""What the documents say of the code is true: the paths are taken, files, functions and links exist."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import anyio
import pytest

import rendezvous_async as rdzv

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "docs" / "design.md").read_text()
STEP = re.compile(r"^\| \d+ \| `(?P<file>[\w/.]+)` `(?P<name>[\w.]+)` \|", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
MOST_HOPS = 15


def names_in(path: Path) -> set[str]:
    """Return the functions of a module, methods with their class before a dot."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text())
    methods = {
        f"{node.name}.{part.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, functions)
    }
    return methods | {node.name for node in tree.body if isinstance(node, functions)}


def section_on(path: str) -> str:
    return DESIGN.split(f"## {path}\n")[1].split("\n## ")[0]


def steps_in(text: str) -> list[tuple[str, str]]:
    return [(found["file"], found["name"]) for found in STEP.finditer(text)]


STEPS = steps_in(DESIGN)


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_each_step_of_a_path_is_a_function(file: str, name: str) -> None:
    assert name in names_in(ROOT / "rendezvous_async" / file)


@pytest.mark.parametrize("path", ["A join, with one finger", "A loss, with one finger"])
def test_a_path_is_short_and_never_skips_a_number(path: str) -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", section_on(path), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 5 < len(numbers) <= MOST_HOPS


@contextmanager
def calls() -> Iterator[list[tuple[str, str]]]:
    """Record the calls of the package's functions in this thread, with each step of a coroutine as one."""
    package = Path(rdzv.__file__).parent
    made: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            made.append((path.relative_to(package).as_posix(), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield made
    finally:
        sys.setprofile(before)


def assert_in_order(made: list[tuple[str, str]], path: str) -> None:
    """Fail at the first step of a path that no call after the steps before it takes."""
    rest = iter(made)
    for step in steps_in(section_on(path)):
        assert step in rest, f"{step} is not called after the steps before it"


async def test_a_join_takes_its_path() -> None:
    async with rdzv.serve("127.0.0.1", 0) as server:
        with calls() as made:
            async with rdzv.connect(server.endpoint, run_id="job", nodes=1) as rendezvous:
                await rendezvous.join()
    assert_in_order(made, "A join, with one finger")


async def test_a_loss_takes_its_path() -> None:
    async with (
        rdzv.serve("127.0.0.1", 0) as server,
        rdzv.connect(server.endpoint, run_id="job", nodes=2, node="first") as first,
        rdzv.connect(server.endpoint, run_id="job", nodes=2, node="second") as second,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(second.join)
            world = await first.join()
        with calls() as made:
            async with world.until_changed() as block:
                await first.evict("second")
                await anyio.sleep_forever()
        assert block.change is rdzv.Change.MEMBER_LOST
    assert_in_order(made, "A loss, with one finger")


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_each_link_to_a_file_leads_somewhere(document: str) -> None:
    path = ROOT / document
    assert [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()] == []
