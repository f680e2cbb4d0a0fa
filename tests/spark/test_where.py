"""Predicates of option ``where``: supported syntax, refused syntax, and the rows that bounds allow to skip."""

from __future__ import annotations

from random import Random

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, LongType, StructType

from bookspark.errors import ConfigurationError
from bookspark.logs.rows.statistics import (
    Block,
    Bounds,
    Collected,
    Statistics,
    high_bytes,
    high_text,
    joined,
    low_text,
    parsed,
)
from bookspark.spark.rows.rows import block_of
from bookspark.spark.where import grammar
from bookspark.spark.where.predicates import Predicate
from bookspark.spark.where.wanted import _truth, bound, kept
from tests.spark.random_predicates import COLUMNS, random_predicate, random_rows

SUPPORTED = "supported are: a column beside a literal"


def predicate(text: str, columns: StructType = COLUMNS) -> Predicate:
    return bound(grammar.parsed(text), columns)


def truth(text: str, **columns: pyarrow.Array) -> list[bool | None]:
    found: list[bool | None] = _truth(pyarrow.record_batch(columns), predicate(text)).to_pylist()
    return found


def test_null_comparisons_are_unknown_and_unknown_rows_are_dropped() -> None:
    i = pyarrow.array([1, None, 3], pyarrow.int32())
    assert truth("i = 1", i=i) == [True, None, False]
    assert truth("NOT i = 1", i=i) == [False, None, True]
    assert truth("i = 1 OR i IS NULL", i=i) == [True, True, False]
    assert truth("i = 1 AND NULL", i=i) == [None, None, False]
    assert truth("i IN (1, NULL)", i=i) == [True, None, None]
    assert truth("i NOT IN (1, NULL)", i=i) == [False, None, None]
    assert truth("i <=> NULL", i=i) == [False, True, False]
    assert truth("NOT i <=> 1", i=i) == [False, True, True]
    assert truth("i > 3000000000", i=i) == [False, None, False]
    assert truth("i < 2.5 AND i > 0.5", i=i) == [True, None, False]
    assert truth("i = 1.5", i=i) == [False, None, False]
    rows = pyarrow.record_batch({"i": i})
    assert kept(rows, predicate("NOT i = 1")).to_pydict() == {"i": [3]}


def test_nan_is_greater_than_every_number_and_minus_zero_is_zero() -> None:
    d = pyarrow.array([float("nan"), -0.0, 2.0, None])
    assert truth("d > 1e300", d=d) == [True, False, False, None]
    assert truth("d <= 1e300", d=d) == [False, True, True, None]
    assert truth("d != 0", d=d) == [True, False, True, None]
    assert truth("d IN (0, 7)", d=d) == [False, True, False, None]


def test_float_is_compared_as_a_double_with_a_whole_number_that_is_a_float_and_with_any_fraction() -> None:
    f = pyarrow.array([0.1, 0.5, 16777216.0, None], pyarrow.float32())
    assert truth("f = 16777216", f=f) == [False, False, True, None]
    assert truth("f = 0.5", f=f) == [False, True, False, None]
    assert truth("f = 0.1", f=f) == [False, False, False, None]
    assert truth("f > 0.1", f=f) == [True, True, True, None]


