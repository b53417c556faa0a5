"""Everything that the package stores is read: an attribute that nobody reads is a feature that somebody forgot.

An attribute of ``self`` must be read somewhere; a private one in its own module, or in one that imports it or that it
imports (subclasses). Private functions, classes and constants must be used. Names are compared, not objects, so a name
that two classes share can hide an unused one.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.test_layers import PACKAGE, ROOT, imports_of, modules_in, write

EXEMPT = {
    "sync.torchrun: _server": "holding the store keeps its server running",
}
"""What is stored and rightly never read, with the reason."""

READERS = (ROOT.parent / "tests", ROOT.parent / "examples")
"""Who else may read a public attribute."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


class Names:
    """What one module stores and reads."""

    def __init__(self, tree: ast.Module) -> None:
        self.attributes: dict[str, int] = {}
        """Stored on ``self``, with the first line that does."""
        self.private: dict[str, int] = {}
        """Private functions, classes and constants; one with a decorator counts as used."""
        self.attribute_reads: set[str] = set()
        self.name_reads: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    self.attributes.setdefault(name, node.lineno)
                case ast.Attribute(attr=name, ctx=ast.Load()):
                    self.attribute_reads.add(name)
                case ast.MatchClass(kwd_attrs=names):
                    self.attribute_reads.update(names)
                case ast.Call(args=[_, ast.Constant(value=str(name)), *_]):  # getattr
                    self.attribute_reads.add(name)
                case ast.Name(id=name, ctx=ast.Load()) | ast.alias(name=name):
                    self.name_reads.add(name)
                case (
                    ast.FunctionDef(name=name, decorator_list=[])
                    | ast.AsyncFunctionDef(name=name, decorator_list=[])
                    | ast.ClassDef(name=name, decorator_list=[])
                    | ast.Name(id=name, ctx=ast.Store())
                ) if is_private(name):
                    self.private.setdefault(name, node.lineno)
                case _:
                    pass


def attributes_read_in(root: Path, wanted: set[str]) -> set[str]:
    """Return those of some attributes that the modules of a folder read; only modules that name one are parsed."""
    texts = (path.read_text() for path in root.rglob("*.py"))
    trees = (ast.parse(text) for text in texts if any(name in text for name in wanted))
    return wanted & set().union(*(Names(tree).attribute_reads for tree in trees))


def find_unused(root: Path, *readers: Path) -> dict[str, str]:
    """Return what is stored and never read: ``module: name``, and where it is."""
    trees = dict(modules_in(root))
    modules = {module: Names(tree) for module, tree in trees.items()}
    near = {module: set(names.attribute_reads) for module, names in modules.items()}
    for module, tree in trees.items():
        is_package = (root / module.replace(".", "/")).is_dir()
        for _, imported in imports_of(tree, module, is_package):
            origin = imported.removeprefix(f"{PACKAGE}.").rpartition(".")[0]
            if origin in modules:
                near[origin] |= modules[module].attribute_reads
                near[module] |= modules[origin].attribute_reads
    inside = set().union(*(names.attribute_reads for names in modules.values()))
    undecided = {name for names in modules.values() for name in names.attributes if not is_private(name)} - inside
    public = inside.union(*(attributes_read_in(reader, undecided) for reader in readers))
    used = inside.union(*(names.name_reads for names in modules.values()))
    unused = {}
    for module, names in modules.items():
        for name, line in names.attributes.items():
            if name not in (near[module] if is_private(name) else public):
                unused[f"{module}: {name}"] = f"line {line}"
        for name, line in names.private.items():
            if name not in used:
                unused[f"{module}: {name}"] = f"line {line}"
    return unused


def test_everything_stored_is_read() -> None:
    unused = find_unused(ROOT, *READERS)
    assert {name: where for name, where in unused.items() if name not in EXEMPT} == {}
    assert unused.keys() >= EXEMPT.keys(), "an exemption that nothing needs"


CLASS = "class Block:\n    def __init__(self, *changes):\n        "
UNUSED = {
    "an attribute": (CLASS + "self._changes = changes", "_changes"),
    "an attribute with a type": (CLASS + "self._changes: tuple = changes", "_changes"),
    "a public attribute": (CLASS + "self.changes = changes", "changes"),
    "a counter": (CLASS + "self._count = 0\n    def more(self):\n        self._count += 1", "_count"),
    "an attribute that is deleted": (CLASS + "self._gone = 0\n    def end(self):\n        del self._gone", "_gone"),
    "a method": ("class Block:\n    def _act(self):\n        pass", "_act"),
    "a function": ("async def _act():\n    pass", "_act"),
    "a constant": ("_LIMIT = 3", "_LIMIT"),
    "a slot": (
        "class Block:\n    __slots__ = ('_changes',)\n    def __init__(self):\n        self._changes = 1",
        "_changes",
    ),
}


@pytest.mark.parametrize("what", UNUSED)
def test_an_unused_name_is_found(what: str, tmp_path: Path) -> None:
    text, name = UNUSED[what]
    write(tmp_path, "world.py", text)
    assert list(find_unused(tmp_path)) == [f"world: {name}"]


def test_an_attribute_of_the_same_name_in_an_unrelated_module_is_no_use(tmp_path: Path) -> None:
    write(tmp_path, "world.py", CLASS + "self._changes = changes")
    write(tmp_path, "log.py", CLASS + "self._changes = changes\n        print(self._changes)")
    assert list(find_unused(tmp_path)) == ["world: _changes"]


def test_what_is_used_is_not_reported(tmp_path: Path) -> None:
    for file, text in {
        "base.py": CLASS + "self._changes = changes\n    def run(self):\n        self._hook()",
        "world.py": f"from {PACKAGE}.base import Block\nclass Mine(Block):\n    def _hook(self):\n"
        "        self._changes.pop()",
        "match.py": CLASS + "self.kind = changes\n    def __eq__(self, other):\n        match other:\n"
        "            case Block(kind=3): pass",
        "exit.py": "import atexit\n@atexit.register\ndef _end(): pass",
        "names.py": CLASS + "self.name = getattr(changes, 'size')\n        self.size = self.name",
    }.items():
        write(tmp_path, file, text)
    assert find_unused(tmp_path) == {}
