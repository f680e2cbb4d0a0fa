"""The columns and rows of a log that a read wants: binds a predicate to columns, and applies it to rows.

Law: a read gives the wanted columns of those rows for which the predicate is true. The columns of the predicate are read with
them, wanted or not.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bookspark.errors import ConfigurationError
from bookspark.spark.where import grammar
from bookspark.spark.where.choosing import Chooser
from bookspark.spark.where.grammar import Column, Literal, Node, Of, unsupported
from bookspark.spark.where.predicates import All, Any, AnyOf, Compared, Constant, IsNull, Likes, Not, Plain, Predicate

if TYPE_CHECKING:
    import pyarrow


# -- Literals beside a column, as Spark compares the two
#
# Law: a comparison has the answer of Spark, in ANSI mode and without it, in every time zone of a session. Where these answers
# differ, or where Spark would round a decimal, it is refused, and the error says what to write instead.
#
# Whole numbers and decimals are compared exactly. So ``x < 2.5`` is ``x <= 2`` for whole numbers, and a number beyond the range
# of the column makes the comparison a constant. Beside a double, or in a column of floats, both sides are doubles.
#
# Source: ``AnsiTypeCoercion``, ``TypeCoercion`` and ``DecimalPrecision`` of Spark 4.2.


_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_WHOLE_DIGITS = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}
"""Digits of the decimal that Spark makes of a whole number; LongType has one more than its values need."""
_DIGITS_MAX = 38
_EXACT = Context(prec=2 * _DIGITS_MAX)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)(Z|[+-][0-9]{2}:[0-9]{2})?"
)


class Meant(NamedTuple):
    """A literal beside a column: the largest plain value that is not greater, and whether it equals the literal."""

    value: Plain
    exactly: bool = True


class Beside(NamedTuple):
    """Literals for the comparison with a column. A literal NULL has None."""

    meant: tuple[Meant | None, ...]
    as_double: bool = False


def beside(column: Column, kind: DataType, literals: Sequence[Literal]) -> Beside:
    """``literals`` beside a column of type ``kind``, all in one comparison or list of Spark. Raises ConfigurationError."""
    given = [literal for literal in literals if literal.of is not Of.NULL]
    if not given:
        return Beside((None,) * len(literals))
    if not comparable(kind):
        raise unsupported(f"comparing {column.name!r}, of type {kind.simpleString()},", column.at)
    numbers = {literal.of for literal in given} <= {Of.EXACT, Of.DOUBLE}
    if numbers and (type(kind) in _BITS or isinstance(kind, DecimalType)):
        return _whole_or_decimal(column, kind, literals, given)
    if numbers and isinstance(kind, FloatType | DoubleType):
        return Beside(tuple(None if one.of is Of.NULL else Meant(_double(kind, one)) for one in literals), True)
    return Beside(tuple(None if one.of is Of.NULL else Meant(_plain(column, kind, one)) for one in literals))


def comparable(kind: DataType) -> bool:
    """Whether values of this type can be compared with a literal."""
    if isinstance(kind, StringType):
        return is_plain_string(kind)
    others = BooleanType | BinaryType | DateType | TimestampType | TimestampNTZType
    return type(kind) in _BITS or isinstance(kind, DecimalType | FloatType | DoubleType | others)


def is_plain_string(kind: DataType) -> bool:
    """Whether it is a string that is compared by its bytes."""
    return bool(kind == StringType())


def range_of(kind: DataType) -> tuple[int, int] | None:
    """The least and the largest plain value of a whole number or decimal; None for other types."""
    if isinstance(kind, DecimalType):
        largest = int(10**kind.precision) - 1
        return -largest, largest
    bits = _BITS.get(type(kind))
    return None if bits is None else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _whole_or_decimal(column: Column, kind: DataType, literals: Sequence[Literal], given: Sequence[Literal]) -> Beside:
    scale = kind.scale if isinstance(kind, DecimalType) else 0
    if any(one.of is Of.DOUBLE for one in given):
        if isinstance(kind, DecimalType):
            raise unsupported(
                f"comparing {column.name!r}, a decimal, with a double (write a decimal, like 12.5)", given[0].at
            )
        return Beside(tuple(None if one.value is None else Meant(float(one.value)) for one in literals), True)
    before = kind.precision - scale if isinstance(kind, DecimalType) else _WHOLE_DIGITS[type(kind)]
    behind = scale
    for one in given:
        assert isinstance(one.value, Decimal)
        _, digits, exponent = one.value.as_tuple()
        assert isinstance(exponent, int)
        before, behind = max(before, len(digits) + exponent), max(behind, -exponent)
    if before + behind > _DIGITS_MAX:
        raise unsupported(
            f"comparing {column.name!r} with decimals that take more than {_DIGITS_MAX} digits together with it (Spark rounds)",
            given[0].at,
        )

    def meant(one: Literal) -> Meant | None:
        if one.value is None:
            return None
        scaled = _EXACT.scaleb(one.value, scale)  # type: ignore[arg-type]
        floor = scaled.to_integral_value(ROUND_FLOOR)
        return Meant(int(floor), floor == scaled)

    return Beside(tuple(meant(one) for one in literals))


def _double(kind: DataType, literal: Literal) -> float:
    value = float(literal.value)  # type: ignore[arg-type]
    if literal.of is Of.EXACT and isinstance(kind, FloatType):
        assert isinstance(literal.value, Decimal)
        is_whole = literal.value.as_tuple().exponent == 0
        if is_whole and struct.unpack("f", struct.pack("f", min(max(value, -3e38), 3e38)))[0] != literal.value:
            raise unsupported(
                f"comparing a float with {literal.value}, which is no float (write {literal.value}D)", literal.at
            )
    return value


def _plain(column: Column, kind: DataType, literal: Literal) -> Plain:
    value = literal.value
    match kind, literal.of:
        case (BooleanType(), Of.BOOLEAN):
            return int(value is True)
        case (BinaryType(), Of.BINARY):
            assert isinstance(value, bytes)
            return value
        case (StringType(), Of.STRING):
            return str(value)
        case (DateType(), Of.DATE | Of.STRING):
            return _days(str(value), literal)
        case (TimestampType(), Of.TIMESTAMP):
            return _microseconds(str(value), literal, with_zone=True)
        case (TimestampNTZType(), Of.TIMESTAMP_NTZ):
            return _microseconds(str(value), literal, with_zone=False)
    raise unsupported(
        f"comparing {column.name!r}, of type {kind.simpleString()}, with {literal.of.value} (Spark would convert one of them)",
        literal.at,
    )


def _days(text: str, literal: Literal) -> int:
    try:
        if _DATE.fullmatch(text) is None:
            raise ValueError
        return (date.fromisoformat(text) - _EPOCH.date()).days
    except ValueError:
        raise unsupported(f"the date {text!r} (write DATE'2026-01-31')", literal.at) from None


def _microseconds(text: str, literal: Literal, with_zone: bool) -> int:
    try:
        match = _TIME.fullmatch(text)
        if match is None or (match[3] is not None) is not with_zone:
            raise ValueError
        moment = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3] or 'Z'}")
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        example = (
            "TIMESTAMP'2026-01-31 12:00:00Z', with its offset from UTC"
            if with_zone
            else ("TIMESTAMP_NTZ'2026-01-31 12:00:00', without one")
        )
        raise unsupported(f"the timestamp {text!r} (write {example})", literal.at) from None


# -- Rows for which a predicate is true, by Arrow's kernels
#
# Law: the result has the rows that Spark's own filter keeps, in their order: a row for which the predicate is unknown is dropped.
# Doubles are compared as in Spark: NaN equals itself and is greater than every number, and 0.0 equals -0.0.


_KERNELS = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def kept(rows: pyarrow.RecordBatch, predicate: Predicate) -> pyarrow.RecordBatch:
    """The rows of ``rows`` for which ``predicate`` is true."""
    truth = _truth(rows, predicate)
    return rows if truth.true_count == len(truth) else rows.filter(truth)


def _truth(rows: pyarrow.RecordBatch, predicate: Predicate) -> pyarrow.BooleanArray:
    """True, false or null (unknown) for each row."""
    import pyarrow
    import pyarrow.compute

    match predicate:
        case Constant():
            return pyarrow.repeat(pyarrow.scalar(predicate.value, pyarrow.bool_()), rows.num_rows)
        case IsNull():
            return rows.column(predicate.column).is_null()
        case Not():
            return pyarrow.compute.invert(_truth(rows, predicate.part))
        case All() | Any():
            both = pyarrow.compute.and_kleene if isinstance(predicate, All) else pyarrow.compute.or_kleene
            first, *others = (_truth(rows, part) for part in predicate.parts)
            for other in others:
                first = both(first, other)
            return first
        case Likes():
            return pyarrow.compute.match_substring_regex(rows.column(predicate.column), _regex(predicate.pattern))
        case Compared():
            values = _as_double(rows.column(predicate.column), predicate.as_double)
            truth = getattr(pyarrow.compute, _KERNELS[predicate.op])(values, _scalar(predicate.value, values.type))
            if predicate.op in (">", ">=") and pyarrow.types.is_floating(values.type):
                # No literal is NaN.
                truth = pyarrow.compute.or_(truth, pyarrow.compute.is_nan(values))
            return truth
        case AnyOf():
            return _any_of(_as_double(rows.column(predicate.column), predicate.as_double), predicate)


def _any_of(values: pyarrow.Array, predicate: AnyOf) -> pyarrow.BooleanArray:
    import pyarrow
    import pyarrow.compute

    wanted = list(predicate.values)
    if pyarrow.types.is_floating(values.type) and 0.0 in wanted:
        # Arrow's is_in compares bits.
        wanted += [0.0, -0.0]
    them = pyarrow.array([_scalar(value, values.type).as_py() for value in wanted], values.type)
    truth = pyarrow.compute.is_in(values, value_set=them)
    return pyarrow.compute.if_else(values.is_valid(), truth, pyarrow.scalar(None, pyarrow.bool_()))


def _as_double(values: pyarrow.Array, as_double: bool) -> pyarrow.Array:
    """The values of a column in the plain form of ``predicates``."""
    import pyarrow

    kind = values.type
    if as_double:
        return values.cast(pyarrow.float64(), safe=False)
    if pyarrow.types.is_boolean(kind):
        return values.cast(pyarrow.int8())
    if pyarrow.types.is_date32(kind):
        return values.cast(pyarrow.int32())
    return values.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(kind) else values


def _scalar(value: Plain, kind: pyarrow.DataType) -> pyarrow.Scalar:
    import pyarrow

    if pyarrow.types.is_decimal(kind):
        assert isinstance(value, int)
        sign, digits = int(value < 0), tuple(map(int, str(abs(value))))
        return pyarrow.scalar(Decimal((sign, digits, -kind.scale)), kind)
    return pyarrow.scalar(value, kind)


def _regex(pattern: str) -> str:
    """The pattern of LIKE for Arrow's RE2. A line's end is a character like others."""
    parts = (".*" if part == "%" else "." if part == "_" else re.escape(part) for part in re.split("([%_])", pattern))
    return rf"(?s)\A{''.join(parts)}\z"


# -- Binding: names and literals of a predicate's text get the types of the columns
#
# Law: names match as in Spark, without regard to capitals; a name that matches several columns is refused. A bound predicate has
# an answer for every row; all others are refused here, before any row is read.


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
    """``name op`` a literal, where the literal may be between two values of the type, or beyond all of them."""
    ends, value = range_of(kind), meant.value
    if ends is not None and not found.as_double:
        assert isinstance(value, int)
        if not meant.exactly:
            if op == "=":
                return AnyOf(name, ())
            # There is no value of the type between this value and the literal.
            op = {"<": "<=", ">=": ">"}.get(op, op)
        if not ends[0] <= value <= ends[1]:
            # Every value is on one side of it.
            is_true = op in ("<", "<=") if value > 0 else op in (">", ">=")
            return Not(AnyOf(name, ())) if is_true else AnyOf(name, ())
    return Compared(name, op, value, found.as_double)


def _fits(meant: Meant, kind: DataType, found: Beside) -> bool:
    ends = range_of(kind)
    return ends is None or found.as_double or (isinstance(meant.value, int) and ends[0] <= meant.value <= ends[1])


# -- The read


class Wanted:
    """The wanted columns and rows of a read. ``names``: the columns; ``where``: the predicate, None: all rows; ``schema``: all
    columns.

    Raises ConfigurationError if the predicate does not fit to the columns.
    """

    def __init__(self, names: Sequence[str], where: Node | None, schema: StructType) -> None:
        self.names = list(names)
        self._predicate = None if where is None else bound(where, schema)
        others = set() if self._predicate is None else self._predicate.columns.difference(self.names)
        self.names_read = [*self.names, *(name for name in schema.names if name in others)]

    def of(self, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """The wanted columns and rows of ``rows``, which have the columns ``names_read``."""
        if self._predicate is None:
            return rows
        rows = kept(rows, self._predicate)
        return rows if len(self.names) == len(self.names_read) else rows.select(self.names)

    def chooser(self, log: str, schema: StructType, added: Collection[str]) -> Chooser | None:
        """The chooser of rows of ``log``, which has the columns ``schema``, and ``added`` by the read; None: all rows."""
        if self._predicate is None:
            return None
        missing = self._predicate.columns.difference(schema.names).difference(added)
        return Chooser(self._predicate, log, missing, added)