def test_and_binds_closer_than_or_and_not_closer_than_and() -> None:
    i = pyarrow.array([1, 2, 3], pyarrow.int32())
    assert truth("i = 1 OR i = 2 AND i = 3", i=i) == [True, False, False]
    assert truth("NOT i = 1 AND i < 3", i=i) == [False, True, False]
    assert truth("! (i = 1 or 3 <= i)", i=i) == [False, True, False]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the end of the text"),
        ("i =", "the end of the text"),
        ("upper(st) = 'A'", "the function 'upper'"),
        ("i + 1 = 2", "'+ 1 = 2' at character 3"),
        ("i = 1 -- all", "'-- all'"),
        ('st = "a"', "a string or a name, as the session is set"),
        (r"st = 'a\n'", "with a backslash in it"),
        ("st = 'a", "a string without an end"),
        ("i = t", "= between anything but a column and a literal"),
        ("1 = 1", "= between anything but a column and a literal"),
        ("i = 1 = TRUE", "'=' at character 7"),
        ("(i = 1) IS NULL", "IS behind anything but a column"),
        ("i IS TRUE", "'TRUE'"),
        ("st RLIKE 'a'", "'RLIKE'"),
        ("st LIKE 'a' ESCAPE '/'", "'ESCAPE'"),
        ("i IN (SELECT 1)", "'SELECT'"),
        ("st.a = 1", "a field of 'st'"),
        ("i", "column 'i', of type int, alone"),
        ("i = 'a'", "with a string (Spark would convert one of them)"),
        ("st = 1", "comparing 'st', of type string, with a whole or decimal number"),
        ("b = 1", "comparing 'b', of type boolean"),
        ("m = 1e0", "a decimal, with a double (write a decimal, like 12.5)"),
        ("w = 0.0000000000001", "more than 38 digits together"),
        ("f = 16777217", "which is no float (write 16777217D)"),
        ("i = 1F", "the number 1F"),
        ("i = 300Y", "the number 300Y"),
        ("ts = '2026-01-31 12:00:00'", "comparing 'ts', of type timestamp, with a string"),
        ("ts = TIMESTAMP'2026-01-31 12:00:00'", "with its offset from UTC"),
        ("da = DATE'2026-02-30'", "the date '2026-02-30'"),
        ("bi = X'0'", "two hexadecimal digits a byte"),
        ("li = NULL AND li > 1", "comparing 'li', of type array<bigint>,"),
        ("(" * 200 + "b" + ")" * 200, "nesting of more than 100"),
        ("NOT " * 200 + "b", "nesting of more than 100"),
    ],
)
def test_unsupported_syntax_is_named_in_the_error(text: str, what: str) -> None:
    columns = StructType(list(COLUMNS.fields)).add("li", ArrayType(LongType()))
    with pytest.raises(ConfigurationError) as error:
        predicate(text, columns)
    assert what in str(error.value)
    assert SUPPORTED in str(error.value)


def test_column_names_are_matched_in_any_case() -> None:
    columns = StructType().add("Ab", "long").add("a b", "long").add("x", "long").add("X", "long")
    assert predicate("aB = 1 AND `A B` = 1", columns).columns == {"Ab", "a b"}
    with pytest.raises(ConfigurationError, match="no column is called 'c'; the columns are Ab, a b, x, X"):
        predicate("c = 1", columns)
    with pytest.raises(ConfigurationError, match="2 columns are called 'x'"):
        predicate("x = 1", columns)


def test_null_test_applies_to_columns_of_any_type() -> None:
    columns = StructType().add("li", ArrayType(LongType()))
    li = pyarrow.array([[1], None])
    assert _truth(pyarrow.record_batch({"li": li}), predicate("li IS NOT NULL", columns)).to_pylist() == [True, False]


