"""``bookspark bench storage`` at a tiny scale: every part prints and keeps its measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookspark.lab.bench.page import STORAGE
from tests.operations.cli.conftest import Run


@pytest.mark.acceptance
def test_each_part_prints_its_cases(bookspark: Run, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    outcome = bookspark(
        "bench", "storage", "--scale", "0.001", "--directory", str(tmp_path / "disk"), "--cache", str(tmp_path)
    )
    assert outcome.status == 0, outcome.err
    cases = [json.loads(line) for line in outcome.text.splitlines()]
    adds = [case for case in cases if case["part"] == "adds"]
    assert len({(case["payload_bytes"], case["batch"], case["synced"]) for case in adds}) == 24
    assert all(case["ratio"] > 0 and case["adds_per_second"] > 0 for case in adds)
    rewriting = [case for case in cases if case["part"] == "rewriting"]
    assert [case["payload"] for case in rewriting] == ["random", "text"]
    assert all(case["beside_p99_9_ms"] > 0 for case in rewriting)
    boot, long_ledger = (case for case in cases if case["part"] == "state")
    assert boot["ledgers"] == 1000 and boot["index_mb"] > 0
    assert long_ledger["entries"] == 10_000
    replay = [case for case in cases if case["part"] == "replay"]
    assert [case["entries_a_frame"] for case in replay] == [1, 10]
    assert all(case["cpu_us_a_frame"] > 0 for case in replay)
    assert list((tmp_path / "disk").iterdir()) == []
    kept = json.loads((tmp_path / "history.jsonl").read_text())["figures"]
    assert {row.ours for row in STORAGE} <= kept.keys(), "what the page shows is kept"
    assert {name for row in STORAGE for name in row.beside} <= kept.keys()
