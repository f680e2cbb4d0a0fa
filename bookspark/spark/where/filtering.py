"""Which rows a predicate is true for, by Arrow's kernels.

Law: the rows are those that Spark's own filter keeps, in their order: a row for which the predicate is unknown goes. Doubles are
compared as Spark does it: NaN is equal to itself and greater than every number, and 0.0 is -0.0.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from bookspark.spark.where.predicates import All, Any, AnyOf, Compared, Constant, IsNull, Likes, Not, Plain, Predicate

if TYPE_CHECKING:
    import pyarrow

_KERNELS = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def kept(rows: pyarrow.RecordBatch, predicate: Predicate) -> pyarrow.RecordBatch:
    """The rows of ``rows`` that ``predicate`` is true for."""
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
            values = _plain(rows.column(predicate.column), predicate.as_double)
            truth = getattr(pyarrow.compute, _KERNELS[predicate.op])(values, _scalar(predicate.value, values.type))
            if predicate.op in (">", ">=") and pyarrow.types.is_floating(values.type):
                # No literal is NaN.
                truth = pyarrow.compute.or_(truth, pyarrow.compute.is_nan(values))
            return truth
        case AnyOf():
            return _any_of(_plain(rows.column(predicate.column), predicate.as_double), predicate)


def _any_of(values: pyarrow.Array, predicate: AnyOf) -> pyarrow.BooleanArray:
    import pyarrow
    import pyarrow.compute

    wanted = list(predicate.values)
    if pyarrow.types.is_floating(values.type) and 0.0 in wanted:
        # Arrow looks for the same bits.
        wanted += [0.0, -0.0]
    them = pyarrow.array([_scalar(value, values.type).as_py() for value in wanted], values.type)
    found = pyarrow.compute.is_in(values, value_set=them)
    return pyarrow.compute.if_else(values.is_valid(), found, pyarrow.scalar(None, pyarrow.bool_()))


def _plain(values: pyarrow.Array, as_double: bool) -> pyarrow.Array:
    """The values of a column as ``predicates`` has them."""
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
