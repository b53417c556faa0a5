"""The import rules of the package, read from its source: who may import whom, and that the core is pure.

``LAYERS`` is the table to change when a module is added: a module imports only from layers before its own, or from
inside its own package. ``find_violations`` is tested on made-up packages, so that its silence means something.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from statistics import median

import pytest

PACKAGE = "rendezvous_async"
ROOT = Path(__file__).parents[1] / PACKAGE

LAYERS: tuple[tuple[str, ...], ...] = (
    ("texts", "logs", "causes"),
    ("sizes",),
    ("errors", "settings"),
    ("aio",),
    ("core", "backends"),
    ("admin",),
    ("runs",),
    ("node.events", "node.addresses", "node.goodbye"),
    ("telemetry",),
    ("node.view", "node.participant"),
    ("node.keep_alive", "node.translation"),
    ("node.coordinator", "node.store"),
    ("node.membership",),
    ("node.world", "node.supervisor"),
    ("node.rendezvous",),
    ("node.connect",),
    ("node",),
    ("__init__",),
    ("page", "launch", "sync"),
    ("testing",),
    ("cli", "pytest_plugin"),
    ("__main__",),
)
"""From the inside out; an entry imports only from layers before its own, or from inside itself.

``admin`` comes before ``node``: it needs only a backend and the core, and a node's ``close()`` calls it.
``rdzv simulate`` needs testing, so the command comes last.
"""

STRANGERS = (("backends.tcp.client", "backends.tcp.server"),)
"""Parts that know each other only by what both import."""

LONGEST = 400
"""Lines of a module; a longer one has a second idea in it."""

OWNERS = {
    "aetcd": ("backends.etcd",),
    "grpc": ("backends.etcd",),
    "torch": ("sync.torchrun",),
    "rich": ("cli",),
    "shtab": ("cli",),
    "h11": ("page",),
    "prometheus_client": ("page", "telemetry.metrics"),
    "opentelemetry": ("telemetry.spans",),
}
"""Packages that only one part may import, since they are heavy, or not there at all."""

PURE = (
    "core", "backends.table.table", "backends.table.fanout", "backends.table.answers", "backends.observer",
    "backends.cas.image", "backends.tcp.wire",
    "backends.tcp.versions", "errors",
    "settings", "sizes", "texts", "logs", "causes",
)  # fmt: skip
"""Values and functions only: no I/O, no clock, no logging, no randomness, nothing to wait for."""

PURE_IMPORTS = {
    "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "heapq",
    "itertools", "json", "math", "msgspec", "operator", "re", "string", "struct", "textwrap", "types", "typing", "zlib",
}  # fmt: skip
PURE_SUBMODULES = {"urllib.parse"}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__", "id", "hash"}
"""The last two differ from process to process."""


def modules_in(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield every module by its name relative to the package, with its syntax tree."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        yield name, ast.parse(path.read_text(), str(path))


def imports_of(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute name of all that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                inside = [PACKAGE, *([] if module == "__init__" else module.split("."))]
                depth = len(inside) - node.level + (1 if is_package else 0)
                origin = ".".join([*inside[:depth], *([origin] if origin else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def entry_of(module: str) -> tuple[int, str] | None:
    """Return the place of a module in ``LAYERS``, and the longest entry there that it is within."""
    found = [(place, part) for place, parts in enumerate(LAYERS) for part in parts if within(module, part)]
    return max(found, key=lambda entry: len(entry[1]), default=None)


def find_violations(root: Path) -> list[str]:
    """Return what breaks the rules, one line each."""
    found = []
    trees = dict(modules_in(root))
    packages = {module for module in trees if module == "__init__" or (root / module.replace(".", "/")).is_dir()}
    for module, tree in trees.items():
        entry = entry_of(module)
        if entry is None:
            found.append(f"{module}: in no layer; give it a place in LAYERS")
            continue
        pure = any(within(module, part) for part in PURE)
        for line, name in imports_of(tree, module, module in packages):
            top = name.split(".")[0]
            if top == PACKAGE:
                target = name.removeprefix(PACKAGE).removeprefix(".") or "__init__"
                # A name that is no module is one of the package itself: rendezvous_async.connect
                there = entry_of(target) or entry_of("__init__")
                assert there is not None
                if not within(entry[1], there[1]) and there[0] >= entry[0]:
                    found.append(f"{module}:{line}: imports {target}, which is not further inside")
                elif any(within(module, a) and within(target, b) for pair in STRANGERS for a, b in permutations(pair)):
                    found.append(f"{module}:{line}: imports {target}, which it must know only by what both import")
            elif top in OWNERS and not any(within(module, owner) for owner in OWNERS[top]):
                found.append(f"{module}:{line}: imports {top}, which belongs to {', '.join(OWNERS[top])}")
            elif pure and top not in PURE_IMPORTS and not any(within(name, sub) for sub in PURE_SUBMODULES):
                found.append(f"{module}:{line}: is pure, and imports {name}")
        if pure:
            found.extend(f"{module}:{line}: is pure, and has {what}" for line, what in impurities_of(tree))
    return found


def impurities_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what a pure module must not have, apart from imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield node.lineno, f"a call of {name}()"
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield node.lineno, "something to wait for"
            case ast.Global():
                yield node.lineno, "a global variable that changes"
            case _:
                pass


def test_the_package_keeps_the_rules() -> None:
    assert find_violations(ROOT) == []


def test_what_exists_is_looked_at() -> None:
    """The rules are not kept because nothing was found."""
    names = {name for name, _ in modules_in(ROOT)}
    assert {"__init__", "errors", "backends", "backends.base", "backends.table.table", "testing.loop.clock"} <= names
    assert sum(1 for name, tree in modules_in(ROOT) for _ in imports_of(tree, name, False)) > 100


def test_modules_are_short() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}
    assert median(lines.values()) < 180


VIOLATIONS = {
    "core imports backends": ("core/rules.py", "from rendezvous_async.backends.base import Token"),
    "backends import core": ("backends/tcp/server.py", "from rendezvous_async.core import state"),
    "relative import out of core": ("core/rules.py", "from ..backends import base"),
    "relative import from a package": ("core/__init__.py", "from ..backends.base import Token"),
    "an import inside a function": (
        "core/rules.py",
        "def f():\n    from rendezvous_async.node.rendezvous import connect",
    ),
    "settings import core": ("settings.py", "import rendezvous_async.core.state"),
    "coordinator imports the rendezvous": ("node/coordinator.py", "from rendezvous_async.node import rendezvous"),
    "store and coordinator": ("node/store.py", "from rendezvous_async.node.coordinator import run"),
    "a node imports sync": ("node/rendezvous.py", "from rendezvous_async import sync"),
    "a node imports the package": ("node/rendezvous.py", "from rendezvous_async import connect"),
    "sync imports the page": ("sync/handler.py", "import rendezvous_async.page.http"),
    "something imports testing": ("sync/handler.py", "from rendezvous_async.testing import run"),
    "the package imports the cli": ("__init__.py", "from rendezvous_async.cli import main"),
    "a module without a layer": ("utils.py", ""),
    "grpc outside of etcd": ("backends/tcp/client.py", "import grpc.aio"),
    "aetcd under a name like etcd": ("backends/etcd_tools.py", "from aetcd import rpc"),
    "torch outside of torchrun": ("sync/store.py", "import torch.distributed"),
    "rich outside of the cli": ("node/rendezvous.py", "from rich import print"),
    "h11 outside of the page": ("backends/tcp/client.py", "import h11"),
    "prometheus outside of the page": ("backends/tcp/server.py", "from prometheus_client import Counter"),
    "a client imports the server": (
        "backends/tcp/client/link.py",
        "from rendezvous_async.backends.tcp.server.limits import Limits",
    ),
    "the server imports a client": (
        "backends/tcp/server/server.py",
        "from rendezvous_async.backends.tcp.client import link",
    ),
    "the launcher imports the cli": ("launch/launcher.py", "from rendezvous_async.cli.terminal import Terminal"),
    "the page imports the cli": ("page/site.py", "from rendezvous_async.cli.exits import Exit"),
    "core imports anyio": ("core/rules.py", "import anyio"),
    "core imports asyncio": ("core/rules.py", "from asyncio import sleep"),
    "core imports time": ("core/rules.py", "import time"),
    "core imports random": ("core/ranks.py", "from random import Random"),
    "core imports logging": ("core/diagnosis.py", "import logging"),
    "core imports os": ("core/codec.py", "import os.path"),
    "core imports socket": ("core/codec.py", "import socket"),
    "core imports pathlib": ("core/codec.py", "from pathlib import Path"),
    "core imports datetime": ("core/codec.py", "import datetime"),
    "core imports urllib.request": ("core/codec.py", "import urllib.request"),
    "core imports pickle": ("core/codec.py", "import pickle"),
    "core opens a file": ("core/codec.py", "data = open('x')"),
    "core prints": ("core/rules.py", "def f():\n    print('x')"),
    "core depends on hashes": ("core/ranks.py", "order = hash('x')"),
    "core waits": ("core/rules.py", "async def f():\n    pass"),
    "core has globals": ("core/rules.py", "def f():\n    global x"),
    "the table imports a clock": ("backends/table/table.py", "from time import monotonic"),
    "the wire imports asyncio": ("backends/tcp/wire.py", "import asyncio"),
}


@pytest.mark.parametrize("what", VIOLATIONS)
def test_a_violation_is_found(what: str, tmp_path: Path) -> None:
    file, text = VIOLATIONS[what]
    write(tmp_path, file, f"from __future__ import annotations\n{text}\n")
    (violation,) = find_violations(tmp_path)
    assert violation.startswith(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def write(root: Path, file: str, text: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_is_allowed_is_not_flagged(tmp_path: Path) -> None:
    for file, text in {
        "__init__.py": "from rendezvous_async.node.rendezvous import connect",
        "core/rules.py": "import math\nfrom collections.abc import Iterable\nfrom rendezvous_async.core import state",
        "core/state.py": "from urllib.parse import quote\nimport msgspec\nfrom . import ranks\nfrom .. import settings",
        "core/ranks.py": "from rendezvous_async.errors import RendezvousError",
        "backends/__init__.py": "from .base import Backend\nfrom rendezvous_async.settings import Endpoint",
        "backends/etcd.py": "import grpc\nfrom aetcd import rpc",
        "backends/etcd/watch.py": "from grpc.aio import Call\nfrom rendezvous_async.backends.etcd import channel",
        "node/rendezvous.py": "import anyio\nfrom ..core import rules\nimport rendezvous_async.backends.base",
        "sync/torchrun.py": "import torch\nfrom rendezvous_async import sync, connect",
        "testing/cluster.py": "import rendezvous_async as rdzv\nfrom rendezvous_async.testing.loop.clock import run",
        "cli/simulate.py": "from rendezvous_async.testing.simulate import main\nfrom rich.table import Table",
        "__main__.py": "from rendezvous_async.cli import main",
    }.items():
        write(tmp_path, file, text)
    assert find_violations(tmp_path) == []


def test_the_import_is_light() -> None:
    """Whoever only imports the package pays for none of the heavy parts."""
    heavy = [*OWNERS, "asyncio", "anyio", "pytest", "hypothesis", f"{PACKAGE}.testing"]
    code = f"import sys, {PACKAGE}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
