"""Random predicates over awkward rows: each row's truth value is Spark's (``scripts/soak predicates`` has more)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pyarrow
import pytest
from pyspark.sql import SparkSession

from bookspark.errors import ConfigurationError
from bookspark.spark.where.grammar import parsed
from bookspark.spark.where.predicates import Predicate
from bookspark.spark.where.wanted import _truth, bound
from tests.spark.random_predicates import COLUMNS, random_predicate, random_rows

pytestmark = pytest.mark.spark
PREDICATES = 120
AT_ONCE = 60
SETTINGS = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(params=["true", "false"])
def strange_session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session in another time zone, with and without ANSI mode. Compiling so many predicates would take minutes."""
    settings = {**SETTINGS, "spark.sql.ansi.enabled": request.param}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, was in before.items():
        if was is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, was)


def predicates(random: Random, count: int) -> list[tuple[str, Predicate]]:
    found: list[tuple[str, Predicate]] = []
    while len(found) < count:
        text = random_predicate(random)
        try:
            found.append((text, bound(parsed(text), COLUMNS)))
        except ConfigurationError:
            # Decimals of too many digits, and numbers that are no floats.
            continue
    return found


def test_truth_of_random_predicates_matches_spark(strange_session: SparkSession) -> None:
    random = Random(20)
    rows = random_rows(random, 80)
    frame = strange_session.createDataFrame(pyarrow.Table.from_batches([rows]), COLUMNS).coalesce(1)
    asked = predicates(random, PREDICATES)
    for at in range(0, PREDICATES, AT_ONCE):
        some = asked[at : at + AT_ONCE]
        found = frame.selectExpr(*(f"({text}) AS p{n}" for n, (text, _) in enumerate(some))).toArrow()
        for column, (text, predicate) in zip(found.columns, some, strict=True):
            assert _truth(rows, predicate).to_pylist() == column.to_pylist(), text
