"""Gives the names and literals of a predicate's text the types of the columns.

Law: names are found as Spark finds them, without regard to capitals; of two that differ in nothing else none is meant.
A predicate that is bound has an answer for every row; whatever could not is refused here, before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import BooleanType, DataType, StructType

from bookspark.errors import ConfigurationError
from bookspark.spark.where import grammar
from bookspark.spark.where.grammar import Column, Literal, Node, Of
from bookspark.spark.where.literals import Beside, Meant, beside, is_plain_string, range_of
from bookspark.spark.where.predicates import All, Any, AnyOf, Compared, Constant, IsNull, Likes, Not, Predicate
from bookspark.spark.where.tokens import unsupported


def bound(node: Node, schema: StructType) -> Predicate:
    """The predicate over rows of ``schema``. Raises ConfigurationError."""
    return _Binder({field.name: field.dataType for field in schema}).predicate(node)


class _Binder:
    def __init__(self, types: Mapping[str, DataType]) -> None:
        self._types = types

    def predicate(self, node: Node) -> Predicate:
        match node:
            case Column():
                name, kind = self._column(node)
                if not isinstance(kind, BooleanType):
                    raise unsupported(f"column {name!r}, of type {kind.simpleString()}, alone", node.at)
                return Compared(name, "=", 1)
            case Literal():
                if node.of not in (Of.BOOLEAN, Of.NULL):
                    raise unsupported(f"{node.of.value} alone", node.at)
                return Constant(None if node.of is Of.NULL else node.value is True)
            case grammar.IsNull():
                return IsNull(self._column(node.column)[0])
            case grammar.Like():
                return self._like(node)
            case grammar.Comparison():
                return self._comparison(node)
            case grammar.InList():
                return self._in_list(node)
            case grammar.Not():
                return Not(self.predicate(node.part))
            case grammar.And():
                return All(tuple(self.predicate(part) for part in node.parts))
            case grammar.Or():
                return Any(tuple(self.predicate(part) for part in node.parts))

    def _column(self, column: Column) -> tuple[str, DataType]:
        alike = [name for name in self._types if name.lower() == column.name.lower()]
        if len(alike) != 1:
            what = f"{len(alike)} columns are called" if alike else "no column is called"
            raise ConfigurationError(f"option where: {what} {column.name!r}; the columns are {', '.join(self._types)}")
        return alike[0], self._types[alike[0]]

    def _comparison(self, node: grammar.Comparison) -> Predicate:
        name, kind = self._column(node.column)
        found = beside(node.column, kind, [node.literal])
        (meant,) = found.meant
        if node.op == "<=>":
            return IsNull(name) if meant is None else All((Not(IsNull(name)), _compared(name, "=", meant, kind, found)))
        if meant is None:
            return Constant(None)
        if node.op == "!=":
            return Not(_compared(name, "=", meant, kind, found))
        return _compared(name, node.op, meant, kind, found)

    def _in_list(self, node: grammar.InList) -> Predicate:
        name, kind = self._column(node.column)
        found = beside(node.column, kind, node.literals)
        values = [one.value for one in found.meant if one is not None and one.exactly and _fits(one, kind, found)]
        # An empty list is false, or unknown where the column is null.
        there = AnyOf(name, tuple(dict.fromkeys(values)), found.as_double)
        return Any((there, Constant(None))) if None in found.meant else there

    def _like(self, node: grammar.Like) -> Predicate:
        name, kind = self._column(node.column)
        pattern = node.pattern
        if not is_plain_string(kind):
            raise unsupported(f"LIKE on {name!r}, of type {kind.simpleString()},", node.column.at)
        if pattern.of is Of.NULL:
            return Constant(None)
        if pattern.of is not Of.STRING:
            raise unsupported(f"LIKE and {pattern.of.value}", pattern.at)
        return Likes(name, str(pattern.value))


def _compared(name: str, op: str, meant: Meant, kind: DataType, found: Beside) -> Predicate:
    """``name op`` a literal, where the literal may lie between two values of the type, or beyond all of them."""
    ends, value = range_of(kind), meant.value
    if ends is not None and not found.as_double:
        assert isinstance(value, int)
        if not meant.exactly:
            if op == "=":
                return AnyOf(name, ())
            # Nothing lies between this value and the literal.
            op = {"<": "<=", ">=": ">"}.get(op, op)
        if not ends[0] <= value <= ends[1]:
            # Every value is on one side of it.
            is_true = op in ("<", "<=") if value > 0 else op in (">", ">=")
            return Not(AnyOf(name, ())) if is_true else AnyOf(name, ())
    return Compared(name, op, value, found.as_double)


def _fits(meant: Meant, kind: DataType, found: Beside) -> bool:
    ends = range_of(kind)
    return ends is None or found.as_double or (isinstance(meant.value, int) and ends[0] <= meant.value <= ends[1])
