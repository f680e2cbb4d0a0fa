"""Offload: copies rows of a log's closed ledgers to a Delta table and reads them there, which relieves the bookies.

==================  ===============================================================
``table``           makes, checks and reads the Delta table without Spark
``offloading``      copies rows to the table, proves it, and deletes ledgers no longer needed
``offloaded``       reads rows from their ledger, or from the table
``opened_ledgers``  the ledgers of one task, each opened once
``small_pieces``    reads small pieces of several ledgers together
==================  ===============================================================

::

    from bookspark.spark import session
    from bookspark.spark.offload import offload

    spark = session("offload", zookeeper="127.0.0.1:2181")
    done = offload(spark, "127.0.0.1:2181", "orders", "/tables/orders", delete_after_seconds=86400.0)
    print(done.rows, done.position, done.deleted)

The module ``offloading`` is loaded at first use: tasks need only the reading modules.
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


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
