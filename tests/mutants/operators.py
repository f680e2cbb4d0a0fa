"""The operators of the mutant harness: from a function, all wrong functions that differ from it in one place.

Law: an operator looks at one place of the syntax tree and returns what could stand there instead. Nothing is written to a file,
and after each mutant the tree is as it was. A mutant's name is made of the function and of the two texts, so it is the same until
the line itself changes. Texts for people (errors, messages) are not changed: no protocol goes wrong by them.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

ANY_VERSION = "mutants_any_version"
"""The name of a version that every compare-and-set takes for the right one (``changing``)."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_QUORUMS = re.compile(r"_?(?:ack_quorum|write_quorum|copies|quorum_coverage)$")
_WATERMARKS = re.compile(
    r"last|first|next|lac|lafr|synced|confirmed|acknowledged|replicated|released|pushed|goal|done|missed|highest|length"
)
_SHIFTED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ANSWERS = {
    "Positive": ("Negative", "Unknown"),
    "Negative": ("Positive", "Unknown"),
    "Unknown": ("Positive", "Negative"),
    "NO_SUCH_ENTRY": ("IN_LIMBO",),
    "NO_SUCH_LEDGER": ("IN_LIMBO",),
    "IN_LIMBO": ("NO_SUCH_ENTRY",),
    "FENCED": ("NO_SUCH_ENTRY",),
}
_MEMBERS = {
    "Verdict": ("PENDING", "PRESENT", "ABSENT", "UNKNOWN"),
    "LedgerState": ("OPEN", "IN_RECOVERY", "CLOSED"),
    "UnknownReason": ("IO_ERROR", "FENCED"),
}


class Place(NamedTuple):
    """A node of a function, and where it hangs. ``acts``: the function returns actions."""

    node: ast.AST
    parent: ast.AST
    field: str
    at: int | None
    acts: bool


class Mutant(NamedTuple):
    """One wrong function. ``first..last`` are the lines of the place; ``tree`` is the module, changed until the next mutant is
    taken."""

    name: str
    function: str
    operator: str
    first: int
    last: int
    tree: ast.Module


class Swap(ast.Pass):
    """Instead of a statement: the next one, ``second``, and then the statement."""

    def __init__(self, second: ast.stmt) -> None:
        super().__init__()
        self.second = second


# -- operators: what may stand in a place


def _guard(place: Place) -> Iterator[ast.AST]:
    """A guard is dropped, always true or never, in whole or in part."""
    node = place.node
    if (place.field == "test" and isinstance(place.parent, ast.If | ast.IfExp)) or place.field == "guard":
        assert isinstance(node, ast.expr)
        if any(isinstance(each, ast.NamedExpr) for each in ast.walk(node)):  # what it names is needed
            yield ast.BoolOp(ast.Or(), [node, ast.Constant(True)])
            yield ast.BoolOp(ast.And(), [node, ast.Constant(False)])
        else:
            yield ast.Constant(True)
            yield ast.Constant(False)
    elif place.field == "ifs":
        yield ast.Constant(True)
    if isinstance(node, ast.BoolOp):
        for at in range(len(node.values)):
            rest = node.values[:at] + node.values[at + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def _comparison(place: Place) -> Iterator[ast.AST]:
    """A comparison is shifted by one, or turned round."""
    if isinstance(node := place.node, ast.Compare):
        for at, op in enumerate(node.ops):
            yield ast.Compare(node.left, [*node.ops[:at], _SHIFTED[type(op)](), *node.ops[at + 1 :]], node.comparators)


def _quorum(place: Place) -> Iterator[ast.AST]:
    """A quorum is one more, or one less."""
    is_target = isinstance(getattr(place.node, "ctx", None), ast.Store)
    if not is_target and place.field != "func" and _QUORUMS.search(named(place.node)):
        yield from _shifted(place.node)


def _action(place: Place) -> Iterator[ast.AST]:
    """An action is dropped, made twice, or changes places with the next one."""
    node = place.node
    if not place.acts:
        return
    if isinstance(node, ast.List) and isinstance(node.ctx, ast.Load):
        of = node.elts
        for at in range(len(of)):
            yield ast.List([*of[:at], *of[at + 1 :]], node.ctx)
            yield ast.List([*of[: at + 1], *of[at:]], node.ctx)
        for at in range(len(of) - 1):
            yield ast.List([*of[:at], of[at + 1], of[at], *of[at + 2 :]], node.ctx)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and not _number(node.left, node.right):
        yield node.left
        yield node.right
        yield ast.BinOp(node.right, node.op, node.left)


def _event(place: Place) -> Iterator[ast.AST]:
    """An event is ignored: the branch that handles it does nothing."""
    if isinstance(node := place.node, ast.match_case):
        nothing = ast.Return(ast.List([], ast.Load())) if place.acts else ast.Pass()
        if ast.unparse(node.body) != ast.unparse(nothing):
            yield ast.match_case(node.pattern, node.guard, [nothing])


def _watermark(place: Place) -> Iterator[ast.AST]:
    """A position in the ledger is one too early, or one too late."""
    node, parent = place.node, place.parent
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            yield left
            return
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=[_, _, *_] as args):
            yield ast.Call(ast.Name("min" if name == "max" else "max", ast.Load()), args, node.keywords)
            if not any(isinstance(arg, ast.Starred) for arg in args):
                yield from args
            return
    match parent:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            if place.field == "value" and _WATERMARKS.search(named(target)) and not _is_no_number(node):
                yield from _shifted(node)
        case ast.Call() if place.field == "args" and isinstance(node, ast.Name | ast.Attribute):
            if _WATERMARKS.search(named(node)):
                yield from _shifted(node)


