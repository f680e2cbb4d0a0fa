"""Under-replication tasks: marks, failed attempts, and entries that a copying left behind."""

from __future__ import annotations

import pytest

from bookspark.protocol.ledger.responses import Negative, NegativeReason, Unknown, UnknownReason
from bookspark.protocol.repair.audit_plan import mark_of_misplaced
from bookspark.protocol.repair.entry_copying import NotCopied
from bookspark.protocol.repair.underreplication_task import Mark, Missed, Reason, Task, new_task
from tests.protocol.ledgers import LOST, NO

MISSED = (Missed(3, 4, False, ("b2",), {"b2": "away"}),)
FAILED = new_task(Mark(7, {"b1": Reason.LOST}, "b1 lost"), 5).failed("no bookie", 1000, 500, MISSED)


def test_new_task_is_due_and_a_failed_attempt_postpones_it():
    assert new_task(Mark(7, {"b1": Reason.LOST}, "b1 lost"), 5) == Task(7, {"b1": Reason.LOST}, "b1 lost", 5)
    assert new_task(Mark(7, {}), 5).due(0)
    assert (FAILED.attempts, FAILED.error, FAILED.missed) == (1, "no bookie", MISSED)
    assert not FAILED.due(1499) and FAILED.due(1500)
    assert FAILED.failed("again", 2000, 500).attempts == 2


def test_repeated_mark_does_not_make_the_task_due():
    again = FAILED.marked(Mark(7, {"b1": Reason.LOST}))
    assert (again.marks, again.not_before_ms, again.missed, again.detail) == (2, 1500, MISSED, "b1 lost")


@pytest.mark.parametrize("bookies", [{"b2": Reason.LACKS}, {"b1": Reason.LACKS}])
def test_mark_with_news_makes_the_task_due_and_keeps_its_bookies(bookies):
    after = FAILED.marked(Mark(7, bookies, "more"))
    assert (after.marks, after.not_before_ms, after.missed, after.detail) == (2, 0, (), "more")
    assert after.bookies == bookies | {"b1": Reason.LOST}
    assert after.attempts == 1 and after.error == "no bookie"


def test_mark_of_another_ledger_is_refused():
    with pytest.raises(ValueError, match="ledger 8 is no mark of ledger 7"):
        FAILED.marked(Mark(8, {"b1": Reason.LOST}))


def test_texts_and_missed_ranges_are_truncated():
    long = FAILED.marked(Mark(7, {}, "x" * 600)).failed("y" * 600, 0, 0, MISSED * 300)
    assert (len(long.detail), len(long.error), len(long.missed)) == (500, 500, 200)


def test_task_lists_its_bookies_by_reason():
    task = Task(7, {"b1": Reason.LOST, "b2": Reason.LACKS, "b3": Reason.LOST})
    assert task.of(Reason.LOST) == ("b1", "b3") and task.of(Reason.LACKS) == ("b2",)
    assert task.of(Reason.MISPLACED) == ()
    assert mark_of_misplaced(7, ["b1", "b2"]) == Mark(
        7, dict.fromkeys(("b1", "b2"), Reason.MISPLACED), "b1, b2 misplaced"
    )


DAMAGED = Unknown(UnknownReason.DIGEST_MISMATCH)


@pytest.mark.parametrize(
    ("found", "lost", "unreached"),
    [
        (NotCopied(3, 4, ("b9",), {"b1": NO, "b2": DAMAGED, "b3": Unknown(UnknownReason.LOST)}), True, ()),
        (NotCopied(3, 4, ("b9",), {"b1": NO, "b2": LOST}), False, ("b2",)),
        (NotCopied(3, 4, ("b2",), {"b1": NO, "b2": LOST}), True, ()),
        (NotCopied(3, 4, ("b9",), {"b1": Negative(NegativeReason.NO_SUCH_LEDGER)}), True, ()),
        (NotCopied(3, 4, ("b9",), {"b9": LOST}, refused=True), False, ()),
    ],
)
def test_entries_are_lost_only_if_all_bookies_were_reached_and_none_has_them(found, lost, unreached):
    assert (found.lost, found.unreached) == (lost, unreached)
    missed = found.missed()
    assert missed[:4] == (3, 4, lost, unreached)
    assert missed.answers.keys() == found.answers.keys()
    assert all(words and bookie not in words for bookie, words in missed.answers.items())


def test_lost_bookie_stays_lost_when_it_is_marked_as_lacking_too():
    """The writer of an open ledger closes it after the auditor took the bookie for lost: others have to take its entries over."""
    lost = new_task(Mark(7, {"b1": Reason.LOST}), 1000)
    assert lost.marked(Mark(7, {"b1": Reason.LACKS, "b2": Reason.LACKS})).bookies == {
        "b1": Reason.LOST,
        "b2": Reason.LACKS,
    }
    assert new_task(Mark(7, {"b1": Reason.LACKS}), 1000).marked(Mark(7, {"b1": Reason.LOST})).bookies == {
        "b1": Reason.LOST
    }
