"""An offload's table as tasks read it, without Spark: exactly the rows or an error, whatever happened to the table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from bookspark.errors import ReadError
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.spark.offload import table
from bookspark.spark.offload.offloading import _first_difference

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        *(StructField(name, LongType()) for name in ("position", "ledger_id", "entry_id")),
    ]
)
PIECE = Piece(7, 0, 0, 100)
_ID, _NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"
ROWS = [(b"value %d" % n, n, 7, n) for n in range(100)]


class Table:
    """A Delta table whose log and files are written by hand, as any program may write them."""

    def __init__(self, folder: Path, owner: str = "mine") -> None:
        self.place = str(folder / "table")
        table.create(self.place, owner, SCHEMA)
        self._log, self._version = folder / "table" / "_delta_log", 0

    def commit(self, **action: object) -> None:
        self._version += 1
        (self._log / f"{self._version:020d}.json").write_text(json.dumps(action) + "\n")

    def add(self, rows: Sequence[tuple[Any, ...]], names: Sequence[str] = SCHEMA.names) -> Path:
        """Add a file with these rows and with page checksums, which Spark writes too."""
        path = self._log.parent / f"part-{self._version}.parquet"
        longs = {name: [row[n] for row in rows] for n, name in enumerate(SCHEMA.names) if n}
        columns = [pyarrow.array(column) for column in zip(*rows, strict=True)]
        parquet.write_table(pyarrow.table(columns, names=list(names)), path, write_page_checksum=True)
        self.commit(
            add={
                "path": path.name,
                "partitionValues": {},
                "size": path.stat().st_size,
                "modificationTime": int(time.time() * 1000),
                "dataChange": True,
                "stats": json.dumps(
                    {
                        "numRecords": len(rows),
                        "minValues": {name: min(values) for name, values in longs.items()},
                        "maxValues": {name: max(values) for name, values in longs.items()},
                        "nullCount": dict.fromkeys(longs, 0),
                    }
                ),
            }
        )
        return path

    def metadata(self, columns: StructType = SCHEMA, **configuration: str) -> None:
        self.commit(
            metaData={
                "id": "1",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": columns.json(),
                "partitionColumns": [],
                "configuration": {table.OWNER: "mine", **configuration},
            }
        )

    def read(self, piece: Piece = PIECE) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in table.rows(self.place, "orders", [piece], SCHEMA).to_pylist()]


@pytest.fixture
def offloaded(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_created_table_names_its_owner_and_makes_delta_refuse_changes(offloaded: Table) -> None:
    from deltalake import DeltaTable

    made = DeltaTable(offloaded.place)
    assert made.metadata().configuration == {
        table.OWNER: "mine",
        "delta.appendOnly": "true",
        "delta.enableDeletionVectors": "false",
        "delta.columnMapping.mode": "none",
        "delta.checkpointPolicy": "classic",
    }
    assert (made.protocol().min_reader_version, made.protocol().min_writer_version) == (1, 2)
    table.create(offloaded.place, "another", SCHEMA)
    assert table.check(offloaded.place, "mine") == 0
    with pytest.raises(OffloadError, match="is that of another: mine"):
        table.check(offloaded.place, "another")
    offloaded.add(ROWS)
    assert offloaded.read() == ROWS
    with pytest.raises(OffloadError, match="has version 1, and had version 2"):
        table.check(offloaded.place, "mine", 2)


def test_folder_with_other_files_is_not_made_a_table(tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_bytes(b"of somebody")
    with pytest.raises(OffloadError, match="there are files at"):
        table.create(str(tmp_path), "mine", SCHEMA)
    assert [path.name for path in tmp_path.iterdir()] == ["part-0.parquet"]


@pytest.mark.parametrize("byte", range(0, 1500, 37))
def test_flipped_bit_of_a_file_never_changes_a_row(offloaded: Table, byte: int) -> None:
    """A flipped bit in a page came back as another value."""
    path = offloaded.add(ROWS)
    content = bytearray(path.read_bytes())
    assert len(content) > 1500
    content[byte * len(content) // 1500] ^= 1 << byte % 8
    path.write_bytes(content)
    with suppress(ReadError):
        assert offloaded.read() == ROWS


def test_truncated_empty_or_missing_file_raises_with_the_affected_rows(offloaded: Table) -> None:
    """The error was pyarrow's own."""
    path = offloaded.add(ROWS)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(ReadError, match=r"rows 0 to 99 of log 'orders' in .* can't be read"):
            offloaded.read()
    path.unlink()
    with pytest.raises(ReadError, match=r"rows 0 to 99 of log 'orders' in .* can't be read"):
        offloaded.read()


