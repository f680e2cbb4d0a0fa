"""What a bookie answers of entries that it does not find, entry by entry, and what it asks a reader or an add.

Law: "absence is Negative only where nothing was lost, and Unknown everywhere else" (BP-46, "A note on Response Codes"). Absence
is proven as far as each entry, asked for alone, would be answered Negative.
"""

from __future__ import annotations

from itertools import product
from random import Random

from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    absence_proven,
    acked_after_sync,
    answer_absent,
    answer_last_add_confirmed,
    may_read,
    same_content,
)
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, UnknownReason
from tests.autorecovery.schedules.truth import holds
from tests.bookie.paper.plain_ledger import PlainLedger

Reason = NegativeReason | UnknownReason | None


def reason_of(response: Response) -> Reason:
    """None: granted."""
    return None if isinstance(response, Positive) else response.reason


def check_answers(random: Random, ledger: BookieLedger | None, plain: PlainLedger | None, ids: int) -> None:
    damaged, unsure = random.random() < 0.1, random.random() < 0.1
    said: list[Reason] = []
    for entry_id in range(ids):
        answer = answer_absent(ledger, entry_id, storage_damaged=damaged, boot_unsure=unsure)
        said.append(reason_of(answer))
        expected = _of_absent(plain, entry_id, damaged, unsure)
        holds(said[-1] is expected, f"an absent entry is answered {said[-1]}, and it is {expected}")
        holds(isinstance(answer, Negative) == isinstance(expected, NegativeReason), "an answer of another class")
    first = random.randrange(ids)
    last = random.randrange(first, ids)
    proven = absence_proven(ledger, first, last, storage_damaged=damaged, boot_unsure=unsure)
    at = first
    while at <= last and isinstance(said[at], NegativeReason):
        at += 1
    holds(proven == at - 1, f"absence of {first} to {last} is proven to {proven}, and is Negative to {at - 1}")
    if ledger is not None and plain is not None:
        told = reason_of(answer_last_add_confirmed(ledger))
        holds(told is (UnknownReason.LIMBO if plain.in_limbo else None), f"a LAC in limbo, or none: {told}")


def _of_absent(plain: PlainLedger | None, entry_id: int, damaged: bool, unsure: bool) -> Reason:
    if damaged:
        return UnknownReason.IO_ERROR
    if unsure:
        return UnknownReason.LOST
    if plain is None:
        return NegativeReason.NO_SUCH_LEDGER
    if plain.in_limbo:
        return UnknownReason.LIMBO
    if entry_id in plain.lost:
        return UnknownReason.LOST
    return UnknownReason.IO_ERROR if entry_id in plain.away else NegativeReason.NO_SUCH_ENTRY


def check_reader(ledger: BookieLedger | None, plain: PlainLedger | None, key: bytes | None) -> None:
    """Only a wrong key is refused: repair has none."""
    wrong = key is not None and plain is not None and plain.knows_other(key)
    holds(may_read(ledger, key) is not wrong, f"a reader with a {'wrong' if wrong else 'right'} key")


def check_acks() -> None:
    """Early is acknowledged only what a writer adds with a journal that keeps no data, or to a VD ledger (BP-14)."""
    for recovery, volatile, data in product((False, True), repeat=3):
        late = acked_after_sync(recovery=recovery, volatile=volatile, journal_write_data=data)
        early = not recovery and (volatile or not data)
        holds(late is not early, f"an ack waits for the sync or not: {recovery, volatile, data}")
    for kept, added in product(product((1, 2), (b"a", b"b", b"")), repeat=2):
        same = same_content(kept, (added[0], memoryview(added[1])))
        holds(same is (kept == added), "a conflict counts as a duplicate, or the other way round")
