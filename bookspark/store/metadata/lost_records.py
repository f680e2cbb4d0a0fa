"""Ledgers that have lost their records, because an older copy of the metadata was restored (``protocol.bookie.lost_records``).

Law: bookies add to the record, and a person removes from it. Record, as JSON::

    lost_records/ledgers    {"ranges": [[42, 1057]]}
"""

from __future__ import annotations

from functools import partial

import msgspec

from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.entry_ranges import with_ranges
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.records.refusals import version_changed
from bookspark.store.metadata.records.versioned import compare_and_set
from bookspark.store.metadata.store import MetadataStore

_KIND, _NAME = "lost_records", "ledgers"
_WHAT = "the note of lost records"


class _Document(msgspec.Struct, frozen=True):
    ranges: tuple[LostRecords, ...] = ()


learn(_Document)


def read_lost_records(store: MetadataStore) -> tuple[LostRecords, ...]:
    """The ids without records, ascending. Raises MetadataStoreError, and UnreadableRecordError."""
    found = store.read_record(_KIND, _NAME)
    return () if found is None else _ranges(found.value)


def note_lost_records(store: MetadataStore, lost: LostRecords) -> None:
    """Add ids without records. Raises MetadataStoreError, and UnreadableRecordError."""

    def added(document: bytes | None) -> bytes | None:
        before = () if document is None else _ranges(document)
        after = tuple(LostRecords(*one) for one in with_ranges(before, [lost]))
        return None if after == before else proven_struct(_Document(after), _WHAT)

    compare_and_set(_WHAT, partial(store.read_record, _KIND, _NAME), added, partial(store.write_record, _KIND, _NAME))


def give_up_lost_records(store: MetadataStore, given_up: tuple[LostRecords, ...]) -> None:
    """Forget the lost records, so that bookies collect their entries. ``given_up``: the value read before. Raises
    MetadataStoreError, MetadataVersionError if it changed meanwhile, and UnreadableRecordError."""
    found = store.read_record(_KIND, _NAME)
    if found is None:
        return
    if _ranges(found.value) != given_up:
        raise version_changed(_WHAT, found.version)
    store.delete_record(_KIND, _NAME, found.version)


def _ranges(document: bytes) -> tuple[LostRecords, ...]:
    return read_struct(document, _Document, _WHAT).ranges