@pytest.mark.parametrize(
    "rows",
    [ROWS[:-1], [*ROWS, ROWS[5]], [*ROWS[:6], ROWS[5], *ROWS[7:]], [(b"v", n, 8, n) for n in range(100)]],
    ids=["one missing", "one twice", "one twice and one missing", "of another ledger"],
)
def test_missing_duplicate_or_foreign_rows_raise(offloaded: Table, rows: list[tuple[object, ...]]) -> None:
    """One row twice and another row missing gave the right number of rows."""
    offloaded.add(rows)
    with pytest.raises(ReadError, match=r"there are \d+, which should be 100, each once"):
        offloaded.read()


def test_renamed_column_is_not_read_as_null(offloaded: Table) -> None:
    """With column mapping the old protocol lists no features, and delta-rs read null for each value of the column."""
    offloaded.add(ROWS)
    mapped = [
        StructField(name, LongType() if number else BinaryType(), metadata={_ID: number + 1, _NAME: physical})
        for number, (name, physical) in enumerate(zip(SCHEMA.names, ["new", *SCHEMA.names[1:]], strict=True))
    ]
    offloaded.metadata(StructType(mapped), **{"delta.columnMapping.mode": "name"})
    offloaded.commit(protocol={"minReaderVersion": 2, "minWriterVersion": 5})
    with pytest.raises(ReadError, match=r"columns are mapped by name.*log_frame.*DROP FEATURE columnMapping"):
        offloaded.read()
    with pytest.raises(ReadError, match="log_frame"):
        table.check(offloaded.place, "mine")


def test_missing_column_or_column_of_another_type_raises(offloaded: Table) -> None:
    offloaded.add(ROWS)
    offloaded.metadata(StructType(SCHEMA.fields[1:]))
    with pytest.raises(ReadError, match=r"rows 0 to 99 of log 'orders' in .* can't be read"):
        offloaded.read()
    offloaded.metadata(StructType([StructField("value", LongType()), *SCHEMA.fields[1:]]))
    with pytest.raises(ReadError, match=r"rows 0 to 99 of log 'orders' in .* can't be read"):
        offloaded.read()


def test_sync_covers_the_files_of_the_rows_and_the_delta_log(offloaded: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers were deleted while their rows were only in the page cache."""
    other = offloaded.add([(b"v", 500, 7, 500)])
    path = offloaded.add(ROWS)
    synced: list[Path] = []
    original = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(Path(os.readlink(f"/proc/self/fd/{file}"))), original(file))[1]
    )
    table.sync(offloaded.place, 0, 100)
    log = path.parent / "_delta_log"
    assert {path, path.parent, path.parent.parent, log, *log.glob("*.json")} <= set(synced)
    assert other not in synced, "a table may have many files"


def test_first_difference_of_two_tables_is_located_and_nan_equals_nan() -> None:
    nan = pyarrow.table({"x": [1.0, float("nan"), 3.0]})
    assert _first_difference(nan, pyarrow.table({"x": [1.0, float("nan"), 3.0]})) is None
    assert _first_difference(nan, pyarrow.table({"x": [1.0, float("nan"), 4.0]})) == 2
    assert _first_difference(nan, nan.slice(0, 2)) == 2
    assert _first_difference(nan, pyarrow.table({"x": [1.0, None, 3.0]})) == 1
