"""What the documents say of the code is true: files, functions and links exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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


STEPS = [(found["file"], found["name"]) for found in STEP.finditer(DESIGN)]


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_each_step_of_a_path_is_a_function(file: str, name: str) -> None:
    assert name in names_in(ROOT / "rendezvous_async" / file)


@pytest.mark.parametrize("path", ["A join, with one finger", "A loss, with one finger"])
def test_a_path_is_short_and_never_skips_a_number(path: str) -> None:
    section = DESIGN.split(f"## {path}\n")[1].split("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 5 < len(numbers) <= MOST_HOPS


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_each_link_to_a_file_leads_somewhere(document: str) -> None:
    path = ROOT / document
    assert [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()] == []
