"""Ledgers that have lost their records, because an older copy of the metadata was restored (``protocol.bookie.lost_records``).

Law: bookies add to the record, and a person removes from it. Record, as JSON::

    lost_records/ledgers    {"ranges": [[42, 1057]]}
"""

from __future__ import annotations

import msgspec

from bookspark.errors import MetadataStoreError, MetadataVersionError
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.entry_ranges import with_ranges
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.records.refusals import version_changed
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.store import MetadataStore

_KIND, _NAME = "lost_records", "ledgers"
_WHAT = "the note of lost records"
_ATTEMPTS = 20


class _Document(msgspec.Struct, frozen=True):
    ranges: tuple[LostRecords, ...] = ()


learn(_Document)


def read_lost_records(store: MetadataStore) -> tuple[LostRecords, ...]:
    """The ids without records, ascending. Raises MetadataStoreError, and UnreadableRecordError."""
    found = store.read_record(_KIND, _NAME)
    return () if found is None else _ranges(found)


def note_lost_records(store: MetadataStore, lost: LostRecords) -> None:
    """Add ids without records. Raises MetadataStoreError, and UnreadableRecordError."""
    for _ in range(_ATTEMPTS):
        found = store.read_record(_KIND, _NAME)
        before = () if found is None else _ranges(found)
        after = tuple(LostRecords(*one) for one in with_ranges(before, [lost]))
        if after == before:
            return
        try:
            store.write_record(
                _KIND, _NAME, proven_struct(_Document(after), _WHAT), None if found is None else found.version
            )
            return
        except MetadataVersionError:
            continue
    raise MetadataStoreError(f"{_WHAT} changes faster than it can be read; try again")


def give_up_lost_records(store: MetadataStore, given_up: tuple[LostRecords, ...]) -> None:
    """Forget the lost records, so that bookies collect their entries. ``given_up``: the value read before. Raises
    MetadataStoreError, MetadataVersionError if it changed meanwhile, and UnreadableRecordError."""
    found = store.read_record(_KIND, _NAME)
    if found is None:
        return
    if _ranges(found) != given_up:
        raise version_changed(_WHAT, found.version)
    store.delete_record(_KIND, _NAME, found.version)


def _ranges(found: Versioned[bytes]) -> tuple[LostRecords, ...]:
    return read_struct(found.value, _Document, _WHAT).ranges
