"""A bookie's knowledge of its lost copies, against a twin kept id by id.

Law: absence (Negative) is reported only for entries never lost here, exactly as far as that holds. An entry held again is no
longer lost. Permanently lost entries stay lost after a restart; temporarily absent entries do not.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, absence_proven, answer_absent
from bookspark.protocol.ledger.entry_ranges import EntryRanges
from bookspark.protocol.ledger.responses import Negative, Unknown, UnknownReason
from tests.histories.repair_schedules.truth import holds

Ranges = list[tuple[int, int]]
_LEDGER_ID = 7
_FEW_IDS, _MANY_IDS = 40, 1200
_LOOKS = 6


def lose_and_get_back(random: Random) -> int:
    """A bookie's ledger through losses, returned copies and restarts. Returns the number of ids."""
    many = random.random() < 0.2
    ids = _MANY_IDS if many else _FEW_IDS
    ledger, lost, away = BookieLedger(_LEDGER_ID), set[int](), set[int]()
    if many:
        # Spread out, as in a log in which every other frame is unreadable.
        apart: Ranges = [(one, one + random.randrange(2)) for one in range(0, ids, random.choice((3, 4)))]
        ledger.lose(apart)
        lost |= _ids(apart)
    for _ in range(random.randrange(3, 12)):
        match random.randrange(6):
            case 0 | 1:
                ranges = _ranges(random, ids)
                ledger.lose(ranges)
                lost |= _ids(ranges)
            case 2:
                ranges = _ranges(random, ids)
                ledger.lose_for_now(ranges)
                away |= _ids(ranges)
            case 3 | 4:
                ranges = sorted(_ranges(random, ids))
                ledger.entries_back(ranges)
                lost -= _ids(ranges)
                away -= _ids(ranges)
            case 5:
                records = ledger.control_records()
                ledger = BookieLedger(_LEDGER_ID)
                for record in random.sample(records, len(records)):
                    ledger.replay(record)
                away = set()
        _look(random, ledger, lost, away, ids)
    return ids


def _look(random: Random, ledger: BookieLedger, lost: set[int], away: set[int], ids: int) -> None:
    for ranges, wanted in ((ledger.lost, lost), (ledger.away, away), (ledger.lacking, lost | away)):
        _are_whole(ranges)
        holds(_ids(ranges) == wanted, "a bookie counts other entries as lost than those that it lost")
    for _ in range(_LOOKS):
        first = random.randrange(ids)
        last = random.randrange(first, ids)
        missing = [i for i in range(first, last + 1) if i in lost or i in away]
        end = missing[0] - 1 if missing else last
        holds(absence_proven(ledger, first, last, storage_damaged=False) == end, "absence is proven to another id")
        answer = answer_absent(ledger, first, storage_damaged=False)
        for_good = isinstance(answer, Unknown) and answer.reason is UnknownReason.LOST
        holds(
            isinstance(answer, Negative) == (first not in lost | away),
            "a lost entry is denied, or one that is not is not",
        )
        holds(for_good == (first in lost), "an entry counts as lost for good that is not, or the other way round")


def _are_whole(ranges: EntryRanges) -> None:
    holds(all(first <= last for first, last in ranges), "a range is empty")
    holds(all(one[1] + 1 < other[0] for one, other in pairwise(ranges)), "ranges touch, or are out of order")


def _ranges(random: Random, ids: int) -> Ranges:
    """Ranges as they occur: in any order, touching and overlapping."""
    found: Ranges = []
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        first = random.randrange(ids)
        found.append((first, min(ids - 1, first + random.choice((0, 0, 1, 4, 30)))))
    return found


def _ids(ranges: EntryRanges | Ranges) -> set[int]:
    return {i for first, last in ranges for i in range(first, last + 1)}
