"""What a lossy boot forbids and doubts, ledger by ledger and boot by boot.

Law: "before a bookie serves again, everything that its lost state had forbidden is forbidden again" (BP-46, "Protection
Mechanism"; ``bookie_boot``). A directory is healed if each number of a boot up to its mark is one up to its healing, and a bookie
is if each of its directories is.
"""

from __future__ import annotations

from itertools import product
from random import Random

from bookspark.protocol.bookie.bookie_boot import (
    NO_LOSSY_BOOT,
    HealedNoted,
    LossyBootNoted,
    MarksTold,
    absence_unsure,
    answer_unsure,
    first_contact,
    first_mark,
    in_limbo,
    is_lossy,
    mark_above,
    marks_together,
    phase_one,
)
from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    ControlRecord,
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    LastAddConfirmedNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)
from bookspark.protocol.bookie.first_request import answer_first_request
from bookspark.protocol.bookie.garbage_collection import CollectionNoted
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import UnknownReason
from tests.autorecovery.schedules.truth import holds
from tests.bookie.paper.answers import reason_of
from tests.bookie.paper.plain_ledger import exactly

_ME, _OTHERS = "bookie-1", ("bookie-2", "bookie-3")
_IDS, _BOOTS = 8, 5
_KEYS = (b"", b"k", b"k" * 20)


def boot(random: Random) -> None:
    _phase_one(random)
    _join(random)
    _count(random)
    _doubt(random)
    _ask_metadata(random)


def _a_mark(random: Random) -> LossyBootNoted:
    return random.choice((NO_LOSSY_BOOT, LossyBootNoted(random.randrange(_BOOTS), random.randrange(-1, _IDS))))


def _a_ledger(random: Random, ledger_id: int) -> LedgerMetadata:
    """It may name this bookie in its last fragment, in one before it, or nowhere."""
    ensembles = [random.sample((_ME, *_OTHERS), 2) for _ in range(random.randrange(1, 3))]
    fragments = tuple(Fragment(3 * number, tuple(ensemble)) for number, ensemble in enumerate(ensembles))
    made = LedgerMetadata(ledger_id, 2, 2, 1, fragments, master_key=random.choice(_KEYS))
    state = random.choice(list(LedgerState))
    if state is LedgerState.CLOSED:
        return made.close_at(7, 7)
    return made.in_recovery() if state is LedgerState.IN_RECOVERY else made


def _phase_one(random: Random) -> None:
    """Whatever may be open and name the bookie is fenced and in limbo, and no other: not for what users' ids are highest."""
    for unclean, lost in product((False, True), repeat=2):
        holds(
            is_lossy(unclean=unclean, directory_lost=lost) is not (not unclean and not lost),
            "a boot is lossy, or is not",
        )
    ledger_ids = random.sample(range(_IDS), random.randrange(_IDS))
    unreadable = {one for one in ledger_ids if random.random() < 0.2}
    ledgers = [_a_ledger(random, one) for one in ledger_ids if one not in unreadable]
    before, highest = _a_mark(random), random.choice((-1, *range(max(ledger_ids, default=0), 2 * _IDS)))
    mark, records = phase_one(_ME, iter(ledgers), highest, before, iter(unreadable))
    holds(mark.boot == before.boot + 1, "a lossy boot has another number than the next")
    for ledger_id in range(2 * _IDS):
        below = ledger_id in range(highest + 1) or ledger_id in range(before.highest_ledger_id + 1)
        unsure = first_contact(ledger_id, mark).fence_unsure
        holds(unsure is below, f"the fence of {ledger_id} is unsure or not: {mark} of {highest} after {before}")
    open_here = {
        one.ledger_id: one.master_key for one in ledgers if not one.closed and _ME in one.fragments[-1].ensemble
    }
    expected: list[ControlRecord] = [MasterKeyNoted(*one) for one in open_here.items()]
    for ledger_id in open_here.keys() | unreadable:
        expected += [FenceNoted(ledger_id), LimboNoted(ledger_id, before.boot + 1)]
    holds(exactly(records) == exactly(expected), f"phase one writes {records}, and it has to be {expected}")


def _join(random: Random) -> None:
    """If one directory is not healed, "no number that another one has counted to ends its losses"."""
    told = [MarksTold(_a_mark(random), HealedNoted(random.randrange(_BOOTS))) for _ in range(random.randrange(1, 4))]
    mark, healed, left = marks_together(told)
    not_healed = [
        number for number, one in enumerate(told) if set(range(one.mark.boot + 1)) - set(range(one.healed.boot + 1))
    ]
    holds(list(left) == not_healed, f"of {told} these are told as not healed: {left}")
    for number, one in enumerate(told):
        holds(one.all_healed is (number not in not_healed), f"a directory is healed or not: {one}")
    marks, healings = {one.mark.boot for one in told}, {one.healed.boot for one in told}
    ids = {one.mark.highest_ledger_id for one in told}
    holds(mark.highest_ledger_id in ids and all(mark.highest_ledger_id >= one for one in ids), "a lower mark holds")
    if not_healed:
        holds(mark.boot - 1 in marks | healings, "the boots go on from a number that nobody has")
        holds(all(mark.boot > one for one in marks | healings), f"{told} count on as {mark}, which some call healed")
        holds(healed.boot == sorted(healings)[-1], "another number is healed than the highest")
    else:
        holds(
            mark.boot == healed.boot == sorted(marks)[-1], f"{told} are healed, and told together as {mark}, {healed}"
        )


