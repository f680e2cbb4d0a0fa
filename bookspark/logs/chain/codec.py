"""The bytes of log records and commit entries: msgspec's JSON, readable in ``bookspark ledger read``.

Law: each document has its format number. An unknown format is an error that says so, never a guess.

* record ``/bookspark/logs/<name>``: ``{"format": 1, "log": LogRecord}``. Format 2: the log has several lanes; an earlier version
  would take one lane for the log. Format 3: the log has ended lanes, or the lane has ended
* entry 0 of a commit ledger: ``{"format": 1, "header": CommitHeader}``
* each other entry: ``{"format": 1, "commit": Commit}``, its ranges as arrays ``[ledger, first, last, rows, size]``. Format 2: the
  commit opens a ledger; an earlier version would miss its rows

Newer fields are omitted while empty, so data that an earlier version wrote is encoded to the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.commits import Commit, CommitHeader
from bookspark.protocol.logs.log_record import Lane, LogRecord
from bookspark.store.metadata.records.documents import NOT_DECODED, proven

FORMATS = {"log": 3, "header": 1, "commit": 2}
"""Newest known format of each document."""


class LogFormatError(BookKeeperError):
    """A log's record or commit entry is not in this version's format."""


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    log: LogRecord | None = None
    header: CommitHeader | None = None
    commit: Commit | None = None


class _Version(msgspec.Struct, frozen=True):
    format: int = 0


class _Time(msgspec.Struct, frozen=True):
    time_ms: int = 0


class _Timed(msgspec.Struct, frozen=True):
    """A commit of which only the time is decoded."""

    format: int
    commit: _Time


_LATER = (
    "owner_query",
    "batch_writes",
    "batch_epoch",
    "fingerprint",
    "fingerprints",
    "time_ms",
    "first_row",
    "first_byte",
    "stamped",
    "checkpoint",
    "lanes",
    "lanes_made",
    "ended_lanes",
    "ended_count",
    "ended_ms",
    "after",
    "statistics",
    "link_starts",
)
"""Newer fields of the record, the commit and the header, omitted while empty."""

_OPENS, _ENDED = "open_ledger", "ended_rows"
"""Newer fields too; omitted if None, because 0 is a ledger or a number of rows."""
_FORMAT_2, _FORMAT_3 = frozenset({"lanes", _OPENS}), frozenset({"ended_count", _ENDED})

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Envelope)
_VERSION_DECODER = msgspec.json.Decoder(_Version)
_TIME_DECODER = msgspec.json.Decoder(_Timed)


def _decode(data: bytes, field: str, what: str) -> Any:
    try:
        try:
            found = _DECODER.decode(data)
            version = found.format
        except NOT_DECODED:
            # A newer version may write fields of unknown types.
            version = _VERSION_DECODER.decode(data).format
            if version <= FORMATS[field]:
                raise
        if version > FORMATS[field]:
            raise LogFormatError(
                f"{what}: format {version} is newer than {FORMATS[field]}; use a newer version of bookspark"
            )
        value = getattr(found, field)
    except NOT_DECODED as error:
        raise LogFormatError(f"{what}: not a {field} of a log ({error})") from error
    if value is None:
        raise LogFormatError(f"{what}: holds no {field} of a log")
    return value


def _encode(what: str, value: LogRecord | CommitHeader | Commit) -> bytes:
    fields: dict[str, Any] = msgspec.to_builtins(value)
    for name in _LATER:
        if name in fields and not fields[name]:
            del fields[name]
    for name in (_OPENS, _ENDED):
        if fields.get(name, 0) is None:
            del fields[name]
    if "lanes" in fields:
        # The last field of a lane (its writer's earlier lane) is newer too.
        fields["lanes"] = [lane if lane[-1] else lane[:-1] for lane in fields["lanes"]]
    return _ENCODER.encode({"format": _format(fields), what: fields})


def _format(fields: Mapping[str, Any]) -> int:
    """Earliest format with all of these fields."""
    after = any(len(lane) == len(Lane._fields) for lane in fields.get("lanes", ()))
    if after or not fields.keys().isdisjoint(_FORMAT_3):
        return 3
    return 1 if fields.keys().isdisjoint(_FORMAT_2) else 2


def encode_record(record: LogRecord) -> bytes:
    """Encode a log's record. Raises InvalidArgumentError if it could not be decoded again."""
    return proven(
        record,
        lambda one: _encode("log", one),
        lambda data: decode_record(data, record.name),
        f"record of log {record.name!r}",
    )


def decode_record(data: bytes, name: str) -> LogRecord:
    """Decode a log's record. Raises LogFormatError, with the log's name."""
    record: LogRecord = _decode(data, "log", f"record of log {name!r}")
    return record


def encode_header(header: CommitHeader) -> bytes:
    """Encode entry 0 of a commit ledger."""
    return _encode("header", header)


def decode_header(data: bytes, ledger_id: int) -> CommitHeader:
    """Decode entry 0 of a commit ledger. Raises LogFormatError, with the ledger's id."""
    header: CommitHeader = _decode(data, "header", f"commit ledger {ledger_id}, entry 0")
    return header


def encode_commit(commit: Commit) -> bytes:
    """Encode a commit entry."""
    return _encode("commit", commit)


def decode_commit(data: bytes, ledger_id: int, entry_id: int) -> Commit:
    """Decode a commit entry. Raises LogFormatError, with the ids of ledger and entry."""
    commit: Commit = _decode(data, "commit", f"commit ledger {ledger_id}, entry {entry_id}")
    return commit


def time_of_commit(data: bytes, ledger_id: int, entry_id: int) -> int:
    """Decode only the time of a commit, in ms since 1970. Raises LogFormatError, with the ids of ledger and entry."""
    with suppress(msgspec.MsgspecError):
        found = _TIME_DECODER.decode(data)
        if found.format <= FORMATS["commit"]:
            return found.commit.time_ms
    return decode_commit(data, ledger_id, entry_id).time_ms
