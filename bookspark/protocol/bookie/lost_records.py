"""Ledgers whose records are lost: an older copy of the metadata was put back, and would give out again what it gave out before.

Law: an id of which a bookie holds something is given to no other ledger. A bookie that starts compares what it holds with
what the metadata gave out. What it holds beyond that was made before the metadata went back (or by a stranger, which looks the
same), so its ids are *lost records*: that is noted in the metadata, and then all of them count as given out. As long as
the note stands, nothing that is held of them is collected. ::

    held beyond given out ──noted as lost──► skipped by the counter ──► kept until a person gives them up

The note comes before the counter moves. So whoever sees that these ids were given out, and finds no record, finds the note.
Bookies start one after the other, and one that starts later may hold somewhat higher ids: BEYOND ids more are noted and skipped
too, so that no ledger gets one of these in between.

What is further away than IDS_MAX is not skipped, because that would cost the counter too many of its 2³¹ ids. Nobody's
metadata lost so many ledgers; a stranger can send such an id. It is kept, and told of, as before. Ids that users give may be far
beyond the counter, or beyond all that it can give out. Lost records among these are noted, and count as given by a user; the
counter stays.

BookKeeper deletes the entries of such ledgers, or mixes them with those of the ledgers that get their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX, LEDGER_ID_MAX

IDS_MAX = 1_000_000
"""So many ids are skipped at once, at most."""
BEYOND = 1_000
"""So many ids beyond the highest one that is held."""


class LostRecords(NamedTuple):
    """The ids ``first`` to ``last``. What was given out of them before the metadata went back has no record."""

    first: int
    last: int


def lost_records(held: Iterable[int], given_out: int) -> LostRecords | None:
    """What is to be noted; None: nothing is lost. ``held``: ids of which the bookie holds something. ``given_out``:
    the highest id that the metadata gave out, or has, by a look that began after the bookie had stopped taking requests."""
    near = [ledger_id for ledger_id in held if given_out < ledger_id <= min(given_out + IDS_MAX, LEDGER_ID_MAX)]
    if not near:
        return None
    highest = max(near)
    return LostRecords(given_out + 1, max(highest, min(highest + BEYOND, BOOKKEEPERS_LEDGER_ID_MAX)))


def skipped_to(lost: LostRecords, counted: int) -> int | None:
    """Up to which id the counter skips, because of these; None: it stays. ``counted``: the id that it gave out last."""
    last = min(lost.last, BOOKKEEPERS_LEDGER_ID_MAX)
    return last if lost.first <= last <= counted + IDS_MAX + BEYOND else None
