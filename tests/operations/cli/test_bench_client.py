"""Workloads of ``bookspark bench peers client``. The measurement itself takes minutes, even with ``--quick``."""

from __future__ import annotations

from bookspark.lab.bench.peers.client_comparison import WIRES, workloads


def test_labels_of_workloads_are_unique() -> None:
    labels = [workload.split(" ")[0] for wire in WIRES for workload in workloads(wire, 1.0)]
    assert len(labels) == len(set(labels))


def test_small_scale_leaves_at_least_one_entry() -> None:
    for wire in WIRES:
        for workload in workloads(wire, 1e-9):
            assert "entries=1 " in workload and f"wire={wire}" in workload
