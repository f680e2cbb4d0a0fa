"""What the commands of logs print: readers, rows and retentions, as values that JSON and tables take."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

from bookspark.cli.terminal.output import payload_document

if TYPE_CHECKING:
    from bookspark.logs import LogRow
    from bookspark.logs.readers.lag import ReaderLag
    from bookspark.protocol.logs.retention import Retention


def iso_time(milliseconds: int) -> str:
    """A time in ms since 1970, in ISO 8601."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def retention_document(kept: Retention) -> dict[str, float | int | None]:
    """How long rows of a log stay; None: for ever."""
    return {
        "retention_hours": kept.retention_ms / 3_600_000 if kept.retention_ms else None,
        "retention_bytes": kept.retention_bytes or None,
    }


def reader_document(one: ReaderLag) -> dict[str, Any]:
    """Who reads a log, and how far behind."""
    return {
        "reader": one.title,
        "kind": one.kind.value,
        "id": one.reader,
        "log": one.log,
        "state": one.state.value,
        "lanes": {str(lane): row for lane, row in one.lanes.items()},
        "lag_rows": one.lag_rows,
        "lag_seconds": None if one.lag_seconds is None else round(one.lag_seconds, 1),
        "heard": iso_time(one.heard_ms),
        "since": iso_time(one.since_ms),
        "problem": one.problem,
    }


def row_document(row: LogRow) -> bytes:
    """A row with its lane, position and time, as one line of JSON."""
    moment = datetime.fromtimestamp(row.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return json_line({"lane": row.lane, "position": row.position, "time": moment, **payload_document(row.value)})


def json_line(row: dict[str, Any]) -> bytes:
    """Columns and their values, as one line of JSON."""
    return json.dumps(row, default=_plain, ensure_ascii=False).encode()


def _plain(value: Any) -> object:
    """Values that JSON has no type for: bytes as ``ledger read --json`` prints them, times in ISO 8601, others as text."""
    if isinstance(value, bytes):
        return payload_document(value)
    return value.isoformat() if isinstance(value, date | time) else str(value)
