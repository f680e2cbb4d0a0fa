"""What a bookie may throw away: ledgers that were deleted, and no others.

Law: a ledger is collected only when two different looks at the metadata say that it is gone: a listing of all ledgers
that came to its end, and then a read of its own record that was answered with an explicit NoSuchLedger. A listing that
failed or was partial proves nothing, nor does a record that could not be read. ::

    held ──listing complete──► suspects ──its own record: NoSuchLedger──► collected ──CollectionNoted synced──► forgotten

The bookie has to note the ledgers that it holds (``held``) **before** the listing begins. A ledger's record is made before its
first add. So a ledger that was held by then and is not in the listing was deleted. A younger ledger may be missing because it is
young, and is kept. Ledger ids are not used twice.

A fence goes with its ledger, and the old writer's add may still be under way (#4462). BookKeeper remembers collected
ledgers that were fenced for seven days, in memory. Here one number is kept for all of them, for ever, and is
written before the first of them is forgotten: the highest id that was ever collected (``CollectionNoted``). If a ledger up to
that id is made anew, its fence is *unsure*, as below the lossy-boot mark (``bookie_boot.first_contact``). So the writer's adds
need metadata that says OPEN and names the bookie, and a deleted ledger has none. A new ledger has a higher id and costs nothing.

Source: docs/decisions/traps.md, traps 6 and 8; ``ScanAndCompareGarbageCollector`` of BookKeeper, which notes what it holds
first and reads the record of each suspect with ``verifyMetadataOnGC`` (#870: bugs in the listing deleted live ledgers);
``HandleFactoryImpl`` (#4462).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

from bookspark.protocol.ledger.responses import Negative, NegativeReason, Response


class Complete(NamedTuple):
    """The listing came to its end: it has every ledger that was there all the time."""

    ledgers: Set[int]


class Incomplete(NamedTuple):
    """The listing failed, as a whole or in part. ``why`` is for people."""

    why: str


Listing = Complete | Incomplete


class CollectionNoted(NamedTuple):
    """Ledgers up to ``highest_ledger_id`` may have been collected. If there are several, the highest holds."""

    highest_ledger_id: int


NOTHING_COLLECTED = CollectionNoted(-1)


def suspects(held: Iterable[int], listing: Listing) -> tuple[int, ...]:
    """The ledgers whose own record is to be read now. ``held``: the ledgers that were held before the listing began."""
    if isinstance(listing, Incomplete):
        return ()
    return tuple(sorted(ledger_id for ledger_id in held if ledger_id not in listing.ledgers))


def collectable(suspected: Iterable[int], records: Mapping[int, Response]) -> tuple[int, ...]:
    """The ledgers that may be thrown away. ``records``: the answer to the read of each suspect's own record."""
    return tuple(ledger_id for ledger_id in suspected if _gone(records.get(ledger_id)))


def _gone(answer: Response | None) -> bool:
    return isinstance(answer, Negative) and answer.reason is NegativeReason.NO_SUCH_LEDGER


def note_collection(before: CollectionNoted, collected: Collection[int]) -> CollectionNoted:
    """The record that has to be synced in every directory before the first of ``collected`` is forgotten."""
    return CollectionNoted(max(before.highest_ledger_id, *collected, NOTHING_COLLECTED.highest_ledger_id))
