"""Garbage collection on a bookie: deleted ledgers, and no others, may be thrown away.

Law: a ledger is collected only after two looks at the metadata: a complete listing of all ledgers without it, and then an
explicit NoSuchLedger for its own record. A failed or partial listing proves nothing, nor does an unreadable record. ::

    held ──listing complete──► suspects ──its own record: NoSuchLedger──► collected ──CollectionNoted synced──► forgotten
                               └────────────── a request is granted before that ──────────────┘──► kept

The bookie must note its ledgers (``held``) **before** the listing begins. A ledger's record is made before its first add, and ids
are not used twice, so a ledger in ``held`` that is missing in the listing was deleted. A ledger with a lost record was not
deleted (``lost_records``): it is kept until an operator gives it up.

``given_out`` is read before ``held``. An id beyond it may be given out at this moment, to a ledger that the collection would hit:
any client that may send adds can make such an id known here. So such a suspect is kept and reported. An id outside the allowed
range (accepted by an earlier bookie) can name no future ledger: it is collected without a question. A given-out id may get its
record during this look: requests granted before the read of the record concerned a ledger with a record, or one not made yet. A
request granted later keeps the ledger until another look.

A fence goes with its ledger, and the old writer's add may still be under way (#4462). So the highest id ever collected
(``CollectionNoted``) is kept for ever, and written before the first ledger is forgotten. A ledger up to that id that is made anew
has an *unsure* fence (``bookie_boot.first_contact``), so the writer's adds need metadata that says OPEN and names the bookie.
(BookKeeper remembers collected fenced ledgers for seven days, in memory.)

Source: docs/decisions/traps.md, traps 6 and 8; ``ScanAndCompareGarbageCollector`` of BookKeeper, which notes its ledgers first
and reads the record of each suspect with ``verifyMetadataOnGC`` (#870: bugs in the listing deleted live ledgers);
``HandleFactoryImpl`` (#4462).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Response


class Complete(NamedTuple):
    """A listing with every ledger that existed during the whole listing."""

    ledgers: Set[int]


class Incomplete(NamedTuple):
    """Failed, as a whole or in part. ``why`` is for people."""

    why: str


Listing = Complete | Incomplete


class CollectionNoted(NamedTuple):
    """Ledgers up to ``highest_ledger_id`` may have been collected. The highest record holds."""

    highest_ledger_id: int


NOTHING_COLLECTED = CollectionNoted(-1)


def suspects(held: Iterable[int], listing: Listing) -> tuple[int, ...]:
    """Ledgers that may be gone, ascending. ``held``: noted before the listing began, in any order, repetitions allowed."""
    if isinstance(listing, Incomplete):
        return ()
    return tuple(sorted({ledger_id for ledger_id in held if ledger_id not in listing.ledgers}))


class Suspected(NamedTuple):
    """Suspects by verdict, each ascending."""

    asked: tuple[int, ...]
    """Ledgers whose own records are to be read now."""
    not_given_out: tuple[int, ...]
    """Kept ledgers whose deletion can't be proved."""
    lost: tuple[int, ...]
    """Kept ledgers whose records are lost."""
    no_ledgers: tuple[int, ...]
    """Ids that no ledger can have; their entries may be dropped."""


def sort_suspects(suspected: Collection[int], given_out: int, lost: Collection[LostRecords] = ()) -> Suspected:
    """``given_out``: the highest id that the metadata had given out, or noted as a user's, before ``held`` was noted. ``lost``:
    read after that."""
    of_lost = {ledger_id for ledger_id in suspected if any(one.first <= ledger_id <= one.last for one in lost)}
    possible = [ledger_id for ledger_id in suspected if 0 <= ledger_id <= LEDGER_ID_MAX and ledger_id not in of_lost]
    return Suspected(
        tuple(ledger_id for ledger_id in possible if ledger_id <= given_out),
        tuple(ledger_id for ledger_id in possible if ledger_id > given_out),
        tuple(sorted(of_lost)),
        tuple(ledger_id for ledger_id in suspected if not 0 <= ledger_id <= LEDGER_ID_MAX),
    )


def collectable(suspected: Iterable[int], records: Mapping[int, Response]) -> tuple[int, ...]:
    """Ledgers to throw away. ``records``: the answer to the read of each suspect's own record."""
    return tuple(ledger_id for ledger_id in suspected if _gone(records.get(ledger_id)))


def _gone(answer: Response | None) -> bool:
    return isinstance(answer, Negative) and answer.reason is NegativeReason.NO_SUCH_LEDGER


def note_collection(before: CollectionNoted, collected: Collection[int]) -> CollectionNoted:
    """The record to sync in every directory before the first of ``collected`` is forgotten."""
    return CollectionNoted(max(before.highest_ledger_id, *collected, NOTHING_COLLECTED.highest_ledger_id))
