"""One name, one thing: a class name stands once in the package, and what is private stays in its module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import PACKAGE, ROOT, modules_in, write

FOREIGN = {
    "cli.demo_node: os._exit": "a documented function of the standard library",
    "testing.loop.groups: task._log_traceback": "asyncio has no public way to say that an exception was seen",
}
"""Private attributes of other packages that are used on purpose, with the reason."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def classes_with_one_name(root: Path) -> dict[str, list[str]]:
    """Return the modules of each class name that stands for more than one class; an underscore makes no difference."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules_in(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def names_made_in(tree: ast.Module) -> set[str]:
    """Return all private names that a module defines or stores, on whatever object."""
    made = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):  # fmt: skip
                made.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                made.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=elements)):
                made.update(str(element.value) for element in elements if isinstance(element, ast.Constant))
            case _:
                pass
    return made


def foreign_privates(root: Path) -> Iterator[str]:
    """Yield each private name of another module that a module imports or touches."""
    for module, tree in modules_in(root):
        made = names_made_in(tree)
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=origin, names=aliases, level=level) if level or PACKAGE in str(origin):
                    yield from (f"{module}: {alias.name}" for alias in aliases if is_private(alias.name))
                case ast.Attribute(value=value, attr=name) if is_private(name) and name not in made:
                    if not (isinstance(value, ast.Name) and value.id in ("self", "cls")):
                        yield f"{module}: {ast.unparse(node)}"
                case _:
                    pass


def test_a_class_name_stands_for_one_thing() -> None:
    assert classes_with_one_name(ROOT) == {}


def test_private_names_stay_at_home() -> None:
    found = set(foreign_privates(ROOT))
    assert sorted(found - FOREIGN.keys()) == []
    assert FOREIGN.keys() - found == set(), "an exception to the rule that nothing needs"


def test_two_classes_with_one_name_are_found(tmp_path: Path) -> None:
    write(tmp_path, "core/rules.py", "class Change: ...\nclass Notes: ...")
    write(tmp_path, "backends/file.py", "class _Change: ...")
    assert classes_with_one_name(tmp_path) == {"Change": ["backends.file", "core.rules"]}


@pytest.mark.parametrize(
    "text",
    [
        f"from {PACKAGE}.core.rules import _form",
        "from .rules import _form",
        "def f(tally):\n    return tally._form",
        "class A:\n    def f(self, other):\n        return other.tally._form()",
    ],
)
def test_a_private_name_away_from_home_is_found(text: str, tmp_path: Path) -> None:
    write(tmp_path, "core/other.py", text)
    (found,) = foreign_privates(tmp_path)
    assert found.startswith("core.other: ")
    assert found.endswith("_form")


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n    def f(self, other):\n        self._x = 1\n        return other._x",
        "class A:\n    __slots__ = ('_x',)\ndef f(a):\n    return a._x",
        "class A:\n    def f(self):\n        return self._inherited",
        "def f(a):\n    return a.__name__",
    ],
)
def test_a_private_name_at_home_is_fine(text: str, tmp_path: Path) -> None:
    write(tmp_path, "core/other.py", text)
    assert list(foreign_privates(tmp_path)) == []
