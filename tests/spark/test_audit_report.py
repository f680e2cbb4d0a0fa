"""The page about a snapshot without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from bookspark.spark.audit import Finding
from bookspark.spark.audit.report import Point, page
from bookspark.spark.snapshots import Snapshot


def test_the_page_of_a_cluster_without_confirmed_entries() -> None:
    histogram = Finding("replication_factor_histogram", "Copies", "how many", ("replication_factor", "entries"), (), 0)
    text = page([histogram], [], Snapshot("s0", 0, datetime(2026, 1, 1, tzinfo=UTC)))
    assert '<h2>Copies</h2><p class="good">None.</p>' in text


def test_an_axis_names_no_number_twice() -> None:
    """It had 0, 1, 1, 2, 2 for halves."""
    points = [Point(Snapshot(f"s{n}", n, datetime(2026, 1, 1, tzinfo=UTC)), 1000, 0, 2_600_000 * n) for n in (0, 1)]
    *_, plot = page([], points, points[1].snapshot).split("<figure>")
    labels = re.findall(r"<text[^>]*>([\d.,]+)</text>", plot)
    of_bytes = labels[2:]  # behind the snapshots' versions
    assert "0.5" in of_bytes
    assert len(of_bytes) == len(set(of_bytes))
