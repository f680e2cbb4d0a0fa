"""A Spark driver in client mode that asks a Kubernetes API server for executors, until its standard input ends."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """The first line of standard input holds Spark's settings, as a JSON object."""
    builder = SparkSession.builder
    for name, value in json.loads(sys.stdin.readline()).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    print("started", flush=True)
    sys.stdin.read()
    spark.stop()
    print("stopped", flush=True)


if __name__ == "__main__":
    main()
