"""``bookspark bench peers logs`` with few rows and without Kafka, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.lab.bench.peers import log_comparison
from bookspark.lab.bench.peers.log_comparison import ours, table


@pytest.mark.acceptance
def test_each_case_gives_a_line_for_each_system_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_comparison, "_COMMITS", 100)
    lines = list(ours(tmp_path / "cluster", 0.001, 0))
    assert [(line["case"], line["system"]) for line in lines] == [
        *((case, system) for case in ("single", "batch", "one") for system in ("ledger", "producer")),
        ("tail", "producer"),
        ("time", "producer"),
    ]
    assert all(line["rows_per_second"] > 0 for line in lines[:4])
    assert all(0 < line["p50_ms"] <= line["p99_ms"] for line in lines[4:6])
    assert len(table(lines).splitlines()) == 2 + len(log_comparison.LIMITS)


def test_table_compares_medians_with_the_targets() -> None:
    lines = [
        *(
            {"system": "producer", "case": "single", "rows_per_second": rate, "cpu_us": 4.0}
            for rate in (1.0, 90.0, 95.0)
        ),
        {"system": "ledger", "case": "single", "rows_per_second": 100.0, "cpu_us": 3.0},
        {"system": "kafka", "case": "single", "rows_per_second": 2000.0, "cpu_us": 8.0},
        {"system": "producer", "case": "one", "p50_ms": 2.0, "p99_ms": 9.0},
        {"system": "ledger", "case": "one", "p50_ms": 1.0, "p99_ms": 9.0},
        {"system": "producer", "case": "time", "p50_ms": 5.5, "p99_ms": 5.0, "cpu_ms": 2.0},
    ]
    _, _, *rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table(lines).splitlines()]
    assert rows == [
        ["single rows, rows/s", "90", "100", "0.90", "2,000", "ratio ≥ 0.8", "met"],
        ["… µs of processor time a row", "4", "3", "0.75", "8", "", ""],
        ["one row at a time, p50 ms", "2", "1", "0.50", "", "ratio ≥ 0.8", "missed"],
        ["… p99 ms", "9", "9", "1.00", "", "", ""],
        ["a time in 10⁷ rows of 12,000 commits, p50 ms", "5.5", "", "", "", "≤ 5", "missed"],
        ["… p99 ms", "5", "", "", "", "≤ 5", "met"],
        ["… ms of the client's processor time", "2", "", "", "", "", ""],
    ]
