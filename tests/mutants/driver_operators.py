"""The operators for drivers: what goes wrong between a decision and files, sockets, threads and clocks.

Law: that of ``operators``. A driver is wrong where it does not do what was decided: a sync left out, an error swallowed or passed
on, a lock not held, a wait without a deadline, a task that nobody awaits, two steps in the other order. What is logged, and
what is counted for metrics, is for people: it is not changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.mutants.operators import OPERATORS, Operators, Place, Swap, named

_LOCKS = re.compile(r"lock$|^_?(?:alone|held_alone|noting|learning|calling|changed|condition|watching)$")
_SYNCS = re.compile(r"sync|^(?:_?make_durable|_leave_log)$")
_RELEASES = re.compile(r"^_?(?:release|unlock|cancel|notify|notify_all)$")
_DEADLINES = re.compile(r"timeout|deadline|patience")
_FOREVER = 1e6
"""Seconds. Longer than any test waits."""
_TEXTS = frozenset(("log", "logging", "warnings"))
_FIGURES = re.compile(r"\b_?(?:traffic|figures|metrics|observe|lately)\b")
_STATUSES = {
    "OK": ("IO_ERROR",),
    "NO_SUCH_ENTRY": ("LIMBO",),
    "NO_SUCH_LEDGER": ("LIMBO",),
    "FENCED": ("OK", "NO_SUCH_ENTRY"),
    "LOST": ("NO_SUCH_ENTRY",),
    "LIMBO": ("NO_SUCH_ENTRY",),
    "IO_ERROR": ("OK", "NO_SUCH_ENTRY"),
    "UNAUTHORIZED": ("OK",),
    "CONFLICT": ("OK",),
    "READ_ONLY": ("OK",),
}
"""What is denied instead of Unknown, and acknowledged instead of refused."""


def _sync(place: Place) -> Iterator[ast.AST]:
    """A sync is left out."""
    if (called := _called(place.node)) is not None and _SYNCS.search(called):
        yield ast.Pass()


def _exception(place: Place) -> Iterator[ast.AST]:
    """An error is swallowed where it was handled, or passed on; what is done in any case is not done."""
    node = place.node
    match node:
        case ast.ExceptHandler(type=kind, name=name, body=body):
            if not all(isinstance(each, ast.Pass) or _is_text(each) for each in body):
                yield ast.ExceptHandler(kind, name, [ast.Pass()])
            if not isinstance(body[0], ast.Raise):
                yield ast.ExceptHandler(kind, name, [ast.Raise()])
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=[_, *_]):
            if handlers:
                yield ast.Try(body, handlers, orelse, [])
            else:
                yield _block([*body, *orelse])
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=func))], body=body) if named(func) == "suppress":
            yield _block(body)


def _lock(place: Place) -> Iterator[ast.AST]:
    """A lock is not held, or not released."""
    node = place.node
    match node:
        case ast.With(items=items, body=body):
            for at, item in enumerate(items):
                if _LOCKS.search(named(item.context_expr)):
                    rest = items[:at] + items[at + 1 :]
                    yield ast.With(rest, body) if rest else _block(body)
    if (called := _called(node)) is not None and _RELEASES.search(called):
        yield ast.Pass()


def _deadline(place: Place) -> Iterator[ast.AST]:
    """A wait has no deadline."""
    node = place.node
    if isinstance(getattr(node, "ctx", None), ast.Store) or isinstance(node, ast.Constant):
        return
    match place.parent:
        case ast.keyword(arg=str(name)) if _DEADLINES.search(name):
            yield ast.Constant(_FOREVER)
        case ast.Call() if place.field == "args" and _DEADLINES.search(named(node).lower()):
            yield ast.Constant(_FOREVER)


def _await(place: Place) -> Iterator[ast.AST]:
    """What is awaited is not done, or what is to be done in steps."""
    if isinstance(node := place.node, ast.Expr) and isinstance(node.value, ast.Await | ast.YieldFrom):
        yield ast.Expr(ast.Yield()) if isinstance(node.value, ast.YieldFrom) else ast.Pass()


def _order(place: Place) -> Iterator[ast.AST]:
    """Two steps that stand next to each other change places: this one comes after the next."""
    if place.at is None or place.field not in ("body", "orelse", "finalbody"):
        return
    following = getattr(place.parent, place.field)[place.at + 1 :]
    # Of two fields that are set, the order is nobody's.
    steps = [place.node, *following[:1]]
    if len(steps) == 2 and all(map(_is_step, steps)) and any(isinstance(step, ast.Expr) for step in steps):
        yield Swap(following[0])


def _status(place: Place) -> Iterator[ast.AST]:
    """Something is denied, refused or acknowledged that was not."""
    match place.node:
        case ast.Attribute(value=ast.Name(id="Status") as kind, attr=name, ctx=ctx):
            for other in _STATUSES.get(name, ()):
                yield ast.Attribute(kind, other, ctx)


def _step(place: Place) -> Iterator[ast.AST]:
    """A step is left out, if no other operator does that."""
    node = place.node
    called = _called(node)
    if not _is_text(node) and (called is None or not (_SYNCS.search(called) or _RELEASES.search(called))):
        yield from OPERATORS["step"](place)


def _called(node: ast.AST) -> str | None:
    """The name of what a statement calls, and does nothing else."""
    if isinstance(node, ast.Expr):
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        return named(called.func) if isinstance(called, ast.Call) else None
    return None


def _is_text(node: ast.AST) -> bool:
    """Is it for people only?"""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in _TEXTS:
            return True
        case ast.Expr(value=ast.Call(func=of)) | ast.AugAssign(target=of):
            return _FIGURES.search(ast.unparse(of)) is not None
    return False


def _is_step(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await() | ast.YieldFrom()):
            return not _is_text(node)
        case (
            ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AugAssign(target=ast.Attribute())
            | ast.Delete()
        ):
            return True
    return False


def _block(body: list[ast.stmt]) -> ast.stmt:
    return ast.If(ast.Constant(True), body, [])


DRIVER_OPERATORS: Operators = {
    **{name: OPERATORS[name] for name in ("guard", "comparison", "quorum", "event", "watermark", "answer", "flag")},
    "step": _step,
    "sync": _sync,
    "exception": _exception,
    "lock": _lock,
    "deadline": _deadline,
    "await": _await,
    "order": _order,
    "status": _status,
}
