"""Which columns and rows of a log a read wants.

Law: what comes are the wanted columns of the rows that the predicate is true for. The columns of the predicate are read with
them, wanted or not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from bookspark.spark.where.binding import bound
from bookspark.spark.where.choosing import Chooser
from bookspark.spark.where.filtering import kept
from bookspark.spark.where.grammar import Node

if TYPE_CHECKING:
    import pyarrow


class Wanted:
    """What a read wants. ``names``: the columns; ``where``: which rows, None: all; ``schema``: all columns that there are.

    Raises ConfigurationError if the predicate does not fit to the columns.
    """

    def __init__(self, names: Sequence[str], where: Node | None, schema: StructType) -> None:
        self._names = list(names)
        self._predicate = None if where is None else bound(where, schema)
        others = set() if self._predicate is None else self._predicate.columns.difference(self._names)
        self.names_read = [*self._names, *(name for name in schema.names if name in others)]
        """The columns to read."""

    def of(self, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """What is wanted of ``rows``, which have the columns ``names_read``."""
        if self._predicate is None:
            return rows
        rows = kept(rows, self._predicate)
        return rows if len(self._names) == len(self.names_read) else rows.select(self._names)

    def chooser(self, log: str, schema: StructType, added: Collection[str]) -> Chooser | None:
        """Chooses what to read of ``log``, which has the columns ``schema``, and ``added`` that reading adds; None: all."""
        if self._predicate is None:
            return None
        missing = self._predicate.columns.difference(schema.names).difference(added)
        return Chooser(self._predicate, log, missing, added)
