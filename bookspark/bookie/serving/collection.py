"""Garbage collection: finding the ledgers that were deleted, and forgetting them.

Law: that of ``protocol.garbage_collection``, which decides; here the metadata is asked, in a thread, and its answers are sorted
into what that module knows: a listing that came to its end or did not, a record that is gone or of which nothing is known.

Source: BookKeeper's ``ScanAndCompareGarbageCollector``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial

from bookspark.bookie.disk.steps import WAIT, Steps
from bookspark.bookie.storage import Storage
from bookspark.errors import BookKeeperError, NoSuchLedgerError
from bookspark.metadata.store import MetadataStore
from bookspark.protocol.bookie.garbage_collection import Complete, Incomplete, Listing, collectable, suspects
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, Unknown, UnknownReason
from bookspark.wire.header import Status

_IDS_AT_ONCE = 1 << 16
"""A single call that makes a set of a million keeps the interpreter from the loop, in whatever thread it is made."""

log = logging.getLogger(__name__)


def collect(storage: Storage, store: MetadataStore) -> Steps[int]:
    """Forget every ledger that was deleted; returns how many. Their bytes come back when the logs are looked at next."""
    held = yield from storage.reclaiming.held()
    listing: Listing = yield partial(list_ledgers, store)
    if isinstance(listing, Incomplete):
        log.warning("nothing is collected, because the ledgers could not be listed: %s", listing.why)
    suspected: Sequence[int] = yield partial(suspects, held, listing)
    if not suspected:
        return 0
    records: dict[int, Response] = yield partial(read_records, store, suspected)
    gone: Sequence[int] = yield partial(collectable, suspected, records)
    if not gone:
        return 0
    noted: list[int] = []
    storage.note_collection(gone, noted.append)
    while not noted:
        yield WAIT
    if noted[0] != Status.OK:
        log.warning("nothing is collected, because it could not be noted in a control log")
        return 0
    yield from storage.forget(gone)
    log.info("%d deleted ledgers are collected", len(gone))
    return len(gone)


def list_ledgers(store: MetadataStore) -> Listing:
    """All ledgers that the metadata knows, or why that can't be told."""
    try:
        ids = store.list_ledgers()
    except BookKeeperError as error:
        return Incomplete(str(error))
    listed: set[int] = set()
    for start in range(0, len(ids), _IDS_AT_ONCE):
        listed.update(ids[start : start + _IDS_AT_ONCE])
    return Complete(listed)


def read_records(store: MetadataStore, ledger_ids: Iterable[int]) -> dict[int, Response]:
    """What the record of each ledger is answered. After the first that can't be told, no others are read."""
    answers: dict[int, Response] = {}
    for ledger_id in ledger_ids:
        try:
            store.read_ledger(ledger_id)
            answers[ledger_id] = Positive()
        except NoSuchLedgerError:
            answers[ledger_id] = Negative(NegativeReason.NO_SUCH_LEDGER)
        except BookKeeperError as error:
            answers[ledger_id] = Unknown(UnknownReason.UNREACHABLE, str(error))
            return answers
    return answers
