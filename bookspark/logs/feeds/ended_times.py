"""Times in lanes that have ended.

Law: of an ended lane nothing changes but what is left of it: rows are truncated, and the log is deleted. So a search asks for its
record, which tells both, and no reader of the lane is made. What searches have looked at is kept for those lanes in which times
were looked for last (``KnownLedgers``).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from bookspark.logs.chain.commit_times import KnownLedgers, row_at
from bookspark.protocol.logs.log_record import LogRecord

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

_LANES_MAX = 64
"""Of how many lanes that is kept."""


class EndedTimes:
    """The searches of one feed."""

    def __init__(self, bookkeeper: BookKeeper, password: bytes) -> None:
        self._bookkeeper, self._password = bookkeeper, password
        self._known: OrderedDict[str, KnownLedgers] = OrderedDict()

    def row_at(self, record: LogRecord, time_ms: int) -> int:
        """The first row that is still there, of the lane of ``record``, as it was read just now, and was committed at ``time_ms``
        or later; the end, if there is none. Raises what ``commit_times.row_at`` does."""
        rows = record.ended_rows or 0
        if record.ended_ms < time_ms:
            return rows
        known = self._known.setdefault(record.name, KnownLedgers())
        self._known.move_to_end(record.name)
        if len(self._known) > _LANES_MAX:
            self._known.popitem(last=False)
        return row_at(self._bookkeeper, record.name, self._password, time_ms, rows, None, known, record)
