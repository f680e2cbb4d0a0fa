"""``bookspark bench ledger`` with hardly any entries, and the table that ``bookspark bench peers ledger`` makes of such lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bookspark.bench.ledger.cases import WORKLOADS, Kind, Turn, Workload
from bookspark.bench.peers.ledger_targets import table


def test_each_workload_prints_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bookspark", "bench", "ledger", "--scale", "0.0005"]
    done = subprocess.run(
        [*command, "--turn", "synced", "--turn", "durability", "--turn", "disk", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    asked = [w for turn in (Turn.SYNCED, Turn.DURABILITY, Turn.DISK) for w in WORKLOADS[turn]]
    assert [line["label"] for line in lines if line.get("api") != "read"] == [workload.label for workload in asked]
    for line in lines:
        assert line["system"] == "bookspark"
        assert all(value > 0 for name, value in line.items() if name.endswith(("_per_second", "_ms", "_per_byte")))
    assert list(tmp_path.iterdir()) == []


def test_labels_tell_workloads_apart() -> None:
    labels = [workload.label for workloads in WORKLOADS.values() for workload in workloads]
    assert len(labels) == len(set(labels))
    assert not any(" " in label for label in labels)


def test_a_small_scale_leaves_a_whole_batch_and_the_length_of_recovered_ledgers() -> None:
    assert Workload("b", Kind.BATCH, entries=5000, batch=1000).scaled(0.001).entries == 1000
    assert Workload("r", Kind.RECOVER, entries=2000, ledgers=9).scaled(0.001) == Workload(
        "r", Kind.RECOVER, entries=2000
    )


def test_the_table_compares_medians_with_the_targets() -> None:
    lines = [
        {"label": "L1", "system": "bookspark", "p50_ms": 0.2, "p99_ms": 2.0},
        *({"label": "L1", "system": "bookkeeper", "p50_ms": p50, "p99_ms": 4.0} for p50 in (1.0, 2.0, 9.0)),
        {"label": "L9", "system": "bookspark", "written_per_byte": 1.07},
        {"label": "L9", "system": "bookkeeper", "written_per_byte": 2.5},
    ]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table(lines).splitlines()[2:]]
    assert [(row[0], row[4], row[6]) for row in rows] == [
        ("L1", "0.1", "met"),
        ("L1", "0.5", "missed"),
        ("L9", "0.428", "met"),
    ]


def test_what_guaranteed_replication_costs_is_seen_beside_our_own_best_effort() -> None:
    lines = [
        {"label": "L12-pd", "system": "bookspark", "adds_per_second": 100.0, "p99_ms": 1.0},
        {"label": "L12-pd-guaranteed", "system": "bookspark", "adds_per_second": 89.0, "p99_ms": 1.0},
        {"label": "L12-pd", "system": "bookkeeper", "adds_per_second": 10.0, "p99_ms": 5.0},
    ]
    adds, p99, guaranteed, _ = table(lines).splitlines()[2:]
    assert "| 10 |" in adds and "| 0.2 |" in p99
    assert "100 (own, best effort) | 0.89 | ≥ 0.9 | missed" in guaranteed


def test_a_row_tells_the_numbers_of_the_run_and_not_of_a_full_one() -> None:
    line = {"label": "L11", "entries": 5000, "idle_bytes": 1e6, "resident_bytes": 2e6}
    (_, row) = table([line | {"system": "bookspark"}, line | {"system": "bookkeeper"}]).splitlines()[2:]
    assert "that took 5,000 entries" in row


def test_batches_are_compared_with_the_best_that_the_peer_does() -> None:
    lines = [
        {"label": "L3-100x100", "system": "bookspark", "adds_per_second": 100.0},
        {"label": "L2-100", "system": "bookkeeper", "adds_per_second": 4.0},
        {"label": "L2-100-deep", "system": "bookkeeper", "adds_per_second": 10.0},
    ]
    (row,) = table(lines).splitlines()[2:]
    assert "| 10 |" in row and row.endswith("| missed |")
