"""The bookie's index compared with a dict."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.store.bookie.disk.index import ChangingRows, Index, Row, location, log_of, position_of

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=25)


def built(spans):
    rows, model = ChangingRows.empty(), {}
    for number, (first, more) in enumerate(spans):
        where = location(1 + number % 3, 408 + 8 * number)
        rows.insert(first, first + more, where, 100 + number)
        for entry_id in range(first, first + more + 1):
            model.setdefault(entry_id, (where, 100 + number))
    return rows, model


def expanded(rows):
    return {i: (row.where, row.size) for row in rows.covering(0, 1 << 40) for i in range(row.first, row.last + 1)}


@given(ranges)
def test_index_keeps_the_first_copy_and_rows_never_overlap(spans):
    rows, model = built(spans)
    assert expanded(rows) == model
    found = list(rows.covering(0, 1 << 40))
    assert all(a.last < b.first for a, b in pairwise(found))
    assert rows.last_entry_id == max(model, default=-1)


@given(ranges, ranges.filter(bool), st.booleans())
def test_extend_equals_inserting_the_ranges_singly(before, spans, ascending):
    rows, _ = built(before)
    one_by_one, _ = built(before)
    if ascending:
        spans = [(13 * number + first % 7, more % 6) for number, (first, more) in enumerate(sorted(spans), 8)]
    added = [(first, first + more, location(9, 408 + 8 * n), 100 + n) for n, (first, more) in enumerate(spans)]
    rows.extend(*zip(*added, strict=True))
    for row in added:
        one_by_one.insert(*row)
    assert rows.to_bytes() == one_by_one.to_bytes() and rows.clean == one_by_one.clean


@given(ranges, st.integers(0, 80), st.integers(0, 30))
def test_covering_returns_all_held_entries_of_a_range(spans, first, more):
    rows, model = built(spans)
    found = {i for row in rows.covering(first, first + more) for i in range(row.first, row.last + 1)}
    wanted = {i for i in model if first <= i <= first + more}
    assert {i for i in found if first <= i <= first + more} == wanted


@given(ranges, st.integers(1, 3))
def test_remove_drops_all_rows_of_a_log(spans, log):
    rows, model = built(spans)
    removed = rows.remove(location(log, 0), location(log, (1 << 32) - 1))
    kept = {i: value for i, value in model.items() if log_of(value[0]) != log}
    assert expanded(rows) == kept
    assert sorted(i for row in removed for i in range(row.first, row.last + 1)) == sorted(model.keys() - kept.keys())


def test_locations_pack_log_and_position():
    where = location(0x7FFFFFFF, 0xFFFFFFF8)
    assert (log_of(where), position_of(where)) == (0x7FFFFFFF, 0xFFFFFFF8)
    assert where < 1 << 63


def test_ledger_ids_ascend_from_a_start():
    index = Index()
    for ledger_id in (9, 2, 5):
        index.of(ledger_id).insert(0, 0, location(1, 408), 1)
    assert index.ledger_ids() == [2, 5, 9]
    assert index.ledger_ids(5) == [5, 9]
    assert index.ledger_ids(6) == [9]


@given(st.lists(st.tuples(st.sampled_from(["add", "forget", "look"]), st.integers(0, 8)), max_size=30))
def test_ledger_ids_ascend_through_any_additions_and_removals(changes):
    index, model = Index(), set()
    for change, ledger_id in changes:
        if change == "add":
            index.of(ledger_id)
            model.add(ledger_id)
        elif change == "forget":
            index.forget(ledger_id)
            model.discard(ledger_id)
        else:
            assert index.ledger_ids() == sorted(model)
    assert index.ledger_ids() == sorted(model)


def test_any_rows_are_dropped_by_number():
    random = Random(1)
    for _ in range(200):
        rows, kept = ChangingRows.empty(), []
        for number in range(random.randrange(1, 12)):
            rows.insert(3 * number, 3 * number + 1, 100 * number, 50)
        dropped = sorted(random.sample(range(len(rows)), random.randrange(len(rows) + 1)))
        kept = [rows.row(i) for i in range(len(rows)) if i not in dropped]
        rows.drop_numbered(dropped)
        assert [rows.row(i) for i in range(len(rows))] == kept
        assert rows.is_clean is False or not dropped


def test_adjacent_rows_form_a_single_range():
    rows = Index().of(5)
    for first, last in ((0, 1), (2, 5), (7, 7)):
        rows.insert(first, last, 8 * first, 8)
    assert list(rows.ids_of([0, 1, 2])) == [(0, 5), (7, 7)]
    assert list(rows.ids_of([])) == []


@pytest.mark.parametrize("packed", [False, True])
def test_boot_removes_rows_of_lost_logs_and_others_stay_removable(packed):
    index = Index()
    rows = index.of(5)
    rows.insert(0, 0, location(1, 0), 8)
    rows.insert(1, 1, location(2, 0), 8)
    if packed:
        content = rows.to_bytes()
        index = Index()
        index.put(5, memoryview(content))
    assert list(index.remove_at_boot({2: 0})) == [(5, [Row(1, 1, location(2, 0), 8)])]
    assert index.get(5).last_entry_id == 0
    index.changing(5).remove(location(1, 0), location(1, 0))
    assert not index.holds_any(5)
