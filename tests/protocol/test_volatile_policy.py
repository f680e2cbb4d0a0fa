"""Policy of VD ledgers (volatile durability): sync cursors per bookie, and when a sync is requested."""

from __future__ import annotations

import pytest

from bookspark.protocol.ledger.actions import SendSync, SyncReport
from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.writing.writer import PendingAdd, Volatile
from bookspark.protocol.writing.writer_events import Close, PassedOver, Sync
from tests.protocol.ledger_pair import LedgerPair
from tests.protocol.ledgers import metadata

ALL = ("b1", "b2", "b3")
NOBODY: frozenset[str] = frozenset()


def policy(sync_bytes: int = 100) -> Volatile:
    return Volatile(metadata(ledger_type=LedgerType.VD_JOURNAL), sync_bytes)


def add(last: int, bookies: tuple[str, ...] = ALL, acks: tuple[str, ...] = ()) -> PendingAdd:
    return PendingAdd(last, last, 0, bookies, set(acks))


def synced(volatile: Volatile, bookie: str, last: int) -> None:
    volatile.heard(bookie, SyncReport(last, 1, Assignment(0)), None, ())


def holders(volatile: Volatile, last: int) -> set[str]:
    return set(volatile.holders(add(last), NOBODY))


def test_passed_over_cursor_continues_after_the_released_entries() -> None:
    volatile = policy()
    synced(volatile, "b1", 7)
    for bookie in ("b1", "b2"):
        volatile.pass_over(bookie, 4)
    assert volatile.grouped(ALL) == [(Assignment(5), ("b1", "b2")), (Assignment(0), ("b3",))]
    assert holders(volatile, 4) == {"b1", "b2"} and holders(volatile, 5) == holders(volatile, 7) == {"b1"}
    assert holders(volatile, 8) == set()
    volatile.pass_over("b1", 2)
    assert volatile.grouped(("b1",)) == [(Assignment(5), ("b1",))], "it does not go back"


def test_passed_over_bookies_hold_the_released_entries_only() -> None:
    volatile = policy()
    assert volatile.passed_over(("b1", "b2"), 4, ()) == []
    assert holders(volatile, 4) == {"b1", "b2"} and holders(volatile, 5) == set()


def test_sync_is_requested_after_sync_bytes_up_to_the_appended_entry() -> None:
    volatile = policy(sync_bytes=100)
    volatile.appended(8, 99)
    assert volatile.acknowledged(8) == []
    volatile.appended(9, 100)
    assert volatile.acknowledged(8) == [] and volatile.acknowledged(9) == [SendSync(ALL, Assignment(0))]
    volatile.appended(10, 199)
    assert volatile.acknowledged(10) == []
    volatile.appended(11, 200)
    for bookie in ALL:
        volatile.sync_answered(bookie)
    assert volatile.acknowledged(11) == [SendSync(ALL, Assignment(0))]


@pytest.mark.parametrize(
    ("adds", "asked"),
    [
        ([add(5, acks=ALL), add(9)], False),
        ([add(5, acks=ALL), add(6, acks=ALL)], True),
        ([add(6, ("b2", "b3")), add(7, acks=ALL)], True),
        ([add(6), add(7, acks=ALL)], False),
        ([add(10, acks=ALL)], False),
        ([add(9, acks=ALL)], True),
    ],
    ids=[
        "the next is not there",
        "it is there",
        "the next is others'",
        "one is missing",
        "behind the goal",
        "the goal",
    ],
)
def test_bookie_with_the_next_entry_syncs_again_up_to_the_goal(adds: list[PendingAdd], asked: bool) -> None:
    volatile = policy()
    volatile.want(9, 1)
    volatile.acknowledged(9)
    synced(volatile, "b1", 5)
    volatile.sync_answered("b1")
    assert volatile.sync_rest("b1", adds) == ([SendSync(("b1",), Assignment(0))] if asked else [])


def test_requested_sync_is_sent_once_all_appends_are_acknowledged() -> None:
    pair = LedgerPair(volatile=True, sync_bytes=10**9)
    pair.append()

    def syncs() -> list[str]:
        return sorted(bookie for bookie, request in pair.writer.sent if isinstance(request, SendSync))

    pair.writer.step(Sync())
    assert syncs() == []
    pair.writer.answers("b1", 0)
    assert syncs() == []
    pair.writer.answers("b2", 0)
    assert syncs() == ["b1", "b2", "b3"]


@pytest.mark.parametrize("closing", [False, True])
def test_bookie_whose_adds_were_dropped_is_passed_over_even_while_closing(closing: bool) -> None:
    pair = LedgerPair(volatile=True, sync_bytes=1)
    pair.append()
    for bookie in ("b1", "b2"):
        pair.writer.answers(bookie, 0)
    for bookie in ("b1", "b2"):
        pair.writer.answers(bookie)
    assert pair.writer.confirmed == 0
    pair.append()
    if closing:
        pair.writer.step(Close())
    adds = pair.writer.machine._adds
    assert adds.volatile.grouped(("b3",)) == [(Assignment(0), ("b3",))]
    pair.writer.step(PassedOver("b3"))
    assert adds.volatile.grouped(("b3",)) == [(Assignment(1), ("b3",))]
