"""Nothing that comes from outside is ever run: no pickle, eval, exec or shell in the package; read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "rendezvous_async"
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "copyreg", "code", "codeop"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    ("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput"),
    ("asyncio", "create_subprocess_shell"), ("asyncio", "subprocess_shell"), ("yaml", "load"),
    ("ctypes", "CDLL"), ("importlib", "import_module"), ("runpy", "run_path"), ("runpy", "run_module"),
    ("importlib", "entry_points"),
}  # fmt: skip
BY_TABLE = {"importlib.import_module"}
"""Imports a module whose name stands in a table in the source: never one that somebody else has sent."""
EXPECTED: dict[str, set[str]] = {
    "__init__.py": BY_TABLE,
    # A scheme that an endpoint names is one of this package, or of a distribution that is installed here.
    "backends/schemes.py": BY_TABLE | {"importlib.entry_points"},
    "backends/file/notify.py": {"ctypes.CDLL"},  # the C library of this process, for inotify
    "cli/__init__.py": BY_TABLE,
    "cli/completion.py": BY_TABLE,
}


def find_dangers(tree: ast.AST) -> Iterator[str]:
    """Yield what could run code or commands of others' making."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            if module in MODULES:
                yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if (module, alias.name) in CALLS)
        elif isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) if name in BUILTINS:
                    yield name
                case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in CALLS:
                    yield f"{owner}.{name}"
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield "shell="


def test_nothing_in_the_package_runs_what_it_is_given() -> None:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        dangers = set(find_dangers(ast.parse(path.read_text(), str(path))))
        if dangers:
            found[path.relative_to(ROOT).as_posix()] = dangers
    assert found == EXPECTED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import os\nos.system('ls')",
        "from os import system",
        "eval('1')",
        "exec(code)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.Popen('ls', shell=flag)",
        "import asyncio\nasyncio.create_subprocess_shell('ls')",
        "__import__('x')",
    ],
)
def test_a_danger_is_found(source: str) -> None:
    assert list(find_dangers(ast.parse(source)))
