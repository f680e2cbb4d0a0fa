"""spark-submit entry point: put the rows of a log's closed ledgers into a Delta table, and let go of old ledgers.

spark-submit jobs/offload.py --zookeeper HOST:PORT --log NAME --table DIRECTORY [--delete-after HOURS]
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bookspark.cli.spark import plain_reason
from bookspark.errors import BookKeeperError
from bookspark.spark.logs.offload import offload
from bookspark.spark.session import SPARK_ERRORS, delta_session


def main(
    zookeeper: Annotated[str, typer.Option(help="host:port[,host:port…][/chroot] of the cluster")],
    log: Annotated[str, typer.Option(help="name of the log")],
    table: Annotated[str, typer.Option(help="where the Delta table is, or shall be: one for each log")],
    password: Annotated[str, typer.Option(help="the log's, if it has one")] = "",
    delete_after: Annotated[
        float | None, typer.Option(help="delete ledgers whose rows are in the table and so many hours old", min=0.0)
    ] = None,
) -> None:
    """Offload once."""
    try:
        spark = delta_session("bookspark offload", zookeeper=zookeeper)
        seconds = None if delete_after is None else 3600 * delete_after
        done = offload(spark, zookeeper, log, table, password, delete_after_seconds=seconds)
        print(
            f"{done.rows} rows of log {log} were offloaded; up to row {done.position} they are in {table}; "
            f"{len(done.deleted)} ledgers were deleted"
        )
        spark.stop()
    except (BookKeeperError, *SPARK_ERRORS) as error:
        sys.exit(f"bookspark offload: {plain_reason(error)}")


if __name__ == "__main__":
    typer.run(main)
