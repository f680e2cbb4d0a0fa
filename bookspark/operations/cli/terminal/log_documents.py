"""What the commands of logs print: readers, rows and retentions, as values that JSON and tables take."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

import typer

from bookspark.operations.cli.terminal.output import payload_document
from bookspark.protocol.logs.lanes import lane_of
from bookspark.protocol.logs.log_record import LOG_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bookspark.logs import LogRow
    from bookspark.logs.readers.lag import ReaderLag
    from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
    from bookspark.protocol.logs.retention import Retention


TIME = "ms since 1970, or ISO 8601 with an offset, like 2026-11-22T14:05:00+01:00"
LOG_SIZES = ("log", "ledgers", "open", "bytes", "bytes_of_copies")


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


def log_sizes(names: Iterable[str], ledgers: Iterable[LedgerMetadata]) -> list[dict[str, Any]]:
    """What each log takes, the largest first. The log None: ledgers of no log. ``bytes`` are those of closed ledgers, and
    ``bytes_of_copies`` as many times what their write quorum says."""
    empty = dict.fromkeys(LOG_SIZES[1:], 0)
    found: dict[str | None, dict[str, Any]] = {name: {"log": name, **empty} for name in names}
    for one in ledgers:
        label = one.custom_metadata.get(LOG_LABEL)
        log = None if label is None else lane_of(label.decode(errors="backslashreplace"))[0]
        row = found.setdefault(log, {"log": log, **empty})
        row["ledgers"] += 1
        row["open"] += not one.closed
        length = one.length or 0
        row["bytes"] += length
        row["bytes_of_copies"] += length * one.write_quorum
    return sorted(found.values(), key=lambda row: (-row["bytes_of_copies"], row["log"] or ""))


def truncation_text(log: str, row: int, deleted: list[int]) -> str:
    """What a truncation did, and why it may have given no room."""
    text = f"log {log} begins at row {row}; ledgers deleted: {', '.join(map(str, deleted)) or 'none'}"
    if deleted or not row:
        return text
    return (
        f"{text}: a ledger goes when all of its rows are removed, and one of the lane's last writer when that writes on, or when "
        f"the lane is ended, if that writer is gone: bookspark log end {log}, and bookspark log collect {log}"
    )


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


def shown(value: Any) -> str:
    """A value of a table."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {one:,}" for key, one in value.items())
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def chosen_time_ms(option: str, text: str) -> int | None:
    """The time that an option says, in ms since 1970; None if it is empty."""
    from bookspark.logs.feeds.times import time_ms

    try:
        return time_ms(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} ({error}); give {TIME}", param_hint=f"--{option}") from None