def _answer(place: Place) -> Iterator[ast.AST]:
    """An answer is of another class: Positive, Negative and Unknown, verdicts, states of the record, reasons."""
    node = place.node
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if place.field != "value" or not isinstance(place.parent, ast.Attribute):
            for other in _ANSWERS.get(name, ()):
                yield ast.Name(other, ast.Load())
        case ast.Attribute(value=ast.Name(id=kind), attr=name) if kind in _MEMBERS:
            for other in _MEMBERS[kind]:
                if other != name:
                    yield ast.Attribute(node.value, other, node.ctx)


def _flag(place: Place) -> Iterator[ast.AST]:
    """A flag is turned: fence, sync, recovery."""
    if isinstance(node := place.node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)


def _compare_and_set(place: Place) -> Iterator[ast.AST]:
    """Metadata is written without compare-and-set."""
    match place.node:
        case ast.Call(func=func, args=[record, _]) if named(func) == "WriteMetadata":
            yield ast.Call(func, [record, ast.Name(ANY_VERSION, ast.Load())], [])


def _step(place: Place) -> Iterator[ast.AST]:
    """A step is left out: a field is not set, a call is not made, a loop is not left."""
    node = place.node
    match node:
        case ast.Assign(targets=targets) if any(
            isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) for one in targets for each in ast.walk(one)
        ):
            return
        case ast.Assign() | ast.AugAssign() | ast.Delete() | ast.Expr(value=ast.Call()) | ast.Break() | ast.Continue():
            yield ast.Pass()


Operators = Mapping[str, Callable[[Place], Iterator[ast.AST]]]
OPERATORS: Operators = {
    "guard": _guard,
    "comparison": _comparison,
    "quorum": _quorum,
    "action": _action,
    "event": _event,
    "watermark": _watermark,
    "answer": _answer,
    "flag": _flag,
    "compare-and-set": _compare_and_set,
    "step": _step,
}


def _shifted(node: ast.AST) -> Iterator[ast.AST]:
    assert isinstance(node, ast.expr)
    yield ast.BinOp(node, ast.Add(), ast.Constant(1))
    yield ast.BinOp(node, ast.Sub(), ast.Constant(1))


