"""What a bookie may throw away: ledgers that were deleted, and no others.

Law: a ledger is collected only when two different looks at the metadata say that it is gone: a listing of all ledgers
that came to its end, and then a read of its own record that was answered with an explicit NoSuchLedger. A listing that
failed or was partial proves nothing, nor does a record that could not be read. ::

    held ──listing complete──► suspects ──its own record: NoSuchLedger──► collected ──CollectionNoted synced──► forgotten
                               └────────────── a request is granted before that ──────────────┘──► kept

The bookie has to note the ledgers that it holds (``held``) **before** the listing begins. A ledger's record is made before its
first add. So a ledger that was held by then and is not in the listing was deleted. A younger ledger may be missing because it is
young, and is kept. Ledger ids are not used twice.

A ledger whose record is lost was not deleted (``bookie_process``): it is kept until a person gives it up.

The metadata can judge only what it gave out, or noted before a user gave it. Whoever may send adds can make a ledger known whose
id is still to be given out: its record is missing because it is not made yet, and forgetting it could hit the ledger that is made
at that moment. So a suspect beyond ``given_out``, which is read before ``held``, is kept and told of. An id that no ledger can
have (a bookie once took them) names nothing that could come: it goes without a question. One suspect that can't be judged keeps
nobody else.

An id that was given out may get its record while this look goes on. What a bookie granted before it read the record was granted
to a ledger that has a record, or to one that was not made yet. A request that is granted later keeps the ledger until another
look. (BookKeeper deletes whatever its last look did not find.)

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

from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
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
    """The ledgers that may be gone, ascending. ``held``: the ledgers that were held before the listing began, in any order and
    any number of times."""
    if isinstance(listing, Incomplete):
        return ()
    return tuple(sorted({ledger_id for ledger_id in held if ledger_id not in listing.ledgers}))


class Suspected(NamedTuple):
    """Suspects by what can be said of them, each ascending."""

    asked: tuple[int, ...]
    """Their own records are to be read now."""
    not_given_out: tuple[int, ...]
    """Nobody can say that these were deleted: they are kept."""
    lost: tuple[int, ...]
    """Their records are lost: they are kept."""
    no_ledgers: tuple[int, ...]
    """Ids that no ledger can have: they may be thrown away."""


def sort_suspects(suspected: Collection[int], given_out: int, lost: Collection[LostRecords] = ()) -> Suspected:
    """``given_out``: the highest id that the metadata had given out, or noted as a user's, before ``held`` was noted. ``lost``:
    as read after that."""
    of_lost = {ledger_id for ledger_id in suspected if any(one.first <= ledger_id <= one.last for one in lost)}
    possible = [ledger_id for ledger_id in suspected if 0 <= ledger_id <= LEDGER_ID_MAX and ledger_id not in of_lost]
    return Suspected(
        tuple(ledger_id for ledger_id in possible if ledger_id <= given_out),
        tuple(ledger_id for ledger_id in possible if ledger_id > given_out),
        tuple(sorted(of_lost)),
        tuple(ledger_id for ledger_id in suspected if not 0 <= ledger_id <= LEDGER_ID_MAX),
    )


def collectable(suspected: Iterable[int], records: Mapping[int, Response]) -> tuple[int, ...]:
    """The ledgers that may be thrown away. ``records``: the answer to the read of each suspect's own record."""
    return tuple(ledger_id for ledger_id in suspected if _gone(records.get(ledger_id)))


def _gone(answer: Response | None) -> bool:
    return isinstance(answer, Negative) and answer.reason is NegativeReason.NO_SUCH_LEDGER


def note_collection(before: CollectionNoted, collected: Collection[int]) -> CollectionNoted:
    """The record that has to be synced in every directory before the first of ``collected`` is forgotten."""
    return CollectionNoted(max(before.highest_ledger_id, *collected, NOTHING_COLLECTED.highest_ledger_id))
