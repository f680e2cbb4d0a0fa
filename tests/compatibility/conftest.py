"""The Spark of ``tests/spark``."""

from __future__ import annotations

from tests.spark.conftest import one_spark, spark

__all__ = ["one_spark", "spark"]
