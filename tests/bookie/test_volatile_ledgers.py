"""The cursors of ledgers of volatile durability (VD): how many are kept, and that a dropped one comes back as it was."""

from __future__ import annotations

import pytest

from bookspark.bookie.disk.index import Index, location
from bookspark.bookie.holdings import volatile_ledgers
from bookspark.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.sync_cursor import Assignment

MINE = Assignment(0)


class Disk:
    """An index, and up to which location it is synced."""

    def __init__(self) -> None:
        self.index = Index()
        self.synced = 0
        self.fenced: set[int] = set()
        self.cursors = VolatileLedgers(
            self.index, lambda where: where < self.synced, lambda ledger_id: ledger_id not in self.fenced
        )
        self._end = location(1, 400)

    def add(self, ledger_id: int, first: int, last: int) -> None:
        self.index.of(ledger_id).insert(first, last, self._end, 100)
        self.cursors.added(ledger_id, MINE, first, last, self._end)
        self._end += 100

    def sync(self, ledger_id: int) -> int:
        self.cursors.asked(ledger_id, MINE)
        self.synced = self._end
        return self.cursors.last_add_synced(ledger_id, MINE)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(volatile_ledgers, "_SETTLED_MAX", 10)
    return Disk()


def test_of_finished_vd_ledgers_a_bounded_number_of_cursors_is_kept(disk: Disk) -> None:
    for ledger_id in range(100):
        disk.add(ledger_id, 0, 9)
        assert disk.sync(ledger_id) == 9
    assert len(disk.cursors) == 10


def test_a_finished_vd_ledger_keeps_nothing_once_two_checkpoints_are_made(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.sync(5)
    disk.add(6, 0, 9)
    disk.cursors.rest()
    disk.cursors.rest()
    assert len(disk.cursors) == 1, "6 is not synced yet"
    disk.synced = location(2, 0)
    for _ in range(3):
        disk.cursors.rest()
    assert len(disk.cursors) == 0, "synced by itself, and nobody asked"


def test_a_cursor_that_was_dropped_goes_on_where_it_was(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.add(5, 20, 29)
    disk.sync(5)
    for _ in range(2):
        disk.cursors.rest()
    assert len(disk.cursors) == 0
    assert disk.cursors.last_add_synced(5, MINE) == 9, "for an answer that was under way"
    for _ in range(2):
        disk.cursors.rest()
    disk.add(5, 10, 19)
    assert disk.cursors.last_add_synced(5, MINE) == 9, "the gap is filled, but not synced"
    assert disk.sync(5) == 29


def test_a_cursor_in_use_is_not_dropped(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.sync(5)
    for first in range(10, 60, 10):
        disk.cursors.rest()
        disk.add(5, first, first + 9)
        assert len(disk.cursors) == 1
    for ledger_id in range(100, 200):
        disk.add(ledger_id, 0, 9)
        disk.sync(ledger_id)
    disk.add(5, 60, 60)
    assert disk.cursors.last_add_synced(5, MINE) == 59


def test_a_dropped_cursor_of_a_fenced_ledger_tells_nothing(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.sync(5)
    disk.fenced.add(5)
    disk.cursors.forget(5)
    assert disk.cursors.last_add_synced(5, MINE) == NO_ENTRY and len(disk.cursors) == 0


def test_many_rows_are_not_looked_at_again_for_each_add(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 3)
    for first in range(5):
        disk.add(5, first, first)
    disk.sync(5)
    for ledger_id in range(100, 120):
        disk.add(ledger_id, 0, 0)
        disk.sync(ledger_id)
    assert 5 in disk.cursors._ledgers
    for _ in range(3):
        disk.cursors.rest()
    assert len(disk.cursors) == 0, "in the end it goes too"
