"""Rows of all types with awkward values, and random predicates over them, for comparison with Spark's own filter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow
from pyspark.sql.types import StructType

from bookspark.spark.rows.row_format import arrow_schema

COLUMNS = StructType()
for _name, _kind in {
    "b": "boolean",
    "t": "byte",
    "s": "short",
    "i": "integer",
    "l": "long",
    "f": "float",
    "d": "double",
    "m": "decimal(10,2)",
    "w": "decimal(38,6)",
    "z": "decimal(5,0)",
    "st": "string",
    "bi": "binary",
    "da": "date",
    "ts": "timestamp",
    "tn": "timestamp_ntz",
}.items():
    COLUMNS = COLUMNS.add(_name, _kind)
WHOLE = {"t": 8, "s": 16, "i": 32, "l": 64}
_NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_TEXTS = [
    "",
    "a",
    "A",
    "ab",
    "abc",
    "b",
    "ba",
    "it's",
    "100%",
    "a_b",
    "a\nb",
    "ä",
    "zz",
    "\U0001f600",
    "\uffff",
    "x" * 40,
    "x" * 39 + "y",
]


def _whole(random: Random, bits: int) -> int:
    top = 1 << bits - 1
    near = [0, 1, -1, 2, 5, 7, top - 1, top - 2, -top, -top + 1, 1 << 24, (1 << 24) + 1, (1 << 53) + 1, -(1 << 53) - 1]
    value = random.choice([random.choice(near), random.randint(-10, 10), random.randint(-top, top - 1)])
    return max(-top, min(top - 1, value))


def _double(random: Random) -> float:
    some = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.1,
        2.5,
        1e300,
        -1e-300,
        16777216.0,
        float(2**53),
        float("nan"),
        float("inf"),
        float("-inf"),
    ]
    return random.choice([random.choice(some), random.uniform(-10, 10), float(random.randint(-5, 5))])


def _float(random: Random) -> float:
    import numpy

    value = _double(random)
    return float(numpy.float32(value)) if abs(value) < 3e38 or value != value else value


def _decimal(digits: int, scale: int) -> Callable[[Random], Decimal]:
    most = 10**digits - 1

    def value(random: Random) -> Decimal:
        digits = random.choice(
            [random.choice([0, 1, -1, 10**scale, 250 * 10**scale // 100, most, -most]), random.randint(-1000, 1000)]
        )
        digits = max(-most, min(most, digits))
        return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))

    return value


def _moment(random: Random) -> datetime:
    some = [0, 1, -1, 1_000_000, 3_600_000_000]
    return _NOON + timedelta(microseconds=random.choice([random.choice(some), random.randint(-(10**13), 10**13)]))


def _date(random: Random) -> date:
    return date(2026, 1, 31) + timedelta(days=random.choice([0, 1, -1, 40, random.randint(-30000, 30000)]))


def _text(random: Random) -> str:
    return random.choice([random.choice(_TEXTS), "".join(random.choice("ab_%Z") for _ in range(random.randint(0, 4)))])


VALUES: dict[str, Callable[[Random], Any]] = {
    "b": lambda random: random.random() < 0.5,
    **{name: (lambda random, bits=bits: _whole(random, bits)) for name, bits in WHOLE.items()},
    "f": _float,
    "d": _double,
    "m": _decimal(10, 2),
    "w": _decimal(38, 6),
    "z": _decimal(5, 0),
    "st": _text,
    "bi": lambda random: bytes(random.choice([0, 1, 127, 128, 255]) for _ in range(random.choice([0, 1, 1, 2, 3, 40]))),
    "da": _date,
    "ts": _moment,
    "tn": lambda random: _moment(random).replace(tzinfo=None),
}


def random_rows(random: Random, count: int, nulls: float = 0.15) -> pyarrow.RecordBatch:
    """Random rows of COLUMNS."""
    columns = []
    for field in arrow_schema(COLUMNS):
        values = [None if random.random() < nulls else VALUES[field.name](random) for _ in range(count)]
        columns.append(pyarrow.array(values, field.type))
    return pyarrow.RecordBatch.from_arrays(columns, schema=arrow_schema(COLUMNS))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literal(random: Random, name: str) -> str:
    if random.random() < 0.04:
        return "NULL"
    value = VALUES[name](random)
    match name:
        case "b":
            return random.choice(["TRUE", "FALSE", "true"])
        case "t" | "s" | "i" | "l":
            return random.choice(
                [
                    str(value),
                    str(value),
                    f"{value}.0",
                    f"{random.randint(-20, 20)}.5",
                    f"{float(value)!r}D",
                    "1e1",
                    "300",
                    "-99999999999",
                ]
            )
        case "f" | "d":
            if value != value or abs(value) > 1e308:
                value = 0.0
            small = random.randint(-20, 20)
            return random.choice([f"{value!r}D", f"{small}", f"{small}.5", "0.1", "-0.0D", "1e0", "0"])
        case "m" | "w" | "z":
            return random.choice(
                [f"{value:f}", str(random.randint(-5, 5)), f"{random.randint(-5, 5)}.25", "123456789.125"]
            )
        case "st":
            return _quoted(value)
        case "bi":
            return f"X'{value.hex()}'"
        case "da":
            return random.choice([f"DATE'{value}'", f"date '{value}'", f"'{value}'"])
        case "ts":
            return f"TIMESTAMP'{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z'"
    return f"TIMESTAMP_NTZ'{value:%Y-%m-%d %H:%M:%S.%f}'"


def _pattern(random: Random) -> str:
    return "".join(random.choice(["a", "b", "%", "_", "x", "'", "Z", "ä", "\n"]) for _ in range(random.randint(0, 4)))


def _test(random: Random) -> str:
    name = random.choice(COLUMNS.names)
    shown = random.choice([name, name.upper(), f"`{name}`", f"({name})"])

    def literal() -> str:
        return _literal(random, name)

    kinds = [
        "op",
        "op",
        "op",
        "flipped",
        "in",
        "between",
        "null",
        "like" if name == "st" else "op",
        "alone" if name == "b" else "op",
    ]
    op = random.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])
    no = random.choice(["", "NOT "])
    match random.choice(kinds):
        case "flipped":
            return f"{literal()} {op} {shown}"
        case "in":
            return f"{shown} {no}IN ({', '.join(literal() for _ in range(random.randint(1, 5)))})"
        case "between":
            return f"{shown} {no}BETWEEN {literal()} AND {literal()}"
        case "null":
            return f"{shown} IS {no}NULL"
        case "like":
            return f"{shown} {no}LIKE {_quoted(_pattern(random))}"
        case "alone":
            return shown
    return f"{shown} {op} {literal()}"


def random_predicate(random: Random, depth: int = 3) -> str:
    """A random predicate over COLUMNS, of the supported subset, though its decimals may have too many digits."""
    if depth == 0 or random.random() < 0.35:
        return random.choice(["TRUE", "FALSE", "NULL"]) if random.random() < 0.02 else _test(random)
    parts = [random_predicate(random, depth - 1) for _ in range(random.randint(2, 3))]
    match random.choice(["and", "or", "not", "mixed"]):
        case "and":
            return " AND ".join(f"({part})" for part in parts)
        case "or":
            return "(" + " or ".join(parts) + ")"
        case "not":
            return f"{random.choice(['NOT', 'not', '!'])} ({parts[0]})"
    return f"{parts[0]} OR {parts[1]} AND NOT {parts[-1]}"
