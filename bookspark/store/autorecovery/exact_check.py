"""The exact check: compares the entries that every bookie lists with those that the metadata of all ledgers assigns to it.

Law: ``protocol.repair.audit_plan`` decides. The check reads whole lists and no entries. An error in a listing of ledgers ends
the check; a bookie that gives no whole list is skipped by name, and so is a ledger whose record can't be decoded.
Metadata is read before the lists, so every entry that the metadata calls confirmed had been written when the lists were read. A
bookie that heals itself is skipped until it has looked at each of its ledgers once: one that it can't heal does not turn the
check off.

The lists are what can be read, as far as the bookies know. A copy that was found unreadable, or that lies on a disk that failed,
is not listed, and each bookie reads all that it lists within ``scrub_interval_hours`` (``bookie.holdings.scrubbing``). So the
check itself reads none of it again.

The check holds the metadata of all ledgers in memory, and the ranges of one bookie at a time.

Source: docs/decisions/delta-snapshots.md.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from bookspark.errors import NoSuchLedgerError, ReadError, UnreadableRecordError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.audit_plan import absent, confirmed, mark_of_lacking, mark_of_lost, mark_of_misplaced
from bookspark.protocol.repair.underreplication_task import Mark
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.held_ranges import Ranges, held_ranges
from bookspark.store.decisions.seam import decided
from bookspark.store.metadata.autorecovery.auditors import CheckReport


class ExactCheck:
    """One check. ``pause(seconds)`` is called between bookies and waits; it may raise to break the check off."""

    def __init__(self, bookkeeper: BookKeeper, lost: Collection[str], pause: Callable[[float], None]) -> None:
        """``lost``: bookies that count as lost."""
        self._bookkeeper = bookkeeper
        self._lost = lost
        self._pause = pause
        self._skipped: dict[str, str] = {}

    def run(self, confirm_seconds: float) -> CheckReport:
        """Mark the ledgers that lack copies and report how many. Raises MetadataStoreError; then nothing was marked.

        ``confirm_seconds``: the pause after which the check looks again for entries that seem to be missing."""
        begun, store = time.monotonic(), self._bookkeeper.metadata
        unreadable: dict[int, str] = {}
        ledgers = [one.value for one in store.read_ledgers(store.list_ledgers(), unreadable)]
        registered, stamped = store.bookies(), set(store.list_cookies())
        by_bookie = _by_bookie(ledgers)
        gone = {
            bookie for bookie in by_bookie.keys() - registered.keys() if bookie in self._lost or bookie not in stamped
        }
        self._skipped = dict.fromkeys(sorted(by_bookie.keys() - registered.keys() - gone), "is away")
        suspicions = [
            (ledger_id, bookie, ranges)
            for bookie in sorted(by_bookie.keys() & registered.keys())
            for ledger_id, ranges in self._lacking(bookie, by_bookie[bookie])
        ]
        marks = [mark for metadata in ledgers if (mark := decided(mark_of_lost, metadata, gone)) is not None]
        marks += [mark_of_misplaced(*found) for found in self._bookkeeper.misplaced(ledgers)]
        if suspicions:
            self._pause(confirm_seconds)
            marks += self._confirmed(suspicions)
        store.underreplication.mark(marks)
        return CheckReport(
            finished_at_ms=time.time_ns() // 1_000_000,
            seconds=round(time.monotonic() - begun, 3),
            ledgers=len(ledgers),
            marked=len({mark.ledger_id for mark in marks}),
            skipped=self._skipped,
            unreadable=unreadable,
        )

    def _lacking(self, bookie: str, assigned: Sequence[LedgerMetadata]) -> Iterator[tuple[int, Ranges]]:
        """Ledgers of which the bookie lacks entries, each with the ranges that are absent."""
        self._pause(0)
        try:
            status = self._bookkeeper.bookie_status(bookie)
            if status.healed_boot < status.lossy_boot and not (status.healing and status.healing.saw_all):
                self._skipped[bookie] = "is healing itself"
                return
            held = held_ranges(self._bookkeeper, bookie)
        except ReadError as error:
            self._skipped[bookie] = str(error)
            return
        for metadata in assigned:
            ranges = decided(absent, metadata, bookie, held.get(metadata.ledger_id, ()))
            if ranges:
                yield metadata.ledger_id, ranges

    def _confirmed(self, suspicions: Sequence[tuple[int, str, Ranges]]) -> Iterator[Mark]:
        """Marks for the suspicions that metadata and lists of this moment still show."""
        for ledger_id, bookie, ranges in suspicions:
            try:
                metadata = self._bookkeeper.get_ledger_metadata(ledger_id)
                held = held_ranges(self._bookkeeper, bookie, ledger_id).get(ledger_id, ())
            except (NoSuchLedgerError, UnreadableRecordError):
                continue
            except ReadError as error:
                self._skipped[bookie] = str(error)
                continue
            still = decided(confirmed, ranges, decided(absent, metadata, bookie, held))
            if still:
                yield mark_of_lacking(ledger_id, bookie, still)


def _by_bookie(ledgers: Sequence[LedgerMetadata]) -> dict[str, list[LedgerMetadata]]:
    """The ledgers that name each bookie."""
    found: dict[str, list[LedgerMetadata]] = defaultdict(list)
    for metadata in ledgers:
        for bookie in {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}:
            found[bookie].append(metadata)
    return found
