"""Offload: rows of a log's closed ledgers go to a Delta table and are read from there, so that the bookies need not keep them.

==================  =========================================================================
``table``           the Delta table: made, checked, and read without Spark
``proof``           the rows in the table are those in the ledgers
``offloading``      copies rows to the table, and deletes ledgers that are not needed any more
``offloaded``       reads rows from their ledger, or from the table
``opened_ledgers``  the ledgers of one task, each opened once
``small_pieces``    small pieces of several ledgers, read together
==================  =========================================================================

::

    from bookspark.spark import session
    from bookspark.spark.offload import offload

    spark = session("offload", zookeeper="127.0.0.1:2181")
    done = offload(spark, "127.0.0.1:2181", "orders", "/tables/orders", delete_after_seconds=86400.0)
    print(done.rows, done.position, done.deleted)

What offloads is loaded when it is first used: tasks need what reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bookspark.spark.offload.offloading import Offloaded, offload

__all__ = ["Offloaded", "offload"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from bookspark.spark.offload import offloading

        return getattr(offloading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
