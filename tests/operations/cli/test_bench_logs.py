"""``bookspark bench peers logs`` with few rows and without Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.lab.bench.peers import log_comparison
from bookspark.lab.bench.peers.log_comparison import ours


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
