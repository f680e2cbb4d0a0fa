"""Broadcasts of audits: Spark collects a broadcast on the driver first, so none may grow with the number of ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bookspark.spark.audit.runner import NEEDS, names, question, run_over
from bookspark.spark.session import with_settings
from tests.spark.made_up_cluster import A, B, C, Cluster, D

pytestmark = [pytest.mark.release, pytest.mark.spark]

_BOOKIES, _LEDGERS = 4, 40
_THRESHOLDS = ("spark.sql.autoBroadcastJoinThreshold", "spark.sql.adaptive.autoBroadcastJoinThreshold")


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    """Tables of a cluster with many more ledgers than bookies, in which some ledgers have each kind of damage. The tables are
    in files, because Spark then knows how small they are."""
    cluster = Cluster()
    for ledger_id in range(_LEDGERS):
        cluster.ledger(ledger_id, 9, {0: [A, B, C], 5: [B, C, D]}, state="CLOSED" if ledger_id % 4 else "OPEN")
        for bookie in (A, B, C)[ledger_id % 3 :]:
            cluster.holds(bookie, ledger_id, (0, 9))
            cluster.checksums(bookie, ledger_id, *range(10))
        cluster.rows["ledger_ids"].append({"first_ledger_id": ledger_id, "last_ledger_id": ledger_id})
        loss = {"kind": "entries", "first_entry_id": 7, "last_entry_id": 7, "bookies": [D]}
        cluster.rows["accepted_losses"].append({"ledger_id": ledger_id, **loss})
        cluster.rows["limbo"].append({"bookie_id": D, "ledger_id": ledger_id})
    cluster.last_ledger_id = _LEDGERS
    for bookie in (A, B, C, D):
        cluster.disk(bookie)
    always = ("logs", "log_commits", "entry_logs")
    folder = tmp_path_factory.mktemp("tables")
    found = {}
    for name, table in cluster.tables(spark, *always).items():
        table.withColumn("snapshot_id", F.lit("s")).coalesce(1).write.parquet(str(folder / name))
        found[name] = spark.read.parquet(str(folder / name))
    return found


def _broadcasts(spark: SparkSession, after: int) -> Iterator[tuple[int, str]]:
    """The row count and description of each broadcast, in the executions from number ``after`` on."""
    store: Any = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    for execution in (executions.apply(n).executionId() for n in range(executions.size())):
        if execution < after:
            continue
        nodes, told = store.planGraph(execution).allNodes(), store.executionMetrics(execution)
        for node in (nodes.apply(n) for n in range(nodes.size())):
            if "BroadcastExchange" in node.name():
                metrics = [node.metrics().apply(n) for n in range(node.metrics().size())]
                rows = next(one.accumulatorId() for one in metrics if one.name() == "number of output rows")
                if told.contains(rows):
                    yield int(told.apply(rows).replace(",", "")), node.desc()


def _executions(spark: SparkSession) -> int:
    """The number of executions that Spark has reported, once it has reported all."""
    java: Any = spark.sparkContext._jsc
    java.sc().listenerBus().waitUntilEmpty()
    store: Any = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    return max((executions.apply(n).executionId() for n in range(executions.size())), default=-1) + 1


def _too_many(spark: SparkSession, after: int) -> list[tuple[int, str]]:
    _executions(spark)
    return [(rows, what) for rows, what in _broadcasts(spark, after) if rows > _BOOKIES]


def test_audit_broadcasts_no_table_that_grows_with_ledgers(
    spark: SparkSession, tables: Mapping[str, DataFrame]
) -> None:
    assert all(NEEDS.get(query, "ledgers") in tables for query in names())
    before = _executions(spark)
    run_over(spark, tables, names())
    assert _too_many(spark, before) == []


@pytest.mark.parametrize("name", ["history", "lacking", "safe_to_stop", "summary"])
def test_question_broadcasts_no_table_that_grows_with_ledgers(
    spark: SparkSession, tables: Mapping[str, DataFrame], name: str
) -> None:
    stopped = spark.createDataFrame([(A,)], "bookie_id STRING")
    before = _executions(spark)
    with question(spark, {**tables, "stopped": stopped}, name) as answer:
        answer.collect()
    assert _too_many(spark, before) == []


def test_broadcast_of_ledgers_is_detected(spark: SparkSession, tables: Mapping[str, DataFrame]) -> None:
    before = _executions(spark)
    tables["fragments"].join(F.broadcast(tables["ledgers"]), "ledger_id").collect()
    assert [rows for rows, _ in _too_many(spark, before)] == [_LEDGERS]


def test_audit_keeps_the_sessions_broadcast_thresholds(spark: SparkSession, tables: Mapping[str, DataFrame]) -> None:
    with with_settings(spark, {_THRESHOLDS[0]: "12345"}):
        own = [spark.conf.get(name, None) for name in _THRESHOLDS]
        run_over(spark, tables, ["bookies_down"])
        assert [spark.conf.get(name, None) for name in _THRESHOLDS] == own
