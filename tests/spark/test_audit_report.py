"""The page about a snapshot without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from bookspark.spark.audit import Finding
from bookspark.spark.audit.report import page
from bookspark.spark.snapshots import Snapshot


def test_the_page_of_a_cluster_without_confirmed_entries() -> None:
    histogram = Finding("replication_factor_histogram", "Copies", "how many", ("replication_factor", "entries"), (), 0)
    text = page([histogram], [], Snapshot("s0", 0, datetime(2026, 1, 1, tzinfo=UTC)))
    assert '<h2>Copies</h2><p class="good">None.</p>' in text
