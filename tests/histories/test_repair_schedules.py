"""Random schedules of repairs keep all laws, and each planted fault breaks a law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from bookspark.protocol.bookie import bookie_ledger
from bookspark.protocol.ledger.accepted_loss import Loss
from bookspark.protocol.ledger.actions import ReadAnswered
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair import audit_plan, bookie_healing, entry_copying, ledger_replication, replication_plan
from bookspark.protocol.repair.entry_copying import NotCopied
from bookspark.protocol.repair.replication_plan import Copy
from tests.histories.repair_schedules import audits
from tests.histories.repair_schedules.run import Kind, run
from tests.histories.repair_schedules.truth import Broken

SEEDS, SEEDS_PLANTED = 200, 2000


@pytest.mark.parametrize("kind", Kind)
def test_random_repair_schedules_break_no_law(kind: Kind) -> None:
    assert sum(run(seed, kind) for seed in range(SEEDS)) > 1000


def names_without_copying(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: list(original(*args))[:-1]


def one_less(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda metadata, bookie, held, *lac: [
        copy if copy.first == copy.last else Copy(copy.first, copy.last - 1, copy.target)
        for copy in original(metadata, bookie, held, *lac)
    ]


def never(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: None


def at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda patience, waited, silent: True


def dead_or_alive(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda patience, waited, silent: waited >= patience.grace_seconds


def for_ever(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda patience, waited, silent: silent >= patience.grace_seconds


def all_lost(original: Any) -> Any:
    return property(lambda self: True)


def of_whichever_bookie(original: Callable[..., bool]) -> Callable[..., bool]:
    def awaits(copying: Any, event: Any) -> bool:
        return event.first in copying._readings if isinstance(event, ReadAnswered) else original(copying, event)

    return awaits


def and_nothing_more(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: [*original(*args), (1, 0)]


def told_to_nobody(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ledger_id, found: original(ledger_id, [one._replace(targets=()) for one in found])


PLANTED = {
    "not all is copied for a copy more": (Kind.WIDEN, ledger_replication, "copies", names_without_copying),
    "a ledger stays with few copies": (Kind.WIDEN, LedgerMetadata, "lacks_copies", lambda _: False),
    "not all is copied that is named": (Kind.REPLACE, ledger_replication, "copies", names_without_copying),
    "copies are not named where some failed": (Kind.REPLACE, ledger_replication, "few", lambda _: lambda found, most: []),
    "a writer is fenced at once": (Kind.REPLACE, ledger_replication, "may_fence", at_once),
    "a writer that lives is fenced after its grace": (Kind.REPLACE, ledger_replication, "may_fence", dead_or_alive),
    "a stuck writer keeps its ledger for ever": (Kind.REPLACE, ledger_replication, "may_fence", for_ever),
    "limbo ends over an entry that is missing": (Kind.HEAL, bookie_healing, "lacks", one_less),
    "losses that follow each other are not joined": (
        Kind.REPLACE, Loss, "follows", lambda _: lambda self, before: False
    ),
    "what may be readable later is lost": (Kind.HEAL, NotCopied, "lost", all_lost),
    "a bookie that never answers is asked for all": (Kind.FILL, entry_copying, "_SILENT_MAX", lambda _: 10**9),
    "a target that refuses an entry gets nothing more": (Kind.FILL, entry_copying, "_OF_ENTRIES", lambda _: frozenset()),
    "nothing bounds what is under way": (Kind.FILL, entry_copying.EntryCopying, "_has_room", lambda _: lambda self: True),
    "whoever answers a read was asked": (Kind.FILL, entry_copying.EntryCopying, "awaits", of_whichever_bookie),
    "what is not copied is told of nobody": (Kind.FILL, entry_copying, "not_copied_error", told_to_nobody),
    "an audit finds an empty range": (Kind.AUDIT, audits, "confirmed", and_nothing_more),
    "the audit looks at no second time": (Kind.AUDIT, audits, "confirmed", lambda _: lambda first, second: list(first)),
    "no ledger is marked": (Kind.AUDIT, audits, "mark_of_lost", never),
    "entries beyond a list's end are not missed": (Kind.AUDIT, audit_plan, "lacks", one_less),
    "a record with a loss is taken, though it is not closed": (
        Kind.AUDIT, LedgerMetadata, "closed", lambda _: property(lambda self: True)
    ),
    "ranges are not joined where they touch": (
        Kind.LOSE, bookie_ledger, "with_ranges", lambda _: lambda ranges, others: tuple(sorted((*ranges, *others)))
    ),
    "what is back stays lost": (Kind.LOSE, bookie_ledger, "without_ranges", lambda _: lambda ranges, others: ranges),
    "a lost entry is denied": (Kind.LOSE, bookie_ledger, "first_within", never),
    "a stripe has one entry more": (
        Kind.AUDIT, replication_plan, "stripe",
        lambda original: lambda metadata, at, first, last: original(metadata, at, first, last + 1),
    ),
}  # fmt: skip


def breaks_a_law(seed: int, kind: Kind) -> bool:
    try:
        run(seed, kind)
    except Broken:
        return True
    return False


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_breaks_a_law(fault: str) -> None:
    kind, where, name, plant = PLANTED[fault]
    with mock.patch.object(where, name, plant(getattr(where, name))):
        assert any(breaks_a_law(seed, kind) for seed in range(SEEDS_PLANTED))
