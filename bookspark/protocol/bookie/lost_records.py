"""Ledgers with lost records: an older copy of the metadata was restored, and would give out their ids again.

Law: an id held by a bookie is given to no other ledger. A starting bookie compares its ids with those that the metadata gave out.
Held ids beyond were made before the metadata went back (or by a stranger, which looks the same), so they are *lost records*. The
metadata notes the range: all ids in it count as given out, and no held ledger in it is collected. ::

    held beyond given out ──noted as lost──► skipped by the counter ──► kept until a person gives them up

The note comes before the counter moves, so a client that sees such an id as given out, without a record, sees the note too.
Bookies that start later may hold somewhat higher ids, so BEYOND more ids are noted and skipped.

Ids beyond IDS_MAX are not skipped, because the counter has only 2³¹ ids and a stranger can send such an id. The bookie keeps and
reports it. Lost records among ids given by users are noted, and count as given by a user; the counter stays.

BookKeeper deletes the entries of such ledgers, or mixes them with those of the ledgers that get their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX, LEDGER_ID_MAX

IDS_MAX = 1_000_000
"""Most ids to skip at once."""
BEYOND = 1_000
"""Ids to skip beyond the highest held one."""


class LostRecords(NamedTuple):
    """The ids ``first`` to ``last``. Ledgers made with them before the metadata went back have no record."""

    first: int
    last: int


def lost_records(held: Iterable[int], given_out: int) -> LostRecords | None:
    """The range to note; None if nothing is lost. ``held``: ids of the bookie's ledgers. ``given_out``: the metadata's highest
    id, in a look begun after the bookie stopped taking requests."""
    near = [ledger_id for ledger_id in held if given_out < ledger_id <= min(given_out + IDS_MAX, LEDGER_ID_MAX)]
    if not near:
        return None
    highest = max(near)
    return LostRecords(given_out + 1, max(highest, min(highest + BEYOND, BOOKKEEPERS_LEDGER_ID_MAX)))


def skipped_to(lost: LostRecords, counted: int) -> int | None:
    """The id to which these lost records move the counter; None if it stays. ``counted``: the last id from the counter."""
    last = min(lost.last, BOOKKEEPERS_LEDGER_ID_MAX)
    return last if lost.first <= last <= counted + IDS_MAX + BEYOND else None