def named(node: ast.AST) -> str:
    """The last word of what is named: ``self.a.b`` is b, and so is a call of it. Only what is read has one, and targets."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=func):
            return named(func)
    return ""


def _number(*nodes: ast.AST) -> bool:
    return any(isinstance(node, ast.Constant) for node in nodes)


def _is_no_number(node: ast.AST) -> bool:
    kinds = (
        ast.Tuple,
        ast.List,
        ast.Set,
        ast.Dict,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
        ast.JoinedStr,
    )
    return isinstance(node, kinds) or (isinstance(node, ast.Constant) and type(node.value) is not int)


# -- mutants


def mutants_of(
    source: str, module: str, function: str | None = None, operators: Operators | None = None
) -> Iterator[Mutant]:
    """All mutants of a module's functions, or of one of them. Each one's ``tree`` is good until the next is asked for."""
    tree = ast.parse(source)
    known = _known(tree)
    for qualified, node in functions(tree):
        if function is None or function == qualified:
            yield from _mutants_of(
                node, tree, f"{module}:{qualified}", known, OPERATORS if operators is None else operators
            )


def _mutants_of(
    function: Function, tree: ast.Module, name: str, known: frozenset[str], operators: Operators
) -> Iterator[Mutant]:
    returns = ast.unparse(function.returns) if function.returns else ""
    if returns == "str" or returns.endswith("Error"):
        return
    known |= _names(function)
    seen: dict[str, int] = {}
    for place in list(_places(function, "Action" in returns)):
        for operator, instead in operators.items():
            for new in list(instead(place)):
                if not _names(new) <= known:
                    continue
                where = _located(place)
                if not hasattr(new, "lineno"):
                    ast.copy_location(new, where)
                ast.fix_missing_locations(new)
                wrong = f"{_text(new.second)}; before" if isinstance(new, Swap) else _text(new)
                text = f"{name} {operator}: {_text(place.node)} → {wrong}"
                seen[text] = seen.get(text, 0) + 1
                before = getattr(place.parent, place.field)
                setattr(place.parent, place.field, _with(before, place, new))
                try:
                    again = f" ({seen[text]})" if seen[text] > 1 else ""
                    end = where.end_lineno or where.lineno
                    yield Mutant(text + again, name.rpartition(":")[2], operator, where.lineno, end, tree)
                finally:
                    setattr(place.parent, place.field, before)


def _located(place: Place) -> ast.expr | ast.stmt | ast.pattern | ast.excepthandler:
    """The node, or the part of it that has lines."""
    node = place.node.pattern if isinstance(place.node, ast.match_case) else place.node
    assert isinstance(node, ast.expr | ast.stmt | ast.pattern | ast.excepthandler)
    return node


def _text(node: ast.AST) -> str:
    """On one line; of a block with more than one statement only its head."""
    lines = ast.unparse(node).split("\n")
    is_long = isinstance(node, ast.With | ast.Try | ast.ExceptHandler | ast.If) and len(lines) > 2
    return " ".join((lines[0] or lines[1] if is_long else " ".join(lines)).split())


def _with(before: object, place: Place, new: ast.AST) -> object:
    """The parent's field with ``new`` in the place."""
    if place.at is None:
        return new
    assert isinstance(before, list)
    if isinstance(new, Swap):
        return [*before[: place.at], new.second, place.node, *before[place.at + 2 :]]
    return [*before[: place.at], new, *before[place.at + 1 :]]


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """The functions and methods below a node that are not in a function, by their names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function) and child.name not in ("__repr__", "__str__"):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")


def _places(function: Function, acts: bool) -> Iterator[Place]:
    for at, statement in enumerate(function.body):
        yield from _below(statement, function, "body", at, acts)


def _below(node: ast.AST, parent: ast.AST, field: str, at: int | None, acts: bool) -> Iterator[Place]:
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or field == "annotation":
        return
    if isinstance(node, ast.expr | ast.stmt | ast.pattern | ast.match_case | ast.excepthandler):
        yield Place(node, parent, field, at, acts)
    for name, value in ast.iter_fields(node):
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for place, child in children:
            if isinstance(child, ast.AST):
                yield from _below(child, node, name, place, acts)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.arg for each in ast.walk(node) if isinstance(each, ast.arg)
    }


def _known(tree: ast.Module) -> frozenset[str]:
    """The names that functions of the module can use."""
    names = {ANY_VERSION, *vars(builtins)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=imported) | ast.ImportFrom(names=imported):
                names |= {each.asname or each.name for each in imported}
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                names.add(name)
    return frozenset(names)
