"""Make mutants of a source: pure functions over its syntax tree.

Left alone, since nothing that can be tested depends on them: docstrings and messages (all strings), annotations,
decorators, assertions, log calls, and what stands in ``__repr__``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

__all__ = ["Mutant", "mutants_of"]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
SKIPPED_FUNCTIONS = {"__repr__"}
LOGGERS = {"_log", "log", "logger", "logging", "warnings"}


class Mutant(NamedTuple):
    """One change of one file.

    Attributes:
        file: Where, inside the package.
        line: Its first line, from 1.
        before: The lines that change, without what stands around them.
        after: What they become.
        source: The whole changed file.
    """

    file: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        old = "\n".join(f"    - {line}" for line in self.before.splitlines())
        new = "\n".join(f"    + {line}" for line in self.after.splitlines())
        return f"{self.file}:{self.line}\n{old}\n{new}"


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a file that are still Python."""
    seen = set()
    for node, text in _changes(ast.parse(source)):
        mutant = _make(file, source, node, text)
        if mutant.source not in seen:
            seen.add(mutant.source)
            try:
                compile(mutant.source, file, "exec")
            except SyntaxError:
                continue
            yield mutant


def _make(file: str, source: str, node: ast.expr | ast.stmt, text: str) -> Mutant:
    lines = source.splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    before, after = "".join(lines[first : last + 1]), head + text + tail
    whole = "".join([*lines[:first], after, *lines[last + 1 :]])
    return Mutant(file, node.lineno, _dedent(before), _dedent(after), whole)


def _dedent(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield a node and the text that takes its place, for the node and all below it."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.FunctionDef(name=name) if name in SKIPPED_FUNCTIONS:
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in LOGGERS:
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.stmt():
            for text in _other_statements(node):
                yield node, text
        case ast.expr():
            for other in _other_expressions(node):
                yield node, f"({ast.unparse(other)})"
        case _:
            pass
    for condition in _conditions(node):
        if not isinstance(condition, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
            yield condition, f"(not {ast.unparse(condition)})"
    for child in _children(node):
        yield from _changes(child)


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return [test]
        case ast.comprehension(ifs=tests):
            return tests
        case _:
            return []


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may change below a node: neither annotations nor decorators."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list", "type_params"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child


def _other_statements(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Return(value=value) if value is not None and not _is(value, None):
            yield "return None"
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            pass
        case ast.Expr() | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"
        case _:
            pass


def _other_expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                other = copy(node)
                other.ops = [*ops[:place], COMPARISONS[type(op)](), *ops[place + 1 :]]
                yield other
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for place in range(len(values)):
                rest = [*values[:place], *values[place + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in OPPOSITES:
            other_call = copy(node)
            other_call.func = ast.Name(OPPOSITES[name], ast.Load())
            yield other_call
        case _:
            pass


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
