"""A change takes down no bookie that ``safe-to-stop`` calls dangerous.

The change planner knows only the location of each fragment (``changes.safety``); ``safe-to-stop`` knows the entries that each
bookie lacks (``repair.stopping``). So the planner may wait where ``safe-to-stop`` would not, but never the other way round.
"""

from __future__ import annotations

import random

from bookspark.protocol.changes.observed import Fragments, Observed, ObservedBookie, placed
from bookspark.protocol.changes.safety import is_in_the_way
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.stopping import Known, dangers_of

BOOKIES = tuple("abcdef")
WORLDS = 1500


def some_ledger(choose: random.Random) -> LedgerMetadata:
    size = choose.randint(1, 5)
    write_quorum = choose.randint(1, size)
    last = choose.choice((-1, 0, 9, 30))
    starts = sorted({0, *(choose.randint(1, 30) for _ in range(choose.randint(0, 2)))})
    fields: dict[str, object] = {"state": choose.choice((LedgerState.OPEN, LedgerState.IN_RECOVERY))}
    if choose.random() < 0.8:
        fields = {"state": LedgerState.CLOSED, "last_entry_id": last, "length": last + 1}
        starts = [start for start in starts if start <= max(last, 0)]
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=choose.randint(1, write_quorum),
        fragments=tuple(Fragment(start, tuple(choose.sample(BOOKIES, size))) for start in starts),
        **fields,  # type: ignore[arg-type]
    )


def some(choose: random.Random, part: float) -> set[str]:
    return {bookie for bookie in BOOKIES if choose.random() < part}


def test_change_takes_down_only_bookies_that_are_safe_to_stop() -> None:
    choose = random.Random(20)
    taken_down = kept = 0
    for _ in range(WORLDS):
        metadata = some_ledger(choose)
        away, down, limbo, lacking = (some(choose, part) for part in (0.1, 0.1, 0.1, 0.1))
        lacks = {bookie: [(first := choose.randint(0, 30), choose.randint(first, 30))] for bookie in lacking}
        observed = Observed(
            {b: ObservedBookie(b, registered=b not in down, settled=b not in limbo) for b in BOOKIES},
            Fragments(placed(metadata)),
            {metadata.ledger_id: frozenset(lacking)},
        )
        for bookie in sorted(set(BOOKIES) - down):
            others = away - {bookie}
            found = list(dangers_of(metadata, {bookie}, Known(down | others, lacks, limbo)))
            if is_in_the_way(observed, bookie, others):
                kept += 1
            else:
                taken_down += 1
                assert not found, (metadata, bookie, others, down, limbo, lacks)
    assert min(taken_down, kept) > WORLDS
