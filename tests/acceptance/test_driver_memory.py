"""What all audits and questions broadcast; ``tests/spark`` has two of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookspark.spark.audit.runner import NEEDS, names
from tests.spark.test_driver_memory import broadcast_by, broadcast_by_question, tables  # noqa: F401

pytestmark = pytest.mark.spark


def test_no_audit_broadcasts_what_grows_with_ledgers(
    spark: SparkSession,
    tables: Mapping[str, DataFrame],  # noqa: F811
) -> None:
    assert all(NEEDS.get(query, "ledgers") in tables for query in names())
    assert broadcast_by(spark, tables, names()) == []


@pytest.mark.parametrize("name", ["history", "lacking", "safe_to_stop"])
def test_no_question_broadcasts_what_grows_with_ledgers(
    spark: SparkSession,
    tables: Mapping[str, DataFrame],  # noqa: F811
    name: str,
) -> None:
    assert broadcast_by_question(spark, tables, name) == []
