"""Predicates with typed columns, and their answers for bounds of rows.

Law: a predicate is true, false or unknown for a row, as in SQL: unknown where a value is null, unless the predicate asks for
nulls. ``outlook`` errs only towards "maybe": excluded rows never satisfy the predicate. As in Spark, NaN equals itself and is
greater than every number; the bounds of a block with NaN have no upper end.

Values are *plain*: comparable both with Arrow values and with the bounds in commits. A boolean is 0 or 1, a date its days and a
timestamp its microseconds since 1970, a decimal its digits without the point.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bookspark.logs.rows.statistics import UNKNOWN, Bounds

Plain = int | float | str | bytes


class Outlook(NamedTuple):
    """Whether a predicate may be true, and may be false, for any of some rows."""

    true: bool
    false: bool


ANYTHING = Outlook(True, True)
Known = Mapping[str, Bounds]
"""Bounds of columns in some rows. A missing column is unknown."""


@dataclass(frozen=True)
class Constant:
    """True, false or unknown (None) for every row."""

    value: bool | None

    @property
    def columns(self) -> frozenset[str]:
        return frozenset()

    def outlook(self, known: Known, rows: int) -> Outlook:
        return Outlook(self.value is True, self.value is False)


@dataclass(frozen=True)
class _OfColumn:
    column: str

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))


@dataclass(frozen=True)
class IsNull(_OfColumn):
    """Whether the column is null."""

    def outlook(self, known: Known, rows: int) -> Outlook:
        nulls = known.get(self.column, UNKNOWN).nulls
        return ANYTHING if nulls is None else Outlook(nulls > 0, nulls < rows)


@dataclass(frozen=True)
class Compared(_OfColumn):
    """``column op value``; ``op``: = < <= > >=. Unknown where the column is null."""

    op: str
    value: Plain
    as_double: bool = False
    """Whether both sides are compared as doubles. Whole numbers of a column then lose digits."""

    def outlook(self, known: Known, rows: int) -> Outlook:
        bounds = known.get(self.column, UNKNOWN)
        if bounds.nulls == rows:
            return Outlook(False, False)
        low, high, value = (_comparable(one, self.as_double) for one in (bounds.low, bounds.high, self.value))
        least, most = low is None or low <= value, high is None or high >= value
        below, above = low is None or low < value, high is None or high > value
        match self.op:
            case "<":
                return Outlook(below, most)
            case "<=":
                return Outlook(least, above)
            case ">":
                return Outlook(above, least)
            case ">=":
                return Outlook(most, below)
        return Outlook(least and most, below or above)


@dataclass(frozen=True)
class AnyOf(_OfColumn):
    """Whether the column's value is in ``values``. Unknown where the column is null."""

    values: tuple[Plain, ...]
    as_double: bool = False

    def outlook(self, known: Known, rows: int) -> Outlook:
        each = [Compared(self.column, "=", value, self.as_double).outlook(known, rows) for value in self.values]
        return Outlook(any(one.true for one in each), all(one.false for one in each))


@dataclass(frozen=True)
class Likes(_OfColumn):
    """Whether the column's string matches ``pattern``, with ``%`` for any text and ``_`` for a character. Unknown where it is
    null."""

    pattern: str

    def outlook(self, known: Known, rows: int) -> Outlook:
        bounds = known.get(self.column, UNKNOWN)
        if bounds.nulls == rows:
            return Outlook(False, False)
        prefix = self.pattern.replace("_", "%").split("%", 1)[0]
        low, high = bounds.low, bounds.high
        before = isinstance(high, str) and high < prefix
        behind = isinstance(low, str) and low > prefix and not low.startswith(prefix)
        return Outlook(not before and not behind, True)


@dataclass(frozen=True)
class Not:
    """True where ``part`` is false."""

    part: Predicate

    @property
    def columns(self) -> frozenset[str]:
        return self.part.columns

    def outlook(self, known: Known, rows: int) -> Outlook:
        true, false = self.part.outlook(known, rows)
        return Outlook(false, true)


@dataclass(frozen=True)
class _Several:
    parts: tuple[Predicate, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))


class All(_Several):
    """AND."""

    def outlook(self, known: Known, rows: int) -> Outlook:
        each = [part.outlook(known, rows) for part in self.parts]
        return Outlook(all(one.true for one in each), any(one.false for one in each))


class Any(_Several):
    """OR."""

    def outlook(self, known: Known, rows: int) -> Outlook:
        each = [part.outlook(known, rows) for part in self.parts]
        return Outlook(any(one.true for one in each), all(one.false for one in each))


Predicate = Constant | IsNull | Compared | AnyOf | Likes | Not | All | Any


def _comparable(value: Plain | None, as_double: bool) -> typing.Any:
    """As in bounds: bytes as hexadecimal digits, which have the same order."""
    if isinstance(value, bytes):
        return value.hex()
    return float(value) if as_double and value is not None else value
