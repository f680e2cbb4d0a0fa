"""Before a bookie serves: does the metadata know that the ids were given out of which the bookie holds something?

Law: as in ``protocol.bookie.lost_records``. A boot that can't find out waits, or ends with the error of the metadata store.
"""

from __future__ import annotations

import logging

from bookspark.bookie.storage import Storage
from bookspark.metadata.lost_records import note_lost_records
from bookspark.metadata.store import MetadataStore
from bookspark.protocol.bookie.lost_records import LostRecords, lost_records

log = logging.getLogger(__name__)


def keep_lost_records(storage: Storage, store: MetadataStore) -> LostRecords | None:
    """Note and skip the ids that the metadata does not know; returns them, None if there are none. Raises
    MetadataStoreError, and UnreadableRecordError."""
    # No id is taken to find out: it may be one of those that are held.
    given_out = store.highest_ledger_id()
    if not _held_from(storage, given_out):
        return None
    given_out = max((given_out, *store.list_ledgers()[-1:]))
    lost = lost_records(_held_from(storage, given_out), given_out)
    if lost is not None:
        log.error(
            "ledgers from %d on are held here, and the metadata gave out no id beyond %d: an older copy of ZooKeeper's data was "
            "put back, so their records are lost. Their entries are kept, and the ids up to %d are given to no other ledger "
            "(docs/guides/backup.md)",
            given_out + 1, given_out, lost.last,
        )  # fmt: skip
        note_lost_records(store, lost)
        store.skip_ledger_ids(lost.last)
    return lost


def _held_from(storage: Storage, above: int) -> list[int]:
    """Ids above this one of which there are entries or control state, many of them twice."""
    return storage.holdings.index.ledger_ids(above + 1) + storage.holdings.ledgers.ids.since(above + 1)
