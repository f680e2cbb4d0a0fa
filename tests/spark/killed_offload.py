"""An offload to be killed: ``python -m tests.spark.killed_offload ZOOKEEPER LOG TABLE MOMENT``. It ends at MOMENT by ``kill -9``,
whatever a run before it did already.

Its Spark is that of the test that started it, if the gateway is given in the environment (``gateway_of``), else one of its own,
which is killed with it. No job of Spark's runs at any MOMENT.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from bookspark.spark.offload.offloading import _Run, offload
from bookspark.spark.session import session
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES

BEGUN, WRITTEN, DONE, DELETED = "begun", "written", "done", "deleted"
"""The transaction is in the record; its rows are in the table; the record says so; the first of the ledgers is deleted."""


def main(zookeeper: str, log: str, table: str, moment: str) -> None:
    given = "PYSPARK_GATEWAY_PORT" in os.environ
    spark: Any = _given_spark() if given else _spark(zookeeper)

    def die(*_: Any) -> None:
        if not given:
            os.kill(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    step, killed = {
        BEGUN: ("_write", die),
        WRITTEN: ("_write", _then(die, _Run._write)),
        DONE: ("delete", die),
        DELETED: ("_delete", _then(die, _Run._delete)),
    }[moment]
    with mock.patch.object(_Run, step, killed):
        offload(spark, zookeeper, log, table, delete_after_seconds=0.0)


def _then(die: Callable[..., None], step: Callable[..., Any]) -> Callable[..., None]:
    def and_dies(*arguments: Any) -> None:
        step(*arguments)
        die()

    return and_dies


def gateway_of(spark: SparkSession) -> dict[str, str]:
    """What a process needs in its environment to use this Spark."""
    parameters = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}


def _given_spark() -> SparkSession:
    gateway = launch_gateway()
    jvm: Any = gateway.jvm
    java_session = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    java_context = java_session.sparkContext()
    conf = SparkConf(_jvm=jvm, _jconf=java_context.conf())
    return SparkSession(SparkContext(gateway=gateway, jsc=jvm.JavaSparkContext(java_context), conf=conf), java_session)


def _spark(zookeeper: str) -> SparkSession:
    conf = {**SMALL_TABLES, "spark.driver.extraJavaOptions": QUICK_JVM}
    return session("offload", master="local[2]", zookeeper=zookeeper, **conf)


if __name__ == "__main__":
    main(*sys.argv[1:])
