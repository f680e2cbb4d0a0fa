"""Reading a bookie's index in slices and batches: each row once, and never a whole index in memory."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from bookspark.protocol.ledger.responses import Positive
from bookspark.spark.tables import contents
from bookspark.spark.tables.contents import ENTRY_LOGS, INDEX_RANGES
from bookspark.store.client.inspection import bookie_questions
from bookspark.store.client.inspection.bookie_questions import RANGE_COLUMNS, range_batches
from bookspark.store.wire.header import Header, Kind
from bookspark.store.wire.messages import Ranges

ROWS = [
    (ledger_id, 10 * n, 10 * n + 9, 1 + (ledger_id + n) % 3, 400 + 1000 * ledger_id + 100 * (n // 2), 100)
    for ledger_id in (0, 1, 2, 7, 8, 30, 31, 32, 33, 1 << 40)
    for n in range(1 if ledger_id % 2 else 9)
]


class Bookkeeper:
    """A bookie with the index ``ROWS`` that answers ``at_once`` rows at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
        self.context: Any = self
        self.metadata = SimpleNamespace(bookies=lambda: ["b1"], highest_ledger_id=lambda: 1 << 40)
        self.asked: list[int] = []
        self.runtime = SimpleNamespace(connections=SimpleNamespace(next_request_id=lambda: 1))
        self._at_once = at_once
        monkeypatch.setattr(bookie_questions, "_positive", self._answer)

    def _answer(self, context: Any, bookie_id: str, kind: Kind, **fields: int) -> Any:
        header = Header(kind, 1, **fields)
        self.asked.append(header.ledger_id)
        place = header.ledger_id, header.first_entry_id
        rows = [row for row in ROWS if row[:2] >= place and (not header.value or row[0] == header.ledger_id)]
        ranges = Ranges.empty()
        for row in rows[: self._at_once]:
            ranges.append(row)
        left = rows[self._at_once :]
        told = Header(Kind.RANGES, 1, first_entry_id=left[0][1] if left else -1, value=left[0][0] if left else -1)
        return SimpleNamespace(body=memoryview(ranges.encode()), response=Positive()), told

    def list_entry_logs(self, bookie_id: str) -> list[Any]:
        logs = [SimpleNamespace(number=n, path=f"/d/logs/{n}", rewritten=False, sealed=True) for n in (1, 2, 3)]
        for log in logs:
            log.size = log.synced = 1 << 30
        return logs


@pytest.mark.parametrize("at_once", [1, 2, 5, 1000])
@pytest.mark.parametrize("rows", [1, 4, 1 << 16])
def test_batches_have_each_row_once(monkeypatch: pytest.MonkeyPatch, at_once: int, rows: int) -> None:
    monkeypatch.setattr(bookie_questions, "_ROWS_PER_BATCH", rows)
    bookkeeper: Any = Bookkeeper(monkeypatch, at_once)
    random = Random(at_once)
    cuts = sorted(random.sample(range(40), 3))
    for first, last in ((0, None), (7, 7), (3, 6), (8, 31), (1 << 41, None), *pairwise(cuts)):
        batches = list(range_batches(bookkeeper, "b1", first, last))
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        assert found == [row for row in ROWS if first <= row[0] and (last is None or row[0] <= last)]
        assert all(0 < batch.num_rows < rows + at_once for batch in batches)


@pytest.mark.parametrize("ids", [0, 1, 99_999, 100_000, 350_000, 10_000_000, 1 << 62])
def test_slices_have_each_ledger_once(monkeypatch: pytest.MonkeyPatch, ids: int) -> None:
    bookkeeper: Any = Bookkeeper(monkeypatch, 5)
    bookkeeper.metadata.highest_ledger_id = lambda: ids - 1
    slices = INDEX_RANGES.plan(bookkeeper)
    assert len(slices) == min(48, 1 + ids // 100_000)
    assert slices[0].first == 0 and slices[-1].last is None
    assert [one.last + 1 for one in slices[:-1]] == [one.first for one in slices[1:]]


def test_slices_of_all_bookies_are_few_and_each_bookie_has_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    bookkeeper: Any = Bookkeeper(monkeypatch, 5)
    bookkeeper.metadata.highest_ledger_id = lambda: 10_000_000
    for bookies, slices in ((0, 0), (3, 48), (5, 45), (100, 100)):
        bookkeeper.metadata.bookies = lambda bookies=bookies: [f"b{n:03}" for n in range(bookies)]
        found = INDEX_RANGES.plan(bookkeeper)
        assert len(found) == slices and len({one.bookie_id for one in found}) == bookies


def test_tables_do_not_depend_on_the_size_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(at_once: int, size: int) -> tuple[list[Any], list[Any]]:
        monkeypatch.setattr(bookie_questions, "_ROWS_PER_BATCH", size)
        bookkeeper: Any = Bookkeeper(monkeypatch, at_once)
        index = [
            row
            for part in INDEX_RANGES.plan(bookkeeper)
            for batch in INDEX_RANGES.read(bookkeeper, part, b"")
            for row in batch.to_pylist()
        ]
        logs = [row for batch in ENTRY_LOGS.read(bookkeeper, "b1", b"") for row in batch.to_pylist()]
        return index, logs

    index, logs = rows(1 << 20, 1 << 16)
    assert [tuple(row.values())[1:] for row in index] == ROWS
    assert sum(row["ledgers"] for row in logs) == len({(row[0], row[3]) for row in ROWS})
    assert sum(row["entries"] for row in logs) == 10 * len(ROWS)
    assert sum(row["live_bytes"] for row in logs) == 100 * len({row[3:5] for row in ROWS})
    for at_once, size in ((1, 1), (3, 4), (7, 1)):
        assert rows(at_once, size) == (index, logs)


def test_tables_of_whole_ledgers_exceed_a_batch_by_at_most_one_ledger() -> None:
    batches = [
        pyarrow.RecordBatch.from_pylist([dict(zip(RANGE_COLUMNS, row, strict=True)) for row in ROWS[at : at + 4]])
        for at in range(0, len(ROWS), 4)
    ]
    tables = list(contents._whole_ledgers(batches))
    assert [tuple(row.values()) for table in tables for row in table.to_pylist()] == ROWS
    ids = [set(table["ledger_id"].to_pylist()) for table in tables]
    assert sum(map(len, ids)) == len(set().union(*ids)) and max(table.num_rows for table in tables) < 9 + 4
