"""Draws mutants: small wrong changes of the product, spread over its lines.

A line of code is drawn uniformly, then one of the operators that apply to it. A mutant is a patch of one file, so every
process that a test starts runs it too. Messages of errors and logs, annotations and type checking blocks are left alone.
"""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip
_LOGGERS = frozenset({"_log", "log", "logger", "_logger", "LOG", "warnings"})


class Mutant(NamedTuple):
    """One wrong change. ``path`` is relative to the root of the tree; ``patch`` is a unified diff that ``git apply``
    takes."""

    name: str
    path: str
    line: int
    patch: str


class _Change(NamedTuple):
    """Replace the source of ``node`` by ``text``."""

    operator: str
    node: ast.AST
    text: str


def draw(root: Path, folders: list[str], count: int, seed: int) -> list[Mutant]:
    """``count`` different mutants of the modules below ``folders``. The same tree and seed give the same mutants."""
    sources = {
        str(path.relative_to(root)): path.read_text("utf-8")
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    }
    changes = {path: _changes(ast.parse(source)) for path, source in sources.items()}
    lines = [(path, line) for path, source in sources.items() for line in _code_lines(source)]
    drawn: dict[str, Mutant] = {}
    chance = random.Random(seed)
    while len(drawn) < count:
        path, line = chance.choice(lines)
        if choices := changes[path].get(line):
            mutant = _mutant(path, sources[path], chance.choice(choices))
            if mutant is not None:
                drawn.setdefault(mutant.name, mutant)
    return list(drawn.values())


def _code_lines(source: str) -> Iterator[int]:
    """Numbers of the lines that hold code: not blank, no comment, not in a docstring."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#") and number not in texts:
            yield number


def _changes(tree: ast.Module) -> dict[int, list[_Change]]:
    changes: dict[int, list[_Change]] = {}
    for node in _mutable(tree):
        for change in _of(node):
            changes.setdefault(change.node.lineno, []).append(change)  # type: ignore[attr-defined]
    return changes


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes except annotations, texts for people, and code for type checkers only."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Import() | ast.ImportFrom():
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in _LOGGERS:
            return
        case ast.Raise():
            yield node
            return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _mutable(child)


def _of(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=[first, *others], comparators=comparators) if type(first) in _COMPARED:
            wrong = ast.Compare(left, [_COMPARED[type(first)](), *others], comparators)
            yield _Change("compare", node, f"({ast.unparse(wrong)})")
        case ast.BoolOp(op=op, values=values):
            wrong_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield _Change("and-or", node, f"({ast.unparse(ast.BoolOp(wrong_op, values))})")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _Change("not", node, f"({ast.unparse(operand)})")
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield _Change("condition", test, f"(not ({ast.unparse(test)}))")
        case ast.comprehension(ifs=[condition, *_]):
            yield _Change("filter", condition, "True")
        case ast.Constant(value=bool() as value):
            yield _Change("constant", node, str(not value))
        case ast.Constant(value=int() as value):
            yield _Change("constant", node, f"({value + 1})")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC and not _is_text(left, right):
            yield _Change("arithmetic", node, f"({ast.unparse(ast.BinOp(left, _ARITHMETIC[type(op)](), right))})")
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield _Change("no-call", node, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield _Change("no-assignment", node, "pass")
        case ast.Return(value=value) if value is not None and not (isinstance(value, ast.Constant) and not value.value):
            yield _Change("return", node, "return None")
        case ast.Break():
            yield _Change("loop", node, "continue")
        case ast.Continue():
            yield _Change("loop", node, "break")
        case ast.Raise():
            yield _Change("no-raise", node, "pass")


def _is_text(*operands: ast.AST) -> bool:
    return any(
        isinstance(operand, ast.JoinedStr) or (isinstance(operand, ast.Constant) and isinstance(operand.value, str))
        for operand in operands
    )


def _mutant(path: str, source: str, change: _Change) -> Mutant | None:
    """The mutant; None if the changed module does not compile, for example with a ``continue`` after a loop."""
    node: ast.expr = change.node  # type: ignore[assignment]
    lines = source.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    changed = lines[first][: node.col_offset] + change.text.encode() + lines[last][node.end_col_offset :]
    new = b"".join((*lines[:first], changed, *lines[last + 1 :])).decode()
    try:
        compile(new, path, "exec")
    except SyntaxError:
        return None
    patch = difflib.unified_diff(source.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}", n=2)
    name = f"{path}:{node.lineno}:{node.col_offset} {change.operator}"
    return Mutant(name, path, node.lineno, "".join(patch))
