"""An offload to be killed: ``python -m tests.spark.killed_offload ZOOKEEPER LOG TABLE MOMENT``.

At MOMENT it ends itself and its Spark by ``kill -9``, whatever an earlier run has done. No Spark job runs at any
MOMENT."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from bookspark.spark.offload.offloading import _Run, offload
from bookspark.spark.session import session
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES

# The transaction is in the record; its rows are in the table; the record says so; the first ledger is deleted.
BEGUN, WRITTEN, DONE, DELETED = "begun", "written", "done", "deleted"


def main(zookeeper: str, log: str, table: str, moment: str) -> None:
    conf = {**SMALL_TABLES, "spark.driver.extraJavaOptions": QUICK_JVM}
    spark: Any = session("offload", master="local[2]", zookeeper=zookeeper, **conf)

    def die(*_: Any) -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
