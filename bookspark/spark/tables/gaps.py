"""The system table of gaps: rows of logs that can't be read.

Law: a gap is what a read finds now (``logs.feeds.gaps``); nothing of it is stored, so all rows of the logs are read. Of logs with
another password than the given one there are no gaps here; table ``logs`` says which those are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookspark.errors import UnauthorizedAccessError
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.feeds.gaps import gaps_of_lane
from bookspark.protocol.logs.log_record import NoSuchLogError
from bookspark.spark.tables.table import LONG, TEXT, Rows, SystemTable

if TYPE_CHECKING:
    from bookspark.client import BookKeeper


def _lanes(bookkeeper: BookKeeper) -> list[str]:
    return LogRegistry(bookkeeper.metadata).lane_names()


def _gap_rows(bookkeeper: BookKeeper, name: str, password: bytes) -> Rows:
    try:
        for gap in gaps_of_lane(bookkeeper, name, password):
            yield name, gap.lane, gap.first, gap.last, gap.rows, gap.kind.value
    except (NoSuchLogError, UnauthorizedAccessError):
        # It was deleted since the listing, or the password is not its.
        return


GAPS = SystemTable(
    "gaps",
    "One row per run of rows of a log that can't be read. This reads all rows of the logs.",
    (
        ("log", TEXT, "Name of the log or lane (orders@1)"),
        ("lane", LONG, "Number of the lane"),
        ("first", LONG, "Position of the first row in the lane"),
        ("last", LONG, "Position of the last row in the lane"),
        ("rows", LONG, "Number of rows"),
        ("kind", TEXT, "truncated, lost or not_yet_known"),
    ),
    _lanes,
    _gap_rows,
)
