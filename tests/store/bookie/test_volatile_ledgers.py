"""Cursors of ledgers with volatile durability (VD): their number is bounded, and a dropped cursor comes back unchanged."""

from __future__ import annotations

import random

import pytest

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.bookie.disk.index import Index, location
from bookspark.store.bookie.holdings import volatile_ledgers
from bookspark.store.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.store.bookie.steps import Steps

MINE = Assignment(0)


class Disk:
    """An index, and the location up to which it is synced."""

    def __init__(self) -> None:
        self.index = Index()
        self.synced = 0
        self.fenced: set[int] = set()
        self.cursors = VolatileLedgers(
            self.index,
            lambda where: where < self.synced,
            lambda ledger_id: ledger_id not in self.fenced,
            carry_through=lambda steps: self.turns.append(steps),
        )
        self.turns: list[Steps[None]] = []
        self._end = location(1, 400)

    def add(self, ledger_id: int, first: int, last: int) -> None:
        self.index.of(ledger_id).insert(first, last, self._end, 100)
        self.cursors.added(ledger_id, MINE, first, last, self._end)
        self._end += 100

    def sync(self, ledger_id: int) -> int:
        self.cursors.asked(ledger_id, MINE)
        self.synced = self._end
        return self.cursors.last_add_synced(ledger_id, MINE)


def rest(disk: Disk) -> int:
    """Returns the number of steps."""
    return 1 + len(list(disk.cursors.rest()))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(volatile_ledgers, "_SETTLED_MAX", 10)
    return Disk()


def test_cursors_of_finished_vd_ledgers_are_bounded(disk: Disk) -> None:
    for ledger_id in range(100):
        disk.add(ledger_id, 0, 9)
        assert disk.sync(ledger_id) == 9
    assert len(disk.cursors) == 10