def _some_records(random: Random) -> list[object]:
    def one() -> object:
        ledger_id, number = random.randrange(2), random.randrange(1, _BOOTS)
        return random.choice(
            (
                LimboNoted(ledger_id, number), LimboNoted(ledger_id, number), LimboCleared(ledger_id, number),
                LossyBootNoted(number, ledger_id), HealedNoted(number), FenceNoted(ledger_id), FenceUnsureNoted(ledger_id),
                LastAddConfirmedNoted(ledger_id, 99), EntriesLost(ledger_id, 1, 99), MasterKeyNoted(ledger_id, b"k"),
            )
        )  # fmt: skip

    return [one() for _ in range(random.randrange(15))]


def _count(random: Random) -> None:
    """No number of a boot that any record has comes again; and a repair ends no limbo of a later boot."""
    records, mark = _some_records(random), _a_mark(random)
    numbers = {record.boot for record in records if hasattr(record, "boot")} | {mark.boot}
    above = mark_above(mark, iter(records))
    holds(above.highest_ledger_id == mark.highest_ledger_id, "the marked id changes with a number")
    holds(
        above.boot in numbers and all(above.boot >= one for one in numbers), f"{above} is counted on from, of {records}"
    )
    expected = set()
    for noted in records:
        if isinstance(noted, LimboNoted):
            of_it = [one for one in records if isinstance(one, LimboCleared) and one.ledger_id == noted.ledger_id]
            if all(one.boot < noted.boot for one in of_it):
                expected.add(noted.ledger_id)
    holds(in_limbo(iter(records)) == expected, f"other ledgers are in limbo than {expected}: {records}")


def _doubt(random: Random) -> None:
    """Which fences and which absences are unsure of a ledger that was made anew, or is known."""
    mark, healed = _a_mark(random), HealedNoted(random.randrange(_BOOTS))
    collected = CollectionNoted(random.randrange(-1, _IDS))
    for ledger_id in range(_IDS + 1):
        ledger = first_contact(ledger_id, mark, collected)
        unsure = ledger_id in range(mark.highest_ledger_id + 1) or ledger_id in range(collected.highest_ledger_id + 1)
        holds(
            ledger == BookieLedger(ledger_id, fence_unsure=unsure), f"made anew with {mark} and {collected}: {ledger}"
        )
    ledger_id = random.randrange(_IDS)
    limbos, repaired = ({random.randrange(_BOOTS) for _ in range(random.randrange(3))} for _ in range(2))
    known = BookieLedger(ledger_id)
    for boot_number in limbos:
        known.replay(LimboNoted(ledger_id, boot_number))
    for boot_number in repaired:
        known.replay(LimboCleared(ledger_id, boot_number))
    was_there = ledger_id in range(mark.highest_ledger_id + 1)
    something_is_lost = was_there and bool(set(range(mark.boot + 1)) - set(range(healed.boot + 1)))
    told_by_limbo = any(all(done < one for done in repaired) for one in limbos if one)
    is_back = any(one >= mark.boot for one in repaired)
    holds(
        absence_unsure(ledger_id, None, mark, healed) is something_is_lost,
        f"absence of what is not known: {mark}, {healed}",
    )
    unsure = something_is_lost and not told_by_limbo and not is_back
    holds(absence_unsure(ledger_id, known, mark, healed) is unsure, f"absence of {known}: {mark}, {healed}")


def _ask_metadata(random: Random) -> None:
    """Who adds to a ledger of which a fence may be lost, who makes one known without an entry, and the mark of a first boot."""
    metadata = random.choice((None, *[_a_ledger(random, 5)] * 5))
    told, key = reason_of(answer_unsure(_ME, metadata)), random.choice(_KEYS)
    first = reason_of(answer_first_request(_ME, metadata, key))
    if metadata is None:
        holds(told is UnknownReason.FENCED, f"the writer of a ledger that is gone is told {told}")
        holds(first is UnknownReason.LIMBO, f"a ledger that nobody made becomes known: {first}")
    else:
        here = [_ME in fragment.ensemble for fragment in metadata.fragments]
        may = None if here[-1] else UnknownReason.LIMBO
        may = may if metadata.state is LedgerState.OPEN else UnknownReason.FENCED
        holds(told is may, f"the writer is told {told}, and it has to be {may}: {metadata}")
        right = None if key == metadata.master_key else UnknownReason.UNAUTHORIZED
        holds(
            first is (right if sum(here) else UnknownReason.LIMBO), f"a first request is answered {first}: {metadata}"
        )
    before, highest = _a_mark(random), random.randrange(-1, 3)
    mark = first_mark(highest, before)
    notes = before == (0, -1) and highest != -1
    holds(mark == ((0, highest) if notes else None), f"a first boot notes {mark}: {highest} after {before}")
