"""Snapshots like those of ``bookspark snapshot``, written without Spark; rows and schema are those of the system tables."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql.pandas.types import to_arrow_schema

from bookspark.spark.snapshots import ORDER
from bookspark.spark.tables.system_tables import TABLES
from bookspark.store.client import BookKeeper
from bookspark.support.snapshot_commits import Label, location

Tables = Mapping[str, Iterable[pyarrow.RecordBatch]]


def schema_of(table: str) -> pyarrow.Schema:
    return to_arrow_schema(TABLES[table].schema, timezone="UTC")


def batch(table: str, rows: Iterable[tuple]) -> pyarrow.RecordBatch:
    """Rows of a system table, each with a value for each column."""
    schema = schema_of(table)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pyarrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def take(bookkeeper: BookKeeper, path: Path, without: Iterable[str] = ("entry_checksums",), oldest: str = "") -> str:
    """Write a snapshot of a cluster; returns its id."""
    tables = {name: TABLES[name] for name in ORDER if name not in without}
    return write(
        path,
        {
            name: [one for argument in table.plan(bookkeeper) for one in table.read(bookkeeper, argument, b"")]
            for name, table in tables.items()
        },
        oldest=oldest,
        cluster=bookkeeper.zookeeper,
    )


def write(path: Path, tables: Tables, *, oldest: str = "", cluster: str = "") -> str:
    """Write a snapshot of these tables, each a list of batches; returns its id."""
    snapshot_id, now = str(uuid.uuid4()), datetime.now(UTC)
    label = Label(snapshot_id, oldest or snapshot_id, 0, cluster).encode()
    for name in ORDER:
        if name not in tables:
            continue
        write_deltalake(
            location(str(path), name),
            _stamped(pyarrow.Table.from_batches(list(tables[name]), schema_of(name)), snapshot_id, now),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=CommitProperties(custom_metadata={"userMetadata": label}),
        )
    return snapshot_id


def write_many(
    path: Path, files: Mapping[str, Iterable[pyarrow.RecordBatch]], *, oldest: str = "", cluster: str = ""
) -> str:
    """Like ``write``, but each batch becomes a file of its own with statistics, as Spark's tasks write them."""
    snapshot_id, now = str(uuid.uuid4()), datetime.now(UTC)
    label = Label(snapshot_id, oldest or snapshot_id, 0, cluster).encode()
    for name in ORDER:
        if name not in files:
            continue
        place, schema = (
            Path(location(str(path), name)),
            _stamped(pyarrow.Table.from_batches([], schema_of(name)), "", now).schema,
        )
        place.mkdir(parents=True, exist_ok=True)
        table = DeltaTable.create(str(place), schema, mode="ignore")
        added = [_file(place, _stamped(pyarrow.Table.from_batches([one]), snapshot_id, now)) for one in files[name]]
        table.create_write_transaction(
            added, "overwrite", schema, commit_properties=CommitProperties(custom_metadata={"userMetadata": label})
        )
    return snapshot_id


def _stamped(rows: pyarrow.Table, snapshot_id: str, now: datetime) -> pyarrow.Table:
    moment = pyarrow.scalar(now, pyarrow.timestamp("us", "UTC"))
    return rows.append_column("snapshot_id", pyarrow.repeat(snapshot_id, len(rows))).append_column(
        "snapshot_time", pyarrow.repeat(moment, len(rows))
    )


def _file(place: Path, rows: pyarrow.Table) -> AddAction:
    import pyarrow.compute as pc

    name = f"part-{uuid.uuid4()}.snappy.parquet"
    pyarrow.parquet.write_table(rows, place / name, row_group_size=1 << 30)
    least, most = {}, {}
    for column in set(rows.schema.names) & {"ledger_id", "bookie_id", "log", "state"}:
        bounds = pc.min_max(rows[column]).as_py()
        least[column], most[column] = bounds["min"], bounds["max"]
    stats = {"numRecords": len(rows), "minValues": least, "maxValues": most, "nullCount": {}}
    return AddAction(name, (place / name).stat().st_size, {}, 0, True, json.dumps(stats))
