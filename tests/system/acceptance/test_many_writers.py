"""A log with all kinds of writers and readers, and kills of each kind except Spark: the short form of ``scripts/soak logs``.
``scripts/soak alterations`` kills the driver of a query beside other writers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.many_writers.run import SHORT, ManyWriters


@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_each_row_is_stored_once_in_lane_order_and_read_by_each_reader(tmp_path: Path) -> None:
    size = SHORT._replace(kills=("producer", "take-over", "tail", "bookie", "bookie suspended", "ZooKeeper"))
    counts = ManyWriters(tmp_path, size).run(1.0)
    assert counts["lanes"] == 4 and counts["kills: take-over"] > 0
    assert counts["rows"] == counts["rows that the tail read"] == counts["rows that a query copied"]
