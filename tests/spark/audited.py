"""Helpers for tests of audits and snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from bookspark.spark import audit, snapshots


def bad(findings: Sequence[audit.Finding]) -> dict[str, list[dict[str, Any]]]:
    """Rows of failed findings, by audit."""
    return {f.name: [dict(zip(f.columns, row, strict=True)) for row in f.rows] for f in findings if f.good is False}


def only(rows: Sequence[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def write_label(rows: DataFrame, path: str, snapshot: str, oldest: str) -> None:
    """Write the label that makes a snapshot count, with ``rows`` as content."""
    label = f'{{"snapshot": "{snapshot}", "oldest": "{oldest}"}}'
    writer = rows.write.format("delta").mode("overwrite").option("userMetadata", label)
    writer.save(snapshots.location(path, snapshots.LAST))
