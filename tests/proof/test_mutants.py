"""The generator of mutants, and the list of those that nobody can see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.mutants.__main__ import MODULES, PACKAGE, all_mutants
from tests.proof.mutants.equivalent import key_of, reasons
from tests.proof.mutants.generate import Mutant, mutants_of
from tests.proof.mutants.running import BUDGET, Reach

CHANGES = {
    "if a < b: f()": ["if (a <= b): f()", "if a < b: pass"],
    "x = a and b": ["x = (a or b)", "x = (b)", "x = (a)"],
    "x = not a": ["x = (a)"],
    "x = a + 1": ["x = (a - 1)", "x = a + (2)"],
    "x = min(a)": ["x = (max(a))"],
    "x = b if a else c": ["x = b if (not a) else c"],
    "x = [a for a in b if a]": ["x = [a for a in b if (not a)]"],
    "self.x = True": ["pass", "self.x = (False)"],
    "def f(a: int = 1) -> int: return a": [
        "def f(a: int = (2)) -> int: return a",
        "def f(a: int = 1) -> int: return None",
    ],
    "while a: break": ["while (not a): break", "while a: continue"],
    "if a: raise E": ["if (not a): raise E", "if a: pass"],
    "x = 'é' and a is b": ["x = ('é' or a is b)", "x = (a is b)", "x = ('é')", "x = 'é' and (a is not b)"],
}
ALONE = (
    '"""Text."""',
    "assert a < b",
    "_log.info('x')",
    "import a",
    "x = f'{a + 1}'",
    "x: Literal[1]",
    "@f(1)\ndef g(): ...",
    "def __repr__(self): return 1",
    "return_ = None",
)


@pytest.mark.parametrize("source", CHANGES)
def test_each_change_is_made_alone(source: str) -> None:
    assert [mutant.source for mutant in mutants_of("x.py", source)] == CHANGES[source]


@pytest.mark.parametrize("source", ALONE)
def test_what_no_test_can_see_stays(source: str) -> None:
    assert list(mutants_of("x.py", source)) == []


def test_a_mutant_is_shown_as_a_change_of_a_line() -> None:
    (mutant,) = mutants_of("core/x.py", "def f():\n    x = not (\n        a)\n")
    assert str(mutant) == "core/x.py:2\n    - x = not (\n    - a)\n    + x = (a)"


def test_the_tests_of_its_line_run_on_a_mutant_its_own_file_first() -> None:
    seconds = {"test_a.py::slow": 1.0, "test_a.py::fast": 0.1, "test_x.py::own": 2.0, "test_b.py::long": BUDGET}
    reach = Reach(seconds, {"core/x.py": {"1": [0, 1, 2, 3], "7": [1]}})
    mutant = Mutant("core/x.py", 1, "a", "b", "")
    assert reach.tests_of(mutant) == ["test_x.py::own", "test_a.py::fast", "test_a.py::slow"]
    assert reach.tests_of(mutant._replace(line=7)) == ["test_a.py::fast"]
    assert len(reach.tests_of(mutant._replace(line=9))) == 3, "a line that runs at import belongs to the whole module"
    assert reach.tests_of(mutant._replace(file="core/y.py")) == []


def test_every_part_has_mutants() -> None:
    for module in MODULES:
        assert next(all_mutants((module,)), None) is not None, module


def test_what_is_listed_as_equivalent_is_a_mutant_with_a_reason() -> None:
    listed = reasons()
    files = tuple({file for file, _, _ in listed})
    found = {key_of(mutant) for mutant in all_mutants(files)} if files else set()
    assert sorted(set(listed) - found) == []
    assert all(len(why.split()) > 3 for why in listed.values())
    assert all(Path(PACKAGE, file).exists() for file in files)
