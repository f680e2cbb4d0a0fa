"""The Spark and the cluster of ``tests/spark``."""

from __future__ import annotations

from tests.spark.conftest import cluster, one_spark, spark

__all__ = ["cluster", "one_spark", "spark"]
