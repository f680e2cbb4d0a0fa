"""What a bookie decides breaks no law on paper, and each of some planted faults makes it break one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest import mock

import pytest

from bookspark.protocol.bookie import bookie_ledger, control_copies
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted, MarksTogether
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision, LimboCleared, LimboNoted
from bookspark.protocol.bookie.garbage_collection import CollectionNoted
from bookspark.protocol.ledger.responses import Positive
from tests.bookie.paper import answers, copies, garbage, lossy_boots
from tests.bookie.paper.run import run

SEEDS = 1000


def some(seeds: int = SEEDS) -> None:
    for seed in range(seeds):
        run(seed)


def test_a_bookie_on_paper_breaks_no_law() -> None:
    some()


def changed(how: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A fault in what a function returns."""

    def plant(original: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(original)(lambda *given, **named: how(original(*given, **named)))

    return plant


def the_last_boot_counts(original: Callable[..., None]) -> Callable[..., None]:
    def replay(ledger: BookieLedger, record: Any) -> None:
        if isinstance(record, LimboNoted) and record.ledger_id == ledger.ledger_id:
            ledger.limbo_boot = record.boot
        else:
            original(ledger, record)

    return replay


def no_end_of_a_limbo(original: Callable[..., None]) -> Callable[..., None]:
    return lambda ledger, record: None if isinstance(record, LimboCleared) else original(ledger, record)


def nothing_of_the_unreadable(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda bookie, ledgers, highest, before, unreadable: original(bookie, ledgers, highest, before)


def one_lower(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda bookie, ledgers, highest, *given: original(bookie, ledgers, highest - 1, *given)


def any_of_them(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda told: MarksTogether(max(one.mark for one in told), HealedNoted(99), ())


def whoever_goes_farther(copy: Any, damaged: Any) -> bool:
    return damaged.reaches is not None and damaged.reaches <= copy.complete_to


def synced_in_doubt(original: Callable[..., Decision]) -> Callable[..., Decision]:
    def admit_sync(ledger: BookieLedger, key: bytes) -> Decision:
        decision = original(ledger, key)
        return Decision(Positive()) if decision.response == bookie_ledger.FENCE_UNSURE else decision

    return admit_sync


PLANTED: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "the boot of the last record counts": (BookieLedger, "replay", the_last_boot_counts),
    "no boot finds the end of a limbo": (BookieLedger, "replay", no_end_of_a_limbo),
    "a writer hears of syncs while a fence is in doubt": (BookieLedger, "admit_sync", synced_in_doubt),
    "a fence is told before it is noted": (BookieLedger, "fence", changed(lambda told: told._replace(records=()))),
    "what is away is denied": (answers, "answer_absent", changed(lambda told: told if told != bookie_ledger.ENTRY_AWAY else
        bookie_ledger.NO_SUCH_ENTRY)),
    "absence is proven one entry too far": (answers, "absence_proven", changed(lambda last: last + 1)),
    "ledgers whose records nobody can decode stay open": (lossy_boots, "phase_one", nothing_of_the_unreadable),
    "the highest id is not below the mark": (lossy_boots, "phase_one", one_lower),
    "one directory's healing is that of all": (lossy_boots, "marks_together", any_of_them),
    "whatever boot is the first again": (lossy_boots, "mark_above", changed(lambda mark: LossyBootNoted(0, mark[1]))),
    "a copy stands for a directory that it was used without": (
        control_copies, "_stands_for", lambda _: whoever_goes_farther),
    "directories are never used apart": (copies, "used_apart", lambda _: lambda copies: frozenset()),
    "what nobody gave out is asked for": (garbage, "sort_suspects", changed(lambda found: found._replace(
        asked=tuple(sorted(found.asked + found.not_given_out)), not_given_out=()))),
    "what nobody can read is gone": (garbage, "collectable", lambda _: lambda asked, records: tuple(asked)),
    "the last collection counts": (
        garbage, "note_collection", lambda _: lambda before, collected: CollectionNoted(max([-1, *collected]))),
    "the highest lost id is given out again": (garbage, "lost_records", changed(lambda found: found and found._replace(
        last=found.last - 1))),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_breaks_a_law_on_paper(fault: str) -> None:
    where, name, plant = PLANTED[fault]
    with mock.patch.object(where, name, plant(getattr(where, name))), pytest.raises(AssertionError):
        some()
