"""Random schedules of readers and recoveries keep all laws, and each planted fault breaks a law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.sync_cursor import Assignment, SyncCursor
from bookspark.protocol.reading import range_read, recovery
from bookspark.protocol.reading.lac_read import LacRead
from bookspark.protocol.reading.lac_wait import LacWait
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.reading.recovery import Asked, LaterEntries, LedgerRecovery, LossNotes, WriteBack
from tests.histories.read_schedules.run import Kind, run
from tests.histories.repair_schedules.truth import Broken

SEEDS, SEEDS_PLANTED = 400, 3000


@pytest.mark.parametrize("kind", Kind)
def test_random_read_schedules_break_no_law(kind: Kind) -> None:
    for seed in range(SEEDS):
        run(seed, kind)


def says(answer: Any) -> Callable[[Any], Callable[..., Any]]:
    return lambda original: lambda *args, **kwargs: answer


def less(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: original(self, *args)[:-1]


def one_copy_less(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: original(self, *args[:2], args[2] - 1, *args[3:])


def one_less_covers(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda e, wq, aq, told, others: original(e, wq, aq + 1, told, others)


def one_denial_is_enough(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda wq, aq, *counts: original(wq, wq, *counts)


def as_if_all_denied(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda wq, *counts: original(counts[1], *counts)


def only_the_first(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: [] if self._answers else original(self)[:1]


def forgets_the_highest(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: LacRead, event: Any) -> list[Any]:
        self.last_add_confirmed = -1
        return original(self, event)  # type: ignore[no-any-return]

    return step


def not_one_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, names: original(self, names) if len(names) > 1 else []


def one_more_is_held(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, entry_id: original(self, entry_id) or original(self, entry_id + 1)


PLANTED = {
    "fencing needs one bookie less": (Kind.RECOVER, recovery, "fencing_verdict", one_less_covers),
    "one denial ends a ledger": (Kind.RECOVER, recovery, "recovery_read_verdict", one_denial_is_enough),
    "a run needs one copy less": (Kind.RECOVER, WriteBack, "__init__", one_copy_less),
    "whoever may have an entry counts as having lost it": (Kind.RECOVER, LossNotes, "may_know", says([])),
    "nobody is asked for later entries": (Kind.RECOVER, LaterEntries, "start", less),
    "a loss is not recorded": (Kind.RECOVER, LossNotes, "noted_in", lambda _: lambda self, closed: closed),
    "any password is wrong": (Kind.RECOVER, recovery, "is_wrong_password", says(True)),
    "a recovery stops early": (Kind.RECOVER, LedgerRecovery, "_pass_over", lambda _: lambda self, *args: self._stop("")),
    "what was never asked for is taken": (Kind.RECOVER, Asked, "check", says(None)),
    "an entry that came ahead is forgotten": (Kind.READ, RangeRead, "_deliver_ahead", says([])),
    "a read denies what may be readable": (Kind.READ, range_read, "read_verdict", as_if_all_denied),
    "a read asks only one bookie": (Kind.READ, RangeRead, "_left", only_the_first),
    "a read never looks for others": (
        Kind.READ, RangeRead, "_look_again", lambda _: lambda self: self._fail(self._unreadable())
    ),
    "any answer is one to this read": (Kind.READ, RangeRead, "_is_late", says(False)),
    "the last LAC that came is told": (Kind.LAC, LacRead, "step", forgets_the_highest),
    "a long poll asks nobody again": (Kind.POLL, LacWait, "_ask", not_one_alone),
    "a long poll never looks for others": (Kind.POLL, LacWait, "_next_round", says([])),
    "an entry's write set begins one further": (
        Kind.RECORD, LedgerMetadata, "write_set_of", lambda original: lambda self, entry_id: original(self, entry_id + 1)
    ),
    "any record is the same ledger's": (Kind.RECORD, LedgerMetadata, "is_same_ledger", says(True)),
    "a stripe has one entry more": (Kind.CURSOR, Assignment, "holds", one_more_is_held),
    "a cursor never starts again": (
        Kind.CURSOR, SyncCursor, "assign", lambda original: lambda self, new: bool(original(self, new)) and False
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
