"""A micro-batch that one task wrote, and that is large, is read by all cores."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bookspark.local import LocalCluster
from bookspark.logs import create_log

pytestmark = pytest.mark.spark

ROW, ROWS, AT_ONCE = 4096, 12_000, 500
"""48 MiB in all, where a partition is of 8 MiB or more."""


def _value(number: int) -> bytes:
    return number.to_bytes(8).ljust(ROW, b".")


def test_one_tasks_large_micro_batch_is_read_by_as_many_tasks_as_there_are_cores(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """It was one task, however large it was: one core read while the others had nothing to do."""
    log = f"log-{uuid.uuid4().hex[:8]}"
    with cluster.bookkeeper() as bookkeeper, create_log(bookkeeper, log).producer("one") as producer:
        for first in range(0, ROWS, AT_ONCE):
            producer.append_batch([_value(number) for number in range(first, first + AT_ONCE)])
    batches: list[list[tuple[int, int, int, int, bool]]] = []

    def take(rows: DataFrame, number: int) -> None:
        own = F.conv(F.hex(F.substring("value", 1, 8)), 16, 10).cast("bigint")
        of_task = rows.select(F.spark_partition_id().alias("task"), "lane", "position", own.alias("own"), "value")
        # What a task gives in its order: the first position, whether each is the next one, and whether each row is its own.
        told = of_task.groupBy("task").agg(
            F.collect_list(F.struct("lane", "position", "own", F.length("value").alias("size"))).alias("rows")
        )
        found = []
        for row in told.collect():
            positions = [one.position for one in row.rows]
            in_order = positions == list(range(positions[0], positions[0] + len(positions)))
            right = all(one.position == one.own and one.size == ROW for one in row.rows)
            found.append(
                (positions[0], row.task, len(positions), len({one.lane for one in row.rows}), in_order and right)
            )
        batches.append(sorted(found))

    source = spark.readStream.format("bookspark").options(
        zookeeper=cluster.zookeeper, log=log, includeLane="true", startingOffsets="earliest"
    )
    query = source.load().writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(300)
    (tasks,) = batches
    assert len(tasks) >= max(4, spark.sparkContext.defaultParallelism), "the large batch is cut by size"
    assert all(lanes == 1 and right for *_, lanes, right in tasks), "rows are right, and in the order of their lane"
    assert [task for _, task, *_ in tasks] == sorted(task for _, task, *_ in tasks), "tasks are in the order of rows"
    ends = 0
    for first, _, count, *_ in tasks:
        assert first == ends, "nothing twice, nothing left out"
        ends += count
    assert ends == ROWS
    counts = [count for _, _, count, *_ in tasks]
    assert max(counts) - min(counts) <= AT_ONCE, "about as many rows each"
