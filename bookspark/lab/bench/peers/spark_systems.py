"""The systems of ``bookspark bench peers spark``: each writes and reads a column ``value``, in batches and as a stream."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bookspark.lab.bench.peers.kafka_peer import Kafka
from bookspark.local import LocalCluster

COPIES = 3


class System(Protocol):
    """A running system. ``name`` is the name of a log, table or topic."""

    def write(self, rows: DataFrame, name: str) -> None:
        """Append all rows. Returns once they are acknowledged."""

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """The present rows. The column ``value`` is a string or binary."""

    def writer(self, rows: DataFrame, name: str) -> DataStreamWriter:
        """A query that appends. The caller starts it."""

    def stream(self, spark: SparkSession, name: str) -> DataFrame:
        """The present rows and all later ones. The column ``value`` is a string or binary."""


class _Bookspark:
    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper

    def _options(self, name: str) -> dict[str, str]:
        return {"zookeeper": self._zookeeper, "log": name}

    def write(self, rows: DataFrame, name: str) -> None:
        rows.write.format("bookspark").options(**self._options(name)).mode("append").save()

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("bookspark").options(**self._options(name)).schema("value binary").load()

    def writer(self, rows: DataFrame, name: str) -> DataStreamWriter:
        return rows.writeStream.format("bookspark").options(**self._options(name))

    def stream(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.readStream.format("bookspark").options(**self._options(name)).schema("value binary").load()


class _Delta:
    def __init__(self, home: Path) -> None:
        self._home = home

    def write(self, rows: DataFrame, name: str) -> None:
        rows.write.format("delta").mode("append").save(str(self._home / name))

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("delta").load(str(self._home / name))

    def writer(self, rows: DataFrame, name: str) -> DataStreamWriter:
        # Delta can stream only from an existing table.
        rows.sparkSession.createDataFrame([], "value string").write.format("delta").save(str(self._home / name))
        return rows.writeStream.format("delta").option("path", str(self._home / name))

    def stream(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.readStream.format("delta").load(str(self._home / name))


class _Kafka:
    def __init__(self, servers: str) -> None:
        self._servers = {"kafka.bootstrap.servers": servers}

    def _sink(self, name: str) -> dict[str, str]:
        return {**self._servers, "topic": name, "kafka.acks": "all"}

    def _source(self, name: str) -> dict[str, str]:
        return {**self._servers, "subscribe": name, "startingOffsets": "earliest"}

    def write(self, rows: DataFrame, name: str) -> None:
        rows.write.format("kafka").options(**self._sink(name)).save()

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("kafka").options(**self._source(name)).load().select("value")

    def writer(self, rows: DataFrame, name: str) -> DataStreamWriter:
        return rows.writeStream.format("kafka").options(**self._sink(name))

    def stream(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.readStream.format("kafka").options(**self._source(name)).load().select("value")


@contextmanager
def bookspark(home: Path, jars: Path) -> Iterator[System]:
    """Three bookies; ensemble size 3, write quorum 3, ack quorum 2. Each acknowledgement comes after the sync."""
    try:
        with LocalCluster(bookies=COPIES, directory=home / "bookspark") as cluster:
            yield _Bookspark(cluster.zookeeper)
    finally:
        # The next round begins empty, also after a failed turn.
        shutil.rmtree(home / "bookspark", ignore_errors=True)


@contextmanager
def delta(home: Path, jars: Path) -> Iterator[System]:
    """Files: one copy, no sync."""
    try:
        yield _Delta(home / "delta")
    finally:
        shutil.rmtree(home / "delta", ignore_errors=True)


@contextmanager
def kafka(home: Path, jars: Path) -> Iterator[System]:
    """Three brokers and as many replicas, ``acks=all`` with two in sync. No sync to disk."""
    with Kafka(jars, home / "kafka", COPIES) as brokers:
        yield _Kafka(brokers.servers)


SYSTEMS = {"bookspark": bookspark, "delta": delta, "kafka": kafka}
"""By name, a context manager that starts the system; its arguments are a folder for data and the folder of Kafka's jars."""
