"""Before a bookie serves: does the metadata know that the ids were given out of which the bookie holds something?

Law: as in ``protocol.bookie.lost_records``. A boot that can't find out waits, or ends with the error of the metadata store.
"""

from __future__ import annotations

import contextlib
import logging

from bookspark.errors import InvalidArgumentError
from bookspark.protocol.bookie.lost_records import LostRecords, lost_records, skipped_to
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.lost_records import note_lost_records
from bookspark.store.metadata.store import MetadataStore

log = logging.getLogger(__name__)


def keep_lost_records(storage: Storage, store: MetadataStore) -> LostRecords | None:
    """Note the ids that the metadata does not know, and skip them; returns them, None if there are none. Raises
    MetadataStoreError, and UnreadableRecordError."""
    # No id is taken to find out: it may be one of those that are held.
    given_out = store.highest_ledger_id()
    if not _held_from(storage, given_out):
        return None
    given_out = max((given_out, *store.list_ledgers()[-1:]))
    lost = lost_records(_held_from(storage, given_out), given_out)
    if lost is not None:
        last = skipped_to(lost, store.last_ledger_id())
        kept = f"the ids up to {last} are given to no other ledger"
        log.error(
            "ledgers from %d on are held here, and the metadata gave out no id beyond %d: an older copy of ZooKeeper's data was "
            "put back, so their records are lost. Their entries are kept, and %s (docs/guides/backup.md)",
            given_out + 1, given_out, f"give no ledger an id up to {lost.last}" if last is None else kept,
        )  # fmt: skip
        note_lost_records(store, lost)
        if last is not None:
            store.skip_ledger_ids(last)
        else:
            # In a cluster for BookKeeper's clients there are no ledgers beyond theirs.
            with contextlib.suppress(InvalidArgumentError):
                store.note_given_id(lost.last)
    return lost


def _held_from(storage: Storage, above: int) -> list[int]:
    """Ids above this one of which there are entries or control state, many of them twice."""
    return storage.holdings.index.ledger_ids(above + 1) + storage.holdings.ledgers.ids.since(above + 1)
