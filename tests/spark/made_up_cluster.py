"""System tables made up by tests, for audit queries."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from pyspark.sql import DataFrame, SparkSession

from bookspark.spark.audit import Finding, names
from bookspark.spark.audit.runner import run_over
from bookspark.spark.snapshots.snapshot import LISTED
from bookspark.spark.tables.system_tables import TABLES

A, B, C, D = "a", "b", "c", "d"


def log_id(log: str) -> int:
    """The id of the log, or of the lane's log."""
    return crc32(log.partition("@")[0].encode())


class Cluster:
    """Rows of system tables."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.last_ledger_id = -1
        for bookie in (A, B, C, D):
            self.rows["bookies"].append({"bookie_id": bookie, "state": "writable", "host": bookie, "rack": ""})

    def ledger(self, ledger_id: int, last: int, ensembles: dict[int, list[str]], **values: Any) -> None:
        """Add a ledger whose fragments start at the keys of ``ensembles``; closed at ``last`` unless ``values`` set
        another state."""
        first_ensemble = next(iter(ensembles.values()), [A, B, C])
        if "log" in values:
            values.setdefault("log_id", log_id(values["log"]))
        closed = values.setdefault("state", "CLOSED") == "CLOSED"
        defaults = {"write_quorum": len(first_ensemble), "ack_quorum": 2, "metadata_version": 1}
        self.rows["ledgers"].append(
            {
                "ledger_id": ledger_id,
                "ensemble_size": len(first_ensemble),
                "last_entry_id": last if closed else None,
                "last_add_confirmed": last,
                **defaults,
                **values,
            }
        )
        starts = [*ensembles, last + 1]
        for number, (first, ensemble) in enumerate(ensembles.items()):
            open_end = not closed and number == len(ensembles) - 1
            self.rows["fragments"].append(
                {
                    "ledger_id": ledger_id,
                    "metadata_version": 1,
                    "fragment": number,
                    "first_entry_id": first,
                    "last_entry_id": None if open_end else starts[number + 1] - 1,
                    "ensemble": ensemble,
                }
            )

    def holds(self, bookie: str, ledger_id: int, *ranges: tuple[int, int]) -> None:
        for first, last in ranges:
            self.rows["index_ranges"].append(
                {
                    "bookie_id": bookie,
                    "ledger_id": ledger_id,
                    "first_entry_id": first,
                    "last_entry_id": last,
                    "entry_log": 1,
                    "position": 10 * len(self.rows["index_ranges"]),
                    "bytes": 10,
                }
            )

    def checksums(
        self, bookie: str, ledger_id: int, *checksums: int | None, first: int = 0, unreadable: int = 0
    ) -> None:
        self.rows["entry_checksums"].append(
            {
                "bookie_id": bookie,
                "ledger_id": ledger_id,
                "first_entry_id": first,
                "checksums": list(checksums),
                "unreadable": unreadable,
            }
        )

    def disk(self, bookie: str, state: str = "writable", **values: Any) -> None:
        self.rows["disks"].append(
            {"bookie_id": bookie, "directory": f"/{bookie}", "state": state, "lacking_ledgers": 0, **values}
        )

    def tables(self, spark: SparkSession, *always: str) -> dict[str, DataFrame]:
        """The tables with rows, and those named by ``always``. Audits take missing tables as empty, so that Spark
        knows they are."""
        tables = {}
        for name, table in TABLES.items():
            rows = [tuple(row.get(column) for column in table.schema.names) for row in self.rows[name]]
            if rows or name in always:
                tables[name] = spark.createDataFrame(rows, table.schema)
        tables["listed"] = spark.createDataFrame([(self.last_ledger_id,)], LISTED)
        return tables

    def audit(self, spark: SparkSession, *queries: str) -> dict[str, Finding]:
        found = run_over(spark, self.tables(spark), queries or names())
        return {finding.name: finding for finding in found}


def select(finding: Finding, *columns: str) -> list[tuple[Any, ...]]:
    places = [finding.columns.index(column) for column in columns]
    return [tuple(row[place] for place in places) for row in finding.rows]
