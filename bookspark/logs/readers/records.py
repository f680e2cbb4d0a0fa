"""The records of readers in the metadata store: ``/bookspark/readers/<key>@<id of the log>``, or ``<key>@<id>@3`` of a lane's. A
reader draws its key at its start.

Law: a record is changed by compare-and-set. Only readers of existing logs have records: ``LogRegistry.forget`` deletes them with
the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from bookspark.errors import MetadataVersionError, UnreadableRecordError
from bookspark.logs.chain.registry import READERS, LogRegistry
from bookspark.protocol.logs.lanes import MARK, lane_of
from bookspark.protocol.logs.reader_record import ReaderRecord, outdated
from bookspark.store.metadata.records.documents import proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore, change_record

log = logging.getLogger(__name__)


def update(
    store: MetadataStore, name: str, change: Callable[[ReaderRecord | None], ReaderRecord | None]
) -> ReaderRecord | None:
    """Change the record ``name`` to ``change(record)``, or leave it if that is None. Returns the resulting record; None if its
    log was deleted. Raises MetadataVersionError if other clients keep changing it, and MetadataStoreError."""
    record: ReaderRecord | None = None

    def changed(document: bytes | None) -> bytes | None:
        nonlocal record
        record = None if document is None else _decoded(document, name)
        if document is None and not LogRegistry(store).exists(_log_of(name)):
            return None
        after = change(record)
        if after is None:
            return None
        record = after
        return proven_struct(replace(after, heard_ms=0), f"reader {name!r}")

    change_record(store, READERS, name, f"reader {name!r}", changed)
    return record


def records_of(store: MetadataStore, log_id: int) -> dict[str, ReaderRecord]:
    """Record name → record, for the readers of a log and of its lanes. Skips and logs a damaged record."""
    return {name: record for name, record, _ in _versioned(store, log_id)}


def forget_outdated(store: MetadataStore, log_id: int) -> None:
    """Delete the outdated records of a log's readers, but not those of readers that report meanwhile. For a reader that has just
    reported: its own record shows the time by the store's clock. Raises MetadataStoreError."""
    found = list(_versioned(store, log_id))
    records, versions = {name: one for name, one, _ in found}, {name: version for name, _, version in found}
    for name in outdated(records, max((record.heard_ms for record in records.values()), default=0)):
        with suppress(MetadataVersionError):
            store.delete_record(READERS, name, versions[name])


def _versioned(store: MetadataStore, log_id: int) -> Iterator[tuple[str, ReaderRecord, int]]:
    for name in store.list_records(READERS):
        if _log_of(name) != log_id:
            continue
        document = store.read_record(READERS, name)
        record = None if document is None else _decoded(document.value, name)
        if document is not None and record is not None:
            yield name, replace(record, heard_ms=document.changed_ms), document.version


def _log_of(name: str) -> int:
    return int(lane_of(name.partition(MARK)[2])[0])


def _decoded(document: bytes, name: str) -> ReaderRecord | None:
    try:
        return read_struct(document, ReaderRecord, f"reader {name!r}")
    except UnreadableRecordError as error:
        log.warning("%s", error)
        return None
