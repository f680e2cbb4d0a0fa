"""``bookspark bench storage`` with next to nothing to do: every part prints what it measured."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_each_part_prints_its_cases(bookspark: Run, tmp_path: Path) -> None:
    outcome = bookspark("bench", "storage", "--scale", "0.001", "--directory", str(tmp_path))
    assert outcome.status == 0, outcome.err
    cases = [json.loads(line) for line in outcome.text.splitlines()]
    adds = [case for case in cases if case["part"] == "adds"]
    assert len({(case["payload_bytes"], case["batch"], case["synced"]) for case in adds}) == 18
    assert all(case["ratio"] > 0 and case["adds_per_second"] > 0 for case in adds)
    rewriting = [case for case in cases if case["part"] == "rewriting"]
    assert [case["payload"] for case in rewriting] == ["random", "text"]
    assert all(case["beside_p99_9_ms"] > 0 for case in rewriting)
    boot, long_ledger = (case for case in cases if case["part"] == "state")
    assert boot["ledgers"] == 1000 and boot["index_mb"] > 0
    assert long_ledger["entries"] == 10_000
    assert list(tmp_path.iterdir()) == []
