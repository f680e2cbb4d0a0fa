"""Random predicates over random rows: option ``where`` returns the same rows as Spark's own filter. A round is a log with
200 predicates.

A round has rows of all types with awkward values (nulls, NaN, zeros of both signs, strange strings, ends of types), mixed
or in order, and 200 predicates, which Spark evaluates as 200 columns of one job. Each is read from a log in memory with
small entries; options, the choice by statistics and the filter are the real ones. The truth value of each row is compared
too, because unknown and false differ under a NOT. Two predicates of every fifth round are tested end to end: Spark writes
the rows to bookies and reads them with the option. The session's time zone and ANSI mode change from round to round.

``--first N``: the number of the first round; a round depends only on its number. Errors are printed and counted, and the
soak fails at its end.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow
import pytest
from pyspark.sql import DataFrame, SparkSession

from bookspark.errors import ConfigurationError
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry
from bookspark.protocol.logs.log_options import RowFormat
from bookspark.spark.connector import feeds, source
from bookspark.spark.connector.data_source import register
from bookspark.spark.connector.sink import LogBatchWriter
from bookspark.spark.connector.source import EntryReader, schema_of
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.session import session
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES
from bookspark.spark.where.grammar import parsed
from bookspark.spark.where.predicates import Predicate
from bookspark.spark.where.wanted import _truth, bound
from tests.soak._command import main
from tests.spark.random_predicates import COLUMNS, random_predicate, random_rows
from tests.spark.stand_in_spark import StandInSpark

PREDICATES, WHOLE_WAY, _ROUNDS_WHOLE = 200, 2, 5
_ZONES = ["America/New_York", "Asia/Kolkata", "UTC", "Pacific/Apia", "Europe/London"]
_COMMITS_MAX = 4


def run(rounds: int, first: int) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    with LocalCluster(bookies=3) as cluster:
        conf = {**SMALL_TABLES, "spark.driver.extraJavaOptions": QUICK_JVM, "spark.ui.enabled": "false"}
        spark = session("predicates", master="local[2]", zookeeper=cluster.zookeeper, **conf)
        spark.sparkContext.setLogLevel("OFF")
        register(spark, cluster.zookeeper)
        try:
            for number in range(first, first + rounds):
                counts.update(_round(spark, number))
                print(f"{time.monotonic() - begun:.0f} s, round {number}: {json.dumps(counts)}", flush=True)
        finally:
            spark.stop()
    assert not counts["wrong"] + counts["wrong the whole way"], counts
    return counts


def _round(spark: SparkSession, number: int) -> Counter[str]:
    random, counts = Random(number), Counter[str]()
    spark.conf.set("spark.sql.session.timeZone", random.choice(_ZONES))
    spark.conf.set("spark.sql.ansi.enabled", random.choice(["true", "false"]))
    # Compiling so many predicates would take minutes.
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    rows = random_rows(random, random.randint(1, 400), random.choice([0.0, 0.15, 0.15, 0.7]))
    if random.random() < 0.6:
        # Statistics exclude most where rows are in order.
        rows = rows.sort_by(random.choice(COLUMNS.names))
    asked = _predicates(random)
    frame = spark.createDataFrame(pyarrow.Table.from_batches([rows]), COLUMNS).coalesce(1)
    right = frame.selectExpr(*(f"({text}) AS p{at}" for at, (text, _) in enumerate(asked))).toArrow().to_pydict()
    truths = [right[f"p{at}"] for at in range(len(asked))]
    counts["rows"] += rows.num_rows
    with _in_memory(rows, random) as positions:
        for (text, predicate), truth in zip(asked, truths, strict=True):
            counts["predicates"] += 1
            counts["true, false or unknown for all rows"] += len(set(truth)) == 1
            wrong = _truth(rows, predicate).to_pylist() != truth
            wrong |= positions(text, counts) != [row for row, is_true in enumerate(truth) if is_true]
            counts["wrong"] += wrong
            if wrong:
                print("wrong:", number, text, flush=True)
    some = list(zip(asked, truths, strict=True))[:WHOLE_WAY] if number % _ROUNDS_WHOLE == 0 else []
    for text, truth in _whole_way(spark, frame, f"round-{number}", some):
        counts["the whole way"] += 1
        counts["wrong the whole way"] += bool(text)
        if text:
            print("wrong the whole way:", number, text, truth, flush=True)
    return counts


def _predicates(random: Random) -> list[tuple[str, Predicate]]:
    found: list[tuple[str, Predicate]] = []
    while len(found) < PREDICATES:
        text = random_predicate(random, random.randint(1, 4))
        try:
            found.append((text, bound(parsed(text), COLUMNS)))
        except ConfigurationError:
            # Decimals with too many digits, and numbers that are not floats.
            continue
    return found


@contextmanager
def _in_memory(rows: pyarrow.RecordBatch, random: Random) -> Iterator[Any]:
    """Write a log of these rows; yields a function (predicate, counts) -> positions of the matching rows."""
    with pytest.MonkeyPatch.context() as patched:
        engine = StandInSpark(patched)
        for module in (source, feeds):
            patched.setattr(module, "client", lambda zookeeper: engine.bookkeeper)
        patched.setattr("bookspark.spark.rows.rows.ENTRY_BYTES", random.choice([1 << 10, 1 << 13]))
        registry = LogRegistry(engine.bookkeeper.metadata)  # type: ignore[arg-type]
        planned = registry.ensure("rows", {"row_format": RowFormat.ARROW}, b"", COLUMNS.json())
        given = {"log": "rows", "zookeeper": "memory"}
        ends = sorted(random.randint(0, rows.num_rows) for _ in range(random.randrange(_COMMITS_MAX)))
        for begin, end in zip([0, *ends], [*ends, rows.num_rows], strict=True):
            writer = LogBatchWriter(SinkOptions.parse(given), planned)
            writer.commit([writer.write(iter([rows.slice(begin, end - begin)]))])

        def positions(text: str, counts: Counter[str]) -> list[int]:
            options = SourceOptions.parse({**given, "where": text}).for_batch()
            reader = EntryReader(options, schema_of(options), ["position"])
            parts: Any = reader.partitions()
            counts["rows looked at"] += sum(piece.rows for part in parts for piece in part.pieces)
            return [
                row for part in parts for found in reader.read(part) for row in found.column("position").to_pylist()
            ]

        yield positions


def _whole_way(
    spark: SparkSession, frame: DataFrame, log: str, asked: list[tuple[tuple[str, Predicate], list[bool | None]]]
) -> Iterator[tuple[str, list[int]]]:
    """For each predicate, its text if Spark reads other rows with the option than without, else an empty string; and the
    positions."""
    if not asked:
        return
    frame.write.format("bookspark").option("log", log).option("rowFormat", "arrow").mode("append").save()
    for (text, _), truth in asked:
        read = spark.read.format("bookspark").option("log", log).option("where", text).load()
        found = sorted(row.position for row in read.select("position").collect())
        yield ("" if found == [row for row, is_true in enumerate(truth) if is_true] else text), found


if __name__ == "__main__":
    main(__doc__, run, 50)
