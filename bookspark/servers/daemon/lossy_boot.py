"""Phase one of a lossy boot: what the lost state had forbidden is forbidden again, before the bookie serves.

Law: the boot waits for phase one, and phase one fails closed. The bookie stays down, and says why, unless the metadata of every
ledger was read (or is deleted), and the mark, the fences and limbo are durable. ``protocol.bookie.bookie_boot`` decides.

Source: BP-46, "The Full Boot-Up Sequence"; docs/decisions/without-the-journal.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from bookspark.errors import BookieError, MetadataStoreError, NoSuchLedgerError, UnreadableRecordError
from bookspark.protocol.bookie.bookie_boot import answer_unsure, phase_one
from bookspark.protocol.bookie.bookie_ledger import FenceNoted
from bookspark.protocol.bookie.first_request import answer_first_request
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive, Unknown
from bookspark.store.bookie.ledgers.first_requests import FirstRequestCheck
from bookspark.store.bookie.ledgers.lossy_boots import LossyBoots
from bookspark.store.bookie.ledgers.unsure_adds import FenceCheck
from bookspark.store.bookie.storage import Storage
from bookspark.store.decisions.seam import decided
from bookspark.store.metadata.store import MetadataStore

_READS_AT_ONCE = 16
_LEDGERS_A_STEP = 4096

log = logging.getLogger(__name__)


def why_lossy(lossy_boots: LossyBoots, emptied: Sequence[str]) -> str:
    """Why the boot is lossy, for people; empty if it is not. ``emptied``: directories that had data and have none now."""
    reasons = [f"{directory} was emptied" for directory in emptied]
    reasons += [f"{directory} can't be read" for directory in lossy_boots.unreadable]
    reasons += [
        f"entries that {directory} had acknowledged may be lost"
        for directory in lossy_boots.unclean
        if directory not in emptied and not any(directory in why for why in lossy_boots.losses)
    ]
    reasons += lossy_boots.losses
    return "; ".join(reasons)


def fence_what_may_be_lost(
    storage: Storage, store: MetadataStore, bookie_id: str, emptied: Sequence[str], progress: Callable[[str], None]
) -> None:
    """Fence every ledger whose entries or fence may be lost, durably. ``emptied``: directories that had data and have none now.
    ``progress`` gets a line for people about how far the work is. Raises BookieError if metadata can't be read, and
    StorageError."""
    lossy_boots = storage.lossy_boots
    why = why_lossy(lossy_boots, emptied)
    try:
        highest = max(store.new_ledger_id(), store.highest_ledger_id())
        ids = store.list_ledgers()
        # What users gave was not noted in earlier versions; the listing has what is left of it.
        highest = max([highest, *ids[-1:]])
        unreadable: dict[int, str] = {}
        ledgers = _ledgers(store, ids, progress, unreadable)
        found = phase_one(bookie_id, ledgers, highest, lossy_boots.mark, unreadable)
    except MetadataStoreError as error:
        raise BookieError(
            f"this boot is lossy ({why}), so ledgers have to be fenced before {bookie_id} may serve, but not all of their "
            f"metadata could be read: {error}; start it again when the metadata store answers"
        ) from error
    lossy_boots.note_lossy_boot(found, fences_lost=bool(emptied) or lossy_boots.fences_lost)
    fenced = sum(isinstance(record, FenceNoted) for record in found.records)
    log.warning("lossy boot %d: %s. %d ledgers are fenced and in limbo", found.mark.boot, why, fenced)


def fence_check(store: MetadataStore, bookie_id: str) -> FenceCheck:
    """A check that asks the metadata, as it is at each call, whether a ledger had no fence to lose."""

    def check(ledger_id: int) -> Positive | Unknown:
        try:
            return decided(answer_unsure, bookie_id, store.read_ledger(ledger_id).value)
        except NoSuchLedgerError:
            return decided(answer_unsure, bookie_id, None)

    return check


def first_request_check(store: MetadataStore, bookie_id: str) -> FirstRequestCheck:
    """A check that asks the metadata, as it is at each call, whether a request may make a ledger known without an entry."""

    def check(ledger_id: int, master_key: bytes) -> Positive | Unknown:
        try:
            return answer_first_request(bookie_id, store.read_ledger(ledger_id).value, master_key)
        except NoSuchLedgerError:
            return answer_first_request(bookie_id, None, master_key)

    return check


def _ledgers(
    store: MetadataStore, ids: Sequence[int], progress: Callable[[str], None], unreadable: dict[int, str]
) -> Iterator[LedgerMetadata]:
    """The metadata of these ledgers. One that was deleted meanwhile is left out; one whose record can't be decoded is put into
    ``unreadable``, with the reason."""

    def read(ledger_id: int) -> LedgerMetadata | None:
        try:
            return store.read_ledger(ledger_id).value
        except NoSuchLedgerError:
            return None
        except UnreadableRecordError as error:
            log.error("ledger %d is fenced and in limbo, because it may name this bookie: %s", ledger_id, error)
            unreadable[ledger_id] = str(error)
            return None

    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="lossy boot") as threads:
        for start in range(0, len(ids), _LEDGERS_A_STEP):
            progress(f"lossy boot: {start} of {len(ids)} ledgers looked at")
            for metadata in threads.map(read, ids[start : start + _LEDGERS_A_STEP]):
                if metadata is not None:
                    yield metadata
