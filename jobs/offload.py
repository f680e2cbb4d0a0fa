"""Put the rows of a log's closed ledgers into a Delta table, and delete old ledgers.

spark-submit $(bookspark job offload) --zookeeper HOST:PORT --log NAME --table DIRECTORY [--delete-after HOURS]
"""

from __future__ import annotations

from typing import Annotated

import typer

from bookspark.spark.offload import offload
from bookspark.spark.session import delta_session
from bookspark.spark.short_jobs import run_job
from bookspark.support.password_option import Password
from bookspark.support.plain_text import counted


def main(
    zookeeper: Annotated[str, typer.Option(help="The cluster: host:port[,host:port…][/chroot].")],
    log: Annotated[str, typer.Option(help="Name of the log.")],
    table: Annotated[str, typer.Option(help="Folder of the log's own Delta table, made if missing.")],
    password: Password = "",
    delete_after: Annotated[
        float | None,
        typer.Option(
            help="Delete ledgers with rows in the table and at least this many hours old. Default: none.",
            min=0.0,
        ),
    ] = None,
) -> None:
    """Put the rows of a log's closed ledgers into a Delta table and delete old ledgers, once."""
    spark = delta_session("bookspark offload", zookeeper=zookeeper)
    seconds = None if delete_after is None else 3600 * delete_after
    done = offload(spark, zookeeper, log, table, password, delete_after_seconds=seconds)
    print(
        f"offloaded {counted(done.rows, 'row')} of log {log}; up to row {done.position} they are in {table}; "
        f"deleted {counted(len(done.deleted), 'ledger')}"
    )
    if not done.rows:
        print(
            f"no closed ledger of log {log} has rows that are not in the table yet. An open one is closed by the first offload "
            "that finds it without new rows for an hour"
        )
    spark.stop()


if __name__ == "__main__":
    run_job("offload", main)
