"""Requested rows that are gone: an error, or a count and a log message (option ``failOnDataLoss``)."""

from __future__ import annotations

import logging

from bookspark.errors import DataLossError

log = logging.getLogger(__name__)


def data_loss(what: str, fail: bool, rows: int | None = None) -> None:
    """Raise DataLossError if ``fail``; else log that the reader continues without the rows. ``what``: the lost rows, in words."""
    if fail:
        raise DataLossError(
            f"{what}. To go on without them, set Spark's option failOnDataLoss to false, which skips and logs them, or use "
            "RowReader.read_with_gaps"
        )
    them = "them" if rows is None else f"these {rows} rows"
    log.warning("%s; the reader goes on without %s (failOnDataLoss=false)", what, them)


class PassedOver:
    """Counts the missing rows of plans. Each row is counted and logged once, although Spark may plan it twice."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self.rows = 0
        self.told_elsewhere = False
        """Does the caller report each gap itself? Then rows are not counted, and the read does not fail."""
        self._up_to: dict[str, int] = {}

    def add(self, what: str, source: str, first: int, last: int) -> None:
        """Count the missing rows [``first``, ``last``) of ``source``. Raises DataLossError if the read is to fail."""
        if self.told_elsewhere:
            return
        rows = last - max(first, self._up_to.get(source, first))
        if rows > 0:
            data_loss(what, self._fail, rows)
            self.rows += rows
            self._up_to[source] = last