@pytest.mark.parametrize("seed", range(4))
def test_bounds_never_skip_a_row_for_which_the_predicate_is_true(seed: int) -> None:
    """A plan may also need rows for which the predicate is false, under NOT."""
    random, left_out = Random(seed), 0
    for _ in range(12):
        count = random.choice([1, 1, 2, 5])
        blocks = [random_rows(random, count, random.choice([0, 0.2, 0.9])) for _ in range(4)]
        every = pyarrow.Table.from_batches(blocks).combine_chunks().to_batches()[0]
        names = [name for name in COLUMNS.names if random.random() < 0.9]
        collected = Collected(names)
        for rows in blocks:
            collected.add(block_of(pyarrow.Table.from_batches([rows]), names))
        text = collected.text(1 << 30)
        told = [parsed(text, 4 * count), parsed(joined([(text, 4 * count)], 600_000), 4 * count)]
        for _ in range(30):
            try:
                asked = predicate(random_predicate(random, 2))
            except ConfigurationError:
                continue
            truths = _truth(every, asked).to_pylist()
            for known in told:
                assert known is not None
                at = 0
                for block in known.blocks:
                    outlook = asked.outlook(dict(zip(known.columns, block.columns, strict=True)), block.rows)
                    found = truths[at : at + block.rows]
                    assert outlook.true or True not in found, asked
                    assert outlook.false or False not in found, asked
                    left_out += not outlook.true
                    at += block.rows
    assert left_out > 100, "bounds that allow everything would pass as well"


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_bounds_of_strings_and_bytes_enclose_the_value(one: bytes, other: bytes) -> None:
    for value in (one, other, "\U0010ffff".encode() * 20 + one, b"\xff" * 40 + other, "\ud7ff".encode() * 32 + one):
        assert low_text(value).encode() <= value
        high = high_text(value)
        assert high is None or high.encode() >= value
        most = high_bytes(value)
        assert most is None or bytes.fromhex(most) >= value


def some_blocks(count: int) -> Statistics:
    """Blocks of three columns: the second is null in every second block, the third in all."""
    strings = [Bounds(nulls=10) if n % 2 else Bounds(f"a{n:05}", f"b{n:05}", 1) for n in range(count)]
    blocks = [Block(10, (Bounds(n, n + 5, 0), strings[n], Bounds(nulls=10))) for n in range(count)]
    return Statistics(("a", "b", "c"), tuple(blocks))


def test_statistics_of_a_commit_are_bounded_however_many_rows_it_has() -> None:
    collected = Collected(("a", "b", "c"))
    for block in some_blocks(5000).blocks:
        collected.add(block)
    for size in (0, 1 << 20, 1 << 24, 1 << 40):
        text = collected.text(size)
        assert 0 < len(text) <= min(64 << 10, 1024 + size // 2048)
        told = parsed(text, 50_000)
        assert told is not None
        assert told.blocks[0].columns[0].low == 0
        assert told.blocks[-1].columns[0].high == 5004
        assert sum(block.columns[1].nulls or 0 for block in told.blocks) == 2500 * 11
        assert (told.blocks[0].columns[1].low, told.blocks[-1].columns[1].high) == ("a00000", "b04998"), (
            "nulls widen none"
        )
        assert all(block.columns[2] == Bounds(nulls=block.rows) for block in told.blocks)
    assert len(parsed(collected.text(1 << 40), 50_000).blocks) > 500  # type: ignore[union-attr]


def test_columns_that_exceed_the_statistics_size_are_dropped_from_the_end() -> None:
    wide = Collected([f"column_{n}" for n in range(200)])
    wide.add(Block(1, (Bounds("x" * 32, "x" * 32, 0),) * 200))
    told = parsed(wide.text(0), 1)
    assert told is not None
    assert told.columns == tuple(f"column_{n}" for n in range(len(told.columns)))
    assert 0 < len(told.columns) < 20


def test_malformed_or_mismatched_statistics_are_ignored() -> None:
    text = Collected(("a",)).text(0)
    assert text == ""
    good = '[["a"],[2,[0,1,0]],[3,[1,2,0]]]'
    assert parsed(good, 5) == Statistics(("a",), (Block(2, (Bounds(0, 1, 0),)), Block(3, (Bounds(1, 2, 0),))))
    for bad in (
        "",
        "x",
        "{}",
        "[]",
        "null",
        '[["a"],[5]]',
        '[["a"],[0,[0,1,0]],[5,[1,2,0]]]',
        '[["a"],[5,[0,1,0,0]]]',
        "[1,2]",
    ):
        assert parsed(bad, 5) is None, bad
    assert parsed(good, 6) is None
    assert joined([(good, 5), ("", 3)], 100) == ""
    assert joined([(good, 5), ('[["b"],[3,[0,1,0]]]', 3)], 100) == ""
    assert parsed(joined([(good, 5), (good, 5)], 100), 10) is not None
