"""Deleted ledgers and lost records, one id after the other.

Law: "a ledger is collected only when two different looks at the metadata say that it is gone" (``garbage_collection``). The
metadata judges only ids that it gave out, and whose records are not lost. "An id of which a bookie holds something is given to no
other ledger" (``lost_records``).
"""

from __future__ import annotations

from random import Random
from unittest import mock

from bookspark.protocol.bookie import lost_records as module
from bookspark.protocol.bookie.bookie_boot import NO_LOSSY_BOOT, first_contact
from bookspark.protocol.bookie.garbage_collection import (
    NOTHING_COLLECTED,
    CollectionNoted,
    Complete,
    Incomplete,
    collectable,
    note_collection,
    sort_suspects,
    suspects,
)
from bookspark.protocol.bookie.lost_records import LostRecords, lost_records, skipped_to
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, Unknown, UnknownReason
from tests.autorecovery.schedules.truth import holds

_HIGHEST = 9_999_999_999
"""Ten digits."""
_IDS = (*range(8), *range(_HIGHEST - 3, _HIGHEST + 1))
_IMPOSSIBLE = (-(1 << 63), -2, -1, _HIGHEST + 1, (1 << 63) - 1)
_ANSWERS: tuple[Response | None, ...] = (
    None, Positive(), *(Negative(reason) for reason in NegativeReason), *(Unknown(reason) for reason in UnknownReason),
)  # fmt: skip
_GONE = Negative(NegativeReason.NO_SUCH_LEDGER)


def collect(random: Random) -> None:
    held = random.choices((*_IDS, *_IMPOSSIBLE), k=random.randrange(12))
    there = set(random.sample(_IDS, random.randrange(len(_IDS))))
    found = suspects(iter(held), Complete(there))
    holds(found == tuple(sorted(set(held) - there)), "others are suspects than those that are held and not listed")
    holds(suspects(iter(held), Incomplete("half of it")) == (), "a listing that failed makes suspects")
    given_out = random.choice((-1, *_IDS))
    lost = []
    for _ in range(random.randrange(3)):
        first, last = sorted(random.choices(_IDS, k=2))
        lost.append(LostRecords(first, last))
    sorted_out = sort_suspects(found, given_out, lost)
    of: dict[str, list[int]] = {"asked": [], "not_given_out": [], "lost": [], "no_ledgers": []}
    for ledger_id in found:
        of[_sort(ledger_id, given_out, lost)].append(ledger_id)
    told = {name: list(ledger_ids) for name, ledger_ids in sorted_out._asdict().items()}
    holds(told == of, f"suspects are sorted as {told}, and it has to be {of}")
    records = {i: answer for i in sorted_out.asked if (answer := random.choice(_ANSWERS)) is not None}
    gone = collectable(iter(sorted_out.asked), records)
    holds(list(gone) == [i for i in sorted_out.asked if records.get(i) == _GONE], "a ledger is gone, and is not")
    _note(random)


def _sort(ledger_id: int, given_out: int, lost: list[LostRecords]) -> str:
    if ledger_id in _IMPOSSIBLE:
        return "no_ledgers"
    for first, last in lost:
        if ledger_id >= first and not ledger_id > last:
            return "lost"
    return "not_given_out" if ledger_id > given_out else "asked"


def _note(random: Random) -> None:
    """Of any number of collections in any order: the fence of each ledger that was collected is unsure if it is made anew."""
    noted, collected = NOTHING_COLLECTED, set[int]()
    for _ in range(random.randrange(1, 4)):
        some = random.sample(range(-2, 9), random.randrange(4))
        before, noted = noted, note_collection(noted, some)
        collected.update(some)
        holds(noted >= before, "a later collection unsays an earlier one")
    for ledger_id in range(-1, 10):
        unsure = any(ledger_id <= one for one in collected)
        found = first_contact(ledger_id, NO_LOSSY_BOOT, noted)
        # (Below 0 there is no ledger.)
        holds(
            found.fence_unsure is unsure or ledger_id < 0, f"ledger {ledger_id} is made anew after {collected}: {found}"
        )
    holds(noted == CollectionNoted(max((-1, *collected))), "another highest id is noted")


def lose_records(random: Random) -> None:
    """With small numbers in place of a million: which ids are noted, and which are skipped."""
    at_once, beyond, last_of_all = random.choice((1, 6, 9)), random.choice((1, 3)), random.choice((15, 21))
    # Users give ids beyond what the counter gave out, and beyond all that it can.
    counted, given = random.randrange(-1, last_of_all), random.randrange(-1, last_of_all + 9)
    given_out = random.choice((counted, counted, max(counted, given)))
    held = random.choices(range(last_of_all + 20), k=random.randrange(5))
    with mock.patch.multiple(
        module, IDS_MAX=at_once, BEYOND=beyond, BOOKKEEPERS_LEDGER_ID_MAX=last_of_all, LEDGER_ID_MAX=last_of_all + 10
    ):
        found = lost_records(iter(held), given_out)
        last = None if found is None else skipped_to(found, counted)
    near = {one for one in held if one in range(given_out + 1, given_out + at_once + 1)} - set(
        range(last_of_all + 11, 99)
    )
    noted = {i for one in near for i in range(given_out + 1, one + beyond + 1) if i <= max(last_of_all, *near)}
    told = set() if found is None else set(range(found.first, found.last + 1))
    holds(near <= told, f"{found} is noted, and {near} are held")
    holds(not told - noted, f"{found} is noted, of {near}")
    holds(noted & set(range(last_of_all + 1)) <= told, f"{found} is noted, and bookies that start later hold more")
    may_come = told & set(range(last_of_all + 1))
    far = [i for i in may_come if i - counted > at_once + beyond]
    skipped = max(may_come) if may_come and not far else None
    holds(last == skipped, f"a counter at {counted} skips to {last} for {found}, and it has to be {skipped}")
