"""Reading offloaded rows without Spark: the same rows in order, or an error that says which rows are missing."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bookspark.errors import NoSuchLedgerError, ReadError
from bookspark.logs import LogRegistry
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.lanes import LaneId, lane_id, service_writer
from bookspark.spark.offload.offloaded import offloaded_rows, rows_of
from bookspark.spark.offload.opened_ledgers import OpenedLedgers
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.spark.memory_bookkeeper import MemoryBookKeeper

SCHEMA = StructType([StructField("value", StringType()), StructField("position", LongType())])


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    LogRegistry(store).ensure("orders", {}, b"")
    return store


def orders(store: MemoryStore) -> LaneId:
    return lane_id(LogRegistry(store).get("orders"))


def offloaded(store: MemoryStore, folder: Path, end: int) -> str:
    """A table at ``folder`` with the rows up to ``end``, in files of no particular order, and recorded as offloaded."""
    table = str(folder / "table")
    for positions in (range(45, 50), range(50, end), range(45)):
        rows = {"value": [f"v{n}" for n in positions], "position": list(positions), "ledger_id": [7] * len(positions)}
        done = CommitProperties(app_transactions=[Transaction("offload", end)])
        write_deltalake(table, pyarrow.table(rows), mode="append", commit_properties=done)
    registry = LogRegistry(store)
    registry.update("orders", lambda record: record.offload_begun(table, end))
    registry.update("orders", lambda record: record.offload_done(table, end, 2))
    return table


def read(store: MemoryStore, position: int, rows: int, schema: StructType = SCHEMA) -> list[dict[str, object]] | None:
    batches = offloaded_rows(store, orders(store), Piece(7, 0, position, rows), deque(), schema)
    return None if batches is None else [row for batch in batches for row in batch.to_pylist()]


def test_rows_of_a_piece_come_in_order_from_any_files(store: MemoryStore, tmp_path: Path) -> None:
    offloaded(store, tmp_path, 100)
    assert read(store, 40, 20) == [{"value": f"v{n}", "position": n} for n in range(40, 60)]
    assert read(store, 99, 1, StructType(SCHEMA.fields[:1])) == [{"value": "v99"}]


def test_read_of_keys_and_headers_that_the_table_lacks_raises(store: MemoryStore, tmp_path: Path) -> None:
    """The ledgers that had them are gone, and nulls would mean that the producer gave none."""
    offloaded(store, tmp_path, 100)

    def read_with(*others: str) -> list[pyarrow.RecordBatch]:
        return list(offloaded_rows(store, orders(store), Piece(7, 0, 40, 20), deque(), SCHEMA, others) or ())

    assert sum(batch.num_rows for batch in read_with("key")) == 20, "Spark's rows have none"
    LogRegistry(store).claim("orders", "run", service_writer("billing"))
    for others in (["key"], ["timestamp", "headers"]):
        with pytest.raises(ReadError, match=r"keeps no keys and headers.*begin at row 100"):
            read_with(*others)
    assert sum(batch.num_rows for batch in read_with("timestamp")) == 20


def test_table_is_opened_once_for_all_its_pieces_of_a_task(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each opening costs as much as reading thousands of rows, and a log of small micro-batches has a piece for each."""
    offloaded(store, tmp_path, 100)
    opened = []
    original = DeltaTable.__init__
    monkeypatch.setattr(DeltaTable, "__init__", lambda self, *args: (opened.append(1), original(self, *args))[1])
    bookkeeper = MemoryBookKeeper(store)
    pieces = deque(Piece(7, n, n, 1) for n in range(99))
    pieces += [
        Piece(7, 0, 150, 10),
        Piece(7, 10, 160, 10),
    ]  # offloaded later than recorded, and after a gap
    ledgers = OpenedLedgers(cast(BookKeeper, bookkeeper), b"", cast(Any, None))
    rows = list(rows_of(ledgers, orders(store), pieces, SCHEMA))
    assert [row["position"] for batch in rows for row in batch.to_pylist()] == list(range(99))
    assert len(opened) == 1
    assert [piece.position for piece in pieces] == [150, 160]
    with pytest.raises(NoSuchLedgerError):
        list(rows_of(ledgers, orders(store), pieces, SCHEMA))
    assert [piece.position for piece in pieces] == [160]


def test_rows_beyond_the_recorded_end_are_not_read_from_the_table(store: MemoryStore, tmp_path: Path) -> None:
    assert read(store, 0, 1) is None, "the log was never offloaded"
    offloaded(store, tmp_path, 100)
    assert read(store, 99, 2) is None


def test_rows_truncated_before_their_offload_are_gone_and_no_fault_of_the_table(
    store: MemoryStore, tmp_path: Path
) -> None:
    """A task that was planned before the truncation said that the table lacks rows; now it says that the ledger is gone, as for
    other truncated rows."""
    LogRegistry(store).update("orders", lambda record: replace(record, first_position=100))
    registry = LogRegistry(store)
    registry.update("orders", lambda record: record.offload_begun(str(tmp_path / "table"), 100))
    registry.update("orders", lambda record: record.offload_done(str(tmp_path / "table"), 100, -1))
    ledgers = OpenedLedgers(cast(BookKeeper, MemoryBookKeeper(store)), b"", cast(Any, None))
    with pytest.raises(NoSuchLedgerError):
        list(rows_of(ledgers, orders(store), deque([Piece(7, 0, 0, 10)]), SCHEMA))


def test_table_rows_of_a_later_log_are_not_returned_for_a_ledger(store: MemoryStore, tmp_path: Path) -> None:
    offloaded(store, tmp_path, 100)
    with pytest.raises(ReadError, match="there are 0, which should be 3"):
        list(offloaded_rows(store, orders(store), Piece(6, 0, 10, 3), deque(), SCHEMA) or ())


def test_table_that_lacks_rows_or_is_gone_raises(store: MemoryStore, tmp_path: Path) -> None:
    table = offloaded(store, tmp_path, 100)
    registry = LogRegistry(store)
    registry.update("orders", lambda record: record.offload_begun(table, 101))
    registry.update("orders", lambda record: record.offload_done(table, 101, 2))
    with pytest.raises(ReadError, match=r"rows 98 to 100 of log 'orders' in .*: there are 2, which should be 3"):
        read(store, 98, 3)
    (tmp_path / "table").rename(tmp_path / "elsewhere")
    with pytest.raises(ReadError, match=r"there is no table at .*: was it moved or deleted"):
        read(store, 0, 1)
