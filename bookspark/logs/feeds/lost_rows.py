"""Rows that a read asked for and that are gone: an error, or a count and a line in the log (option ``failOnDataLoss``)."""

from __future__ import annotations

import logging

from bookspark.errors import DataLossError

log = logging.getLogger(__name__)


def data_loss(what: str, fail: bool, rows: int | None = None) -> None:
    """Raise DataLossError if ``fail``; else log that the reader goes on without the rows. ``what``: which rows are lost, in
    words."""
    if fail:
        raise DataLossError(
            f"{what}. To go on without them, set option failOnDataLoss to false: they are then skipped and logged"
        )
    them = "them" if rows is None else f"these {rows} rows"
    log.warning("%s; the reader goes on without %s (failOnDataLoss=false)", what, them)


class PassedOver:
    """Counts the rows that planning left out. Each row is counted and logged once, although Spark may plan it twice."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self.rows = 0
        """The number of rows that were left out."""
        self.told_elsewhere = False
        """Is the caller told of each gap by itself? Then nothing is counted, and nothing fails."""
        self._up_to: dict[str, int] = {}

    def add(self, what: str, source: str, first: int, last: int) -> None:
        """Count the rows of ``source`` from ``first`` to before ``last``, which are gone. Raises DataLossError if the read is to
        fail."""
        if self.told_elsewhere:
            return
        rows = last - max(first, self._up_to.get(source, first))
        if rows > 0:
            data_loss(what, self._fail, rows)
            self.rows += rows
            self._up_to[source] = last