def test_cursor_of_a_finished_vd_ledger_is_dropped_after_two_checkpoints(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.sync(5)
    disk.add(6, 0, 9)
    rest(disk)
    rest(disk)
    assert len(disk.cursors) == 1, "6 is not synced yet"
    disk.synced = location(2, 0)
    for _ in range(3):
        rest(disk)
    assert len(disk.cursors) == 0, "synced by itself, and nobody asked"


def test_dropped_cursor_continues_at_its_last_value(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.add(5, 20, 29)
    disk.sync(5)
    for _ in range(2):
        rest(disk)
    assert len(disk.cursors) == 0
    assert disk.cursors.last_add_synced(5, MINE) == 9, "for an answer that was under way"
    for _ in range(2):
        rest(disk)
    disk.add(5, 10, 19)
    assert disk.cursors.last_add_synced(5, MINE) == 9, "the gap is filled, but not synced"
    assert disk.sync(5) == 29


def test_cursor_in_use_is_not_dropped(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.sync(5)
    for first in range(10, 60, 10):
        rest(disk)
        disk.add(5, first, first + 9)
        assert len(disk.cursors) == 1
    for ledger_id in range(100, 200):
        disk.add(ledger_id, 0, 9)
        disk.sync(ledger_id)
    disk.add(5, 60, 60)
    assert disk.cursors.last_add_synced(5, MINE) == 59


def test_dropped_cursor_of_a_fenced_ledger_has_no_value(disk: Disk) -> None:
    disk.add(5, 0, 9)
    disk.sync(5)
    disk.fenced.add(5)
    disk.cursors.forget(5)
    assert disk.cursors.last_add_synced(5, MINE) == NO_ENTRY and len(disk.cursors) == 0


def test_cursor_with_many_rows_is_dropped_only_by_a_checkpoint(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 3)
    for first in range(5):
        disk.add(5, first, first)
    disk.sync(5)
    for ledger_id in range(100, 120):
        disk.add(ledger_id, 0, 0)
        disk.sync(ledger_id)
    assert 5 in disk.cursors._ledgers
    for _ in range(3):
        rest(disk)
    assert len(disk.cursors) == 0, "in the end it goes too"


def test_cursor_of_a_long_ledger_begins_in_steps_and_a_sync_waits_for_them(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request after a boot scanned all rows of its ledger in a single step of the loop."""
    monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 4)
    for first in range(15):
        disk.index.of(5).insert(first, first, location(1, first), 1)
    disk.synced = location(1, 14)
    told: list[list[int]] = []
    disk.cursors.when_begun(5, MINE, lambda: told.append(disk.cursors.asked(5, MINE)))
    (steps,) = disk.turns
    for part in (1, 2, 3):
        assert disk.cursors.last_add_synced(5, MINE) == 4 * part - 1 and not told
        next(steps)
    assert next(steps, None) is None
    assert told == [[location(1, 14)]] and disk.cursors.last_add_synced(5, MINE) == 13
    assert disk.turns == [steps]


def test_waiter_is_called_if_its_ledger_is_fenced_or_assigned_anew_meanwhile(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 4)
    called: list[int] = []
    for ledger_id in (5, 6):
        for first in range(15):
            disk.index.of(ledger_id).insert(first, first, location(1, first), 1)
        disk.cursors.when_begun(ledger_id, MINE, lambda ledger_id=ledger_id: called.append(ledger_id))
    fenced, anew = disk.turns
    disk.cursors.forget(5)
    assert len(list(fenced)) <= 1 and called == [5]
    disk.cursors.when_begun(6, Assignment(3, 3, 2, 1), lambda: called.append(-6))
    assert len(list(anew)) <= 1 and called == [5, 6]
    assert len(list(disk.turns[-1])) == 3 and called == [5, 6, -6]


@pytest.mark.parametrize("seed", range(30))
def test_cursor_begun_in_steps_ends_as_a_cursor_begun_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    disk, other = Disk(), Disk()
    rows = [(entry_id, entry_id + 1) for entry_id in rng.sample(range(0, 120, 2), 55)]
    for number, (first, last) in enumerate(rows):
        for one in (disk, other):
            monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 3 if one is disk else 1000)
            if number < 40:
                one.index.of(5).insert(first, last, one._end, 100)
                one._end += 100
            else:
                one.add(5, first, last)
        if number < 40:
            continue
        monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 3)
        next(disk.turns[0], None)
        disk.synced = other.synced = max(disk.synced, disk._end - 100 * rng.randrange(1, 20))
        assert disk.cursors.last_add_synced(5, MINE) <= other.cursors.last_add_synced(5, MINE)
    for _ in disk.turns[0]:
        pass
    assert len(disk.turns) == 1 and not other.turns
    not_synced = {row.where for row in disk.index.get(5).covering(0, 120) if row.where >= disk.synced}
    assert not_synced <= set(disk.cursors.asked(5, MINE))
    assert disk.sync(5) == other.sync(5)


def test_duplicate_counts_as_its_kept_copy_before_that_is_scanned(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 4)
    for first in range(15):
        disk.index.of(5).insert(first, first, location(9 if first == 12 else 1, first), 1)
    disk.synced = location(2, 0)
    (kept,) = disk.index.get(5).covering(12, 12)
    disk.cursors.added_again(5, MINE, [kept])
    disk.cursors.added(5, MINE, 12, 19, location(1, 100))
    for _ in disk.turns[0]:
        pass
    assert disk.cursors.last_add_synced(5, MINE) == 11


def test_rows_of_a_failed_directory_do_not_count_as_synced(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile_ledgers, "_ROWS_MAX", 4)
    for first in range(15):
        disk.index.of(5).insert(first, first, location(1 if first % 7 else 2, first), 1)
    disk.synced = location(3, 0)
    disk.cursors._is_gone = lambda where: where >= location(2, 0)
    disk.cursors.last_add_synced(5, MINE)
    for _ in disk.turns[0]:
        pass
    assert disk.cursors.last_add_synced(5, MINE) == NO_ENTRY
    disk.cursors.added(5, MINE, 0, 0, location(1, 100))
    assert disk.cursors.last_add_synced(5, MINE) == 6


def test_many_cursors_are_checked_in_steps(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile_ledgers, "_LEDGERS_A_STEP", 10)
    for ledger_id in range(35):
        disk.add(ledger_id, 0, 9)
    assert rest(disk) == 4
