"""What a literal means beside a column of a type, as Spark compares the two.

Law: a comparison has the answer of Spark's, in ANSI mode and without it, in every time zone of a session; where these differ, or
where Spark would round a decimal, it is refused, and the error says what to write instead.

Whole numbers and decimals are compared exactly. So ``x < 2.5`` is ``x <= 2`` for whole numbers, and a number beyond what the
column can hold makes the comparison a constant. Beside a double, or in a column of floats, both sides are doubles.

Source: ``AnsiTypeCoercion``, ``TypeCoercion`` and ``DecimalPrecision`` of Spark 4.2.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from bookspark.spark.where.grammar import Column, Literal, Of
from bookspark.spark.where.predicates import Plain
from bookspark.spark.where.tokens import unsupported

_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_WHOLE_DIGITS = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}
"""The digits of the decimal that Spark makes of a whole number; LongType has one for the sign of the unsigned ones."""
_DIGITS_MAX = 38
_EXACT = Context(prec=2 * _DIGITS_MAX)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)(Z|[+-][0-9]{2}:[0-9]{2})?"
)


class Meant(NamedTuple):
    """A literal beside a column: the largest plain value that is not greater, and whether it is the very one."""

    value: Plain
    exactly: bool = True


class Beside(NamedTuple):
    """How a column is compared with some literals. A literal that is NULL has None."""

    meant: tuple[Meant | None, ...]
    as_double: bool = False


def beside(column: Column, kind: DataType, literals: Sequence[Literal]) -> Beside:
    """``literals`` beside a column of type ``kind``; all of them as Spark takes them in one comparison or list. Raises
    ConfigurationError."""
    given = [one for one in literals if one.of is not Of.NULL]
    if not given:
        return Beside((None,) * len(literals))
    if not comparable(kind):
        raise unsupported(f"comparing {column.name!r}, of type {kind.simpleString()},", column.at)
    numbers = {one.of for one in given} <= {Of.EXACT, Of.DOUBLE}
    if numbers and (type(kind) in _BITS or isinstance(kind, DecimalType)):
        return _whole_or_decimal(column, kind, literals, given)
    if numbers and isinstance(kind, FloatType | DoubleType):
        return Beside(tuple(None if one.of is Of.NULL else Meant(_double(kind, one)) for one in literals), True)
    return Beside(tuple(None if one.of is Of.NULL else Meant(_plain(column, kind, one)) for one in literals))


def comparable(kind: DataType) -> bool:
    """Can values of this type be compared with a literal?"""
    if isinstance(kind, StringType):
        return is_plain_string(kind)
    others = BooleanType | BinaryType | DateType | TimestampType | TimestampNTZType
    return type(kind) in _BITS or isinstance(kind, DecimalType | FloatType | DoubleType | others)


def is_plain_string(kind: DataType) -> bool:
    """Is it a string that is compared by its bytes?"""
    return isinstance(kind, StringType) and not isinstance(kind, CharType | VarcharType) and kind == StringType()


def range_of(kind: DataType) -> tuple[int, int] | None:
    """The least and the largest plain value of a whole number or decimal; None: of no such type."""
    if isinstance(kind, DecimalType):
        most = int(10**kind.precision) - 1
        return -most, most
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
        found = _TIME.fullmatch(text)
        if found is None or (found[3] is not None) is not with_zone:
            raise ValueError
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3] or 'Z'}")
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        example = (
            "TIMESTAMP'2026-01-31 12:00:00Z', with its offset from UTC"
            if with_zone
            else ("TIMESTAMP_NTZ'2026-01-31 12:00:00', without one")
        )
        raise unsupported(f"the timestamp {text!r} (write {example})", literal.at) from None
