"""Workloads and table of ``bookspark bench peers client``. The measurement itself takes minutes, even with ``--quick``."""

from __future__ import annotations

from bookspark.lab.bench.peers.client_comparison import TARGETS, WIRES, workloads
from bookspark.lab.bench.peers.ledger_targets import table


def test_each_wanted_label_is_measured() -> None:
    labels = [workload.split(" ")[0] for wire in WIRES for workload in workloads(wire, 1.0)]
    assert len(labels) == len(set(labels))
    wanted = {target.label for target in TARGETS}
    # The read workloads read the ledgers of the B2 workloads.
    assert wanted - set(labels) == {label.replace("B2", "B3") for label in labels if label.startswith("B2")}
    assert set(labels) <= wanted


def test_small_scale_leaves_at_least_one_entry() -> None:
    for wire in WIRES:
        for workload in workloads(wire, 1e-9):
            assert "entries=1 " in workload and f"wire={wire}" in workload


def test_table_compares_adds_reads_and_processor_time() -> None:
    lines = [
        {"label": "B2-1024-v3", "system": system, "adds_per_second": rate, "bookies_cpu_seconds": cpu, "entries": 1000}
        for system, rate, cpu in (("bookspark", 30.0, 0.06), ("bookkeeper", 50.0, 0.03))
    ]
    adds, cpu = table(lines, TARGETS).splitlines()[2:]
    assert "| 30 | 50 | 0.6 | ≥ 0.5 | met |" in adds
    assert "| 60 | 30 | 2 |" in cpu
    assert "| BookKeeper |" in table(lines, TARGETS) and "| the bookies of abc |" in table(
        lines, TARGETS, "the bookies of abc"
    )
