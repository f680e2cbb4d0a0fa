"""Bounds of the columns of Arrow batches, for what commits tell of their rows (``logs.rows.statistics``).

Law: bounds are of the values as they were written, or wider. Columns of types that have no bounds tell their nulls alone, if
somebody asks for them. A block with NaN, which is greater than every number, has no upper bound; one of NaN alone has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bookspark.logs.rows.statistics import Block, Bounds, high_bytes, high_text, low_bytes, low_text

if TYPE_CHECKING:
    import pyarrow

COLUMNS_MAX = 16
"""Of how many columns commits tell if nobody says of which: the first ones that have bounds."""


def columns_told(schema: pyarrow.Schema, wanted: Sequence[str] | None) -> list[str]:
    """The names of the columns of which commits tell. ``wanted``: those that were asked for; None if nobody asked."""
    if wanted is not None:
        return list(wanted)
    return [field.name for field in schema if _has_bounds(field.type)][:COLUMNS_MAX]


def block_of(rows: pyarrow.Table, columns: Sequence[str]) -> Block:
    """What is known of ``rows``."""
    return Block(rows.num_rows, tuple(_bounds(rows.column(name)) for name in columns))


def _has_bounds(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    if types.is_decimal(kind) or types.is_boolean(kind) or types.is_floating(kind) or types.is_signed_integer(kind):
        return True
    return types.is_date32(kind) or types.is_timestamp(kind) or _is_text(kind) or _is_bytes(kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _bounds(values: pyarrow.ChunkedArray) -> Bounds:
    import pyarrow
    import pyarrow.compute
    import pyarrow.types as types

    kind, nulls = values.type, values.null_count
    if nulls == len(values) or not _has_bounds(kind):
        return Bounds(nulls=nulls)
    if _is_text(kind):
        # They may be no UTF-8, and Python would not have them then.
        values = values.cast(pyarrow.binary() if types.is_string(kind) else pyarrow.large_binary())
    elif types.is_date32(kind):
        values = values.cast(pyarrow.int32())
    elif types.is_timestamp(kind):
        values = values.cast(pyarrow.int64())
    ends = pyarrow.compute.min_max(values)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if _is_text(kind):
        return Bounds(low_text(low), high_text(high), nulls)
    if _is_bytes(kind):
        return Bounds(low_bytes(low), high_bytes(high), nulls)
    if types.is_decimal(kind):
        return Bounds(_digits(low, kind.scale), _digits(high, kind.scale), nulls)
    if types.is_floating(kind):
        has_nan = pyarrow.compute.any(pyarrow.compute.is_nan(values)).as_py()
        return Bounds(_finite(low), None if has_nan else _finite(high), nulls)
    return Bounds(int(low), int(high), nulls)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _digits(value: Any, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    found: int = int("".join(map(str, digits))) * 10 ** (scale + exponent)
    return -int(found) if sign else int(found)
