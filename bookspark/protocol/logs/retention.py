"""How long the rows of a log stay: by time, by bytes, or for ever.

Law: rows go from the front of a lane, whole commits at a time, and only beyond one of the bounds:

* by time: a commit whose rows are all older than ``retention_ms``, by the metadata store's clock. A lane's times never go back.
* by bytes: a commit behind which at least ``retention_bytes`` of the lane are committed.

docs/decisions/lanes.md lists rows that stay longer.

The document is ``/bookspark/retention/<id of the log>``. Source: Kafka's ``retention.ms`` and ``retention.bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookspark.errors import ConfigurationError
from bookspark.protocol.logs.commits import Commit, Position
from bookspark.protocol.logs.log_record import LogRecord


@dataclass(frozen=True)
class Retention:
    retention_ms: int = 0
    """Age of rows to drop, in ms; 0: no bound."""
    retention_bytes: int = 0
    """A lane's rows go while at least this many bytes follow them; 0: no bound."""

    @property
    def forever(self) -> bool:
        return not (self.retention_ms or self.retention_bytes)

    def expired(self, commit: Commit, after: Position, size: int, now_ms: int) -> bool:
        """May the rows of ``commit`` go? ``after``: the position behind it; ``size``: the bytes of the lane's commits."""
        by_time = self.retention_ms > 0 and 0 < commit.time_ms < now_ms - self.retention_ms
        return by_time or (self.retention_bytes > 0 and size - after.size >= self.retention_bytes)


def check_not_offloaded(record: LogRecord) -> None:
    """Raise ConfigurationError if rows of the lane are offloaded: they would go from the log, and stay in the table."""
    if record.offload is not None:
        raise ConfigurationError(
            f"log {record.name!r} is offloaded to {record.offload.table}, and a log has either a retention or an offload: "
            "rows would be gone from the log while the table still has them. Delete rows of the table by its own means, or leave "
            "the retention out"
        )
