"""Collection of copies on a bookie that the metadata does not name: after an outage, a repair or a move.

Law: a bookie collects a copy only if

1. the ledger is closed (one that is open or in recovery may still name any bookie), and its record assigns the entry to other
   bookies, or ends before it with a last fragment that names this bookie,
2. each bookie that the record names for the entry says that it holds the entry: else this copy may be the last one,
3. no repair of the ledger is due or under way, since it may be copying here,
4. the record was then written, unchanged, by compare-and-set at the version that 1 to 3 were judged by: a repair or move that
   read an earlier version, and copied here, can't name its copies any more (``repair.ledger_replication``),
5. no request for the ledger was granted since before that record was read: a copy made after it counts.

::

    held ──CLOSED, not named──► spare ──others hold it, no task──► record written, unchanged ──no request meanwhile──► collected
                                  └──────────────── a silent bookie, a task, a conflict, a request ──────────────────► kept

An older copy of the metadata, put back, names bookies of before, and may end a ledger early. So no copy is collected while the
metadata has lost records (``lost_records``), and entries beyond the end stay on a bookie that the last fragment does not name.

A reader with an older record gets a Negative, reads the record again and asks the named bookies. A bookie that is named for
nothing, and keeps nothing, forgets the whole ledger as if it were deleted (``garbage_collection``): a closed ledger has no adds
that its fence would have to stop, and ``CollectionNoted`` covers it.

BookKeeper looks once a day, asks no other bookie, and relies on its repairs' locks alone (2); a repair whose session ended while
it copied can name a copy that was collected. Source: ``ScanAndCompareGarbageCollector.removeOverReplicatedledgers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from bookspark.protocol.ledger.entry_ranges import EntryRanges, with_ranges, without_ranges
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.replication_plan import assigned, missing

Held = Iterable[tuple[int, int]]
"""Ascending, inclusive ranges of entry ids that don't overlap."""


_NO_END = (1 << 63) - 1


def names(metadata: LedgerMetadata, bookie: str) -> bool:
    return any(bookie in fragment.ensemble for fragment in metadata.fragments)


def may_be_spare(metadata: LedgerMetadata, bookie: str, last_held: int) -> bool:
    """Can the bookie hold an unnamed copy? ``last_held``: its highest entry id. A quick look before ``spare_copies``."""
    striped = metadata.ensemble_size > metadata.write_quorum
    named_by_all = all(bookie in fragment.ensemble for fragment in metadata.fragments)
    return metadata.closed and (striped or not named_by_all or last_held > metadata.last_entry_id)


def spare_copies(metadata: LedgerMetadata, bookie: str, held: Held) -> EntryRanges:
    """The unnamed copies of ``held``; none of a ledger that is not closed."""
    if not metadata.closed:
        return ()
    spare = tuple(missing(held, assigned(metadata, bookie)))
    if bookie in metadata.last_fragment.ensemble:
        return spare
    return without_ranges(spare, [(metadata.last_entry_id + 1, _NO_END)])


def bookies_to_ask(metadata: LedgerMetadata, spare: EntryRanges) -> list[str]:
    """The bookies named for any entry of ``spare``."""
    named: set[str] = set()
    for fragment, last in metadata.fragment_ranges():
        end = metadata.last_entry_id if last is None else last
        if any(first <= end and fragment.first_entry_id <= high for first, high in spare):
            named.update(fragment.ensemble)
    return sorted(named)


def collectable_copies(metadata: LedgerMetadata, spare: EntryRanges, others: Mapping[str, Held]) -> EntryRanges:
    """The part of ``spare`` that every bookie named for it holds. ``others``: the held ranges of the bookies that answered."""
    lacking = (missing(assigned(metadata, name), others.get(name, ())) for name in metadata.bookies())
    return without_ranges(spare, with_ranges((), chain.from_iterable(lacking)))
