"""The bytes of log records and commit entries: msgspec's JSON, readable in ``bookspark ledger read``.

Law: each document has its format number. An unknown format is an error that says so, never a guess.

* the name of a log: ``{"format": 1, "name": {"id": …}}``
* the record of a log or lane: ``{"format": 1, "log": LogRecord}``
* entry 0 of a commit ledger: ``{"format": 1, "header": CommitHeader}``
* each other entry: ``{"format": 1, "commit": Commit}``, its ranges as arrays ``[ledger, first, last, rows, size]``

Fields that have their defaults are left out: a log of small micro-batches has a commit for each.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any

import msgspec

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.commits import Commit, CommitHeader
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.store.metadata.records.documents import NOT_DECODED, proven

FORMAT = 1


class LogFormatError(BookKeeperError):
    """A log's record or commit entry is not in this version's format."""


class Named(msgspec.Struct, frozen=True):
    """The log to which a name points."""

    id: int


class _Envelope(msgspec.Struct, frozen=True):
    format: int
    name: Named | None = None
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


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Envelope)
_VERSION_DECODER = msgspec.json.Decoder(_Version)
_TIME_DECODER = msgspec.json.Decoder(_Timed)


def _defaults(kind: Any) -> dict[str, Any]:
    defaults = {}
    for field in fields(kind):
        if field.default is not MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


_DEFAULTS = {kind: _defaults(kind) for kind in (LogRecord, CommitHeader, Commit)}


def _decode(data: bytes, field: str, what: str) -> Any:
    try:
        try:
            envelope = _DECODER.decode(data)
            version = envelope.format
        except NOT_DECODED:
            # A newer version may write fields of unknown types.
            version = _VERSION_DECODER.decode(data).format
            if version <= FORMAT:
                raise
        if version > FORMAT:
            raise LogFormatError(f"{what}: format {version} is newer than {FORMAT}; use a newer version of bookspark")
        value = getattr(envelope, field)
    except NOT_DECODED as error:
        raise LogFormatError(f"{what}: not a {field} of a log ({error})") from error
    if value is None:
        raise LogFormatError(f"{what}: holds no {field} of a log")
    return value


def _encode(what: str, value: Any) -> bytes:
    defaults = _DEFAULTS[type(value)]
    kept = {
        field.name: content
        for field in fields(value)
        # A later version may have other default options, and a log keeps its own.
        if field.compare
        and ((content := getattr(value, field.name)) != defaults.get(field.name, MISSING) or field.name == "options")
    }
    return _ENCODER.encode({"format": FORMAT, what: kept})


def encode_name(log_id: int) -> bytes:
    """Encode the id to which a log's name points."""
    return _ENCODER.encode({"format": FORMAT, "name": Named(log_id)})


def decode_name(data: bytes, name: str) -> int:
    """Decode the id to which a log's name points. Raises LogFormatError, with the name."""
    named: Named = _decode(data, "name", f"name {name!r} of a log")
    return named.id


def encode_record(record: LogRecord) -> bytes:
    """Encode a log's record. Raises InvalidArgumentError if it could not be decoded again."""
    return proven(
        record,
        lambda one: _encode("log", one),
        lambda data: decode_record(data, record.name),
        f"record of log {record.name!r}",
    )


def decode_record(data: bytes, name: str, changed_ms: int = 0) -> LogRecord:
    """Decode a log's record. ``changed_ms``: as in LogRecord. Raises LogFormatError, with the log's name."""
    record: LogRecord = _decode(data, "log", f"record of log {name!r}")
    if changed_ms:
        # The decoded object is nobody else's yet.
        object.__setattr__(record, "changed_ms", changed_ms)
    return record


def encode_header(header: CommitHeader) -> bytes:
    return _encode("header", header)


def decode_header(data: bytes, ledger_id: int) -> CommitHeader:
    """Decode entry 0 of a commit ledger. Raises LogFormatError, with the ledger's id."""
    header: CommitHeader = _decode(data, "header", f"commit ledger {ledger_id}, entry 0")
    return header


def encode_commit(commit: Commit) -> bytes:
    return _encode("commit", commit)


def decode_commit(data: bytes, ledger_id: int, entry_id: int) -> Commit:
    """Decode a commit entry. Raises LogFormatError, with the ids of ledger and entry."""
    commit: Commit = _decode(data, "commit", f"commit ledger {ledger_id}, entry {entry_id}")
    return commit


def time_of_commit(data: bytes, ledger_id: int, entry_id: int) -> int:
    """Decode only the time of a commit, in ms since 1970. Raises LogFormatError, with the ids of ledger and entry."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        timed = _TIME_DECODER.decode(data)
        if timed.format <= FORMAT:
            return timed.commit.time_ms
    return decode_commit(data, ledger_id, entry_id).time_ms
