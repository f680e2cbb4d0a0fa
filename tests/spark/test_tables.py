"""System tables without Spark: what their rows say of what can't be known, and how much of them is in memory at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bookspark.client import BookKeeper
from bookspark.protocol.errors import BookieError, UnauthorizedAccessError
from bookspark.spark.tables.ledgers import LEDGERS
from bookspark.spark.tables.table import LONG, ROWS_PER_BATCH, Rows, SystemTable, once
from tests.spark.memory_bookkeeper import MemoryBookKeeper

LEDGER = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "custom_metadata": {}}


@pytest.mark.parametrize("error", [UnauthorizedAccessError("wrong password"), BookieError("no bookie answers")])
def test_a_lac_that_nobody_tells_is_null_and_not_none_confirmed(error: Exception) -> None:
    bookkeeper = MemoryBookKeeper()
    for password in (b"", b"secret"):
        bookkeeper.create_ledger(**LEDGER, password=password).append(b"entry")
    tell = bookkeeper.open_ledger_no_recovery

    def refuse(ledger_id: int, password: bytes = b"") -> Any:
        if ledger_id == 1:
            raise error
        return tell(ledger_id, password)

    bookkeeper.open_ledger_no_recovery = refuse  # type: ignore[method-assign]
    [rows] = LEDGERS.read(cast(BookKeeper, bookkeeper), [0, 1], b"")
    assert rows.column("last_add_confirmed").to_pylist() == [0, None]


def test_the_rows_of_a_table_are_not_all_in_memory_at_once() -> None:
    made = 0

    def rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
        nonlocal made
        for made in range(1, 10 * ROWS_PER_BATCH + 2):
            yield (made,)

    table = SystemTable("numbers", "Numbers.", (("number", LONG, "One"),), once, rows)
    taken: list[int] = []
    for batch in table.read(cast(BookKeeper, None), None, b""):
        assert made <= len(taken) + ROWS_PER_BATCH
        taken += batch.column("number").to_pylist()
    assert taken == list(range(1, 10 * ROWS_PER_BATCH + 2))
