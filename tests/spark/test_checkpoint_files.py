"""The reader of checkpoints knows each file that Spark 4.2 writes into one, in each version of its offset log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader

from bookspark.protocol.logs.commits import FILES
from bookspark.spark.connector.checkpoint import SourceRenamedError, SparkCheckpoint
from tests.spark.checkpoint_matrix import numbers

pytestmark = pytest.mark.spark
SECONDS_MAX = 300

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
VERSION = "spark.sql.streaming.offsetLog.formatVersion"
COMPACTS = "spark.sql.streaming.fileSource.log.compactInterval"
VERSIONS: dict[str, dict[str, str]] = {
    "v1": {},
    "v2": {VERSION: "2"},
    "v2 with names": {VERSION: "2", EVOLUTION: "true"},
}
"""Spark's settings."""
KNOWN = [r"metadata", r"offsets/\d+", r"sources/\w+/\d+", r"sources/\w+/\d+\.compact", r"commits/\d+", r"state/.+"]
"""The files that ``connector.checkpoint`` describes."""


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    settings = {**VERSIONS[request.param], COMPACTS: "2", "spark.sql.shuffle.partitions": "1"}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield request.param
    for name, former in before.items():
        if former is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, former)


def files_of(checkpoint: Path) -> list[str]:
    """Without Hadoop's and Spark's own hidden files (checksums, temporary files)."""
    paths = (path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if not any(part.startswith(".") for part in path.parts))


def test_each_file_of_a_checkpoint_is_known(spark: SparkSession, tmp_path: Path, version: str) -> None:
    """Sources: two of files, one of them renamed at the end, and one that counts; an operator with state."""
    where = tmp_path / "Jane Doe%20#1"
    location = f"file://{where}/checkpoint"
    sources = ["a", "b"] if version == "v2 with names" else ["0", "1"]

    def source(name: str) -> DataStreamReader:
        return spark.readStream.name(name) if version == "v2 with names" else spark.readStream

    def run() -> None:
        a, b = (source(name).text(f"{where}/{name}*") for name in ("a", "b"))
        ticks = source("ticks").format("rate-micro-batch").option("rowsPerBatch", 1).load()
        rows = a.union(b).union(ticks.selectExpr("CAST(value AS STRING)")).dropDuplicates(["value"])
        query = (
            rows.writeStream.format("noop").option("checkpointLocation", location).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(SECONDS_MAX)

    for batch in range(3):
        for name in ("a", "b"):
            (where / name).mkdir(parents=True, exist_ok=True)
            (where / name / f"{batch}.txt").write_text(f"{name} {batch}\n")
        run()
    files = files_of(where / "checkpoint")
    unknown = [file for file in files if not any(re.fullmatch(kind, file) for kind in KNOWN)]
    assert not unknown, f"the reader of checkpoints does not know {unknown}"
    assert {kind for kind in KNOWN if any(re.fullmatch(kind, file) for file in files)} == set(KNOWN), files
    assert any(file.endswith(".compact") for file in files)
    checkpoint = SparkCheckpoint(location, "orders")
    checkpoint.check()
    plans = [checkpoint.plan(number) for number in numbers(where / "checkpoint/offsets")]
    assert len({plan.offsets for plan in plans}) == len(plans) >= 3
    assert all(plan.whole and plan.offsets.startswith(FILES) for plan in plans)
    assert checkpoint.files_read(0) == dict.fromkeys(sources, range(1))
    newest = len(plans) - 1
    assert set(checkpoint.files_read(newest)) == set(sources)
    checkpoint.check_sources(newest)
    (where / "a").rename(where / "a-renamed")
    run()
    with pytest.raises(SourceRenamedError, match=r"a-renamed/0\.txt was read before as"):
        checkpoint.check_sources(newest + 1)
