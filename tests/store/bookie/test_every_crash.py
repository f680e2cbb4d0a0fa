"""Crashes before every file operation, with all kinds of power loss.

Here each crash is tried with two losses, and every fifth operation of the next boot is crashed with one loss; ``scripts/soak
bookie-crashes`` tries all losses at each operation of both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.testing.power_cuts import LOSSES, drawn
from tests.store.bookie.crashes import CHANGES, Crashes, acked_before_the_sync, add_fence_confirm
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import without_threads


@pytest.fixture(autouse=True)
def stepped(monkeypatch):
    monkeypatch.setattr("bookspark.store.bookie.disk.control_log._REWRITE_BYTES_MIN", 100)
    with without_threads():
        yield


def some(point, depth):
    """Two losses: one in turn, one drawn."""
    return (LOSSES[point % len(LOSSES)], drawn(point))


def some_and_in_the_boot(point, depth):
    """During a boot: one loss in turn at every fifth operation."""
    if depth == 0:
        return () if point % 5 else ((*LOSSES, drawn(point))[point // 5 % (len(LOSSES) + 1)],)
    return some(point, depth)


def test_crash_before_any_file_operation_keeps_all_promises():
    crashes = Crashes(config(Path("/disk"), entry_log_bytes_max=3000), some_and_in_the_boot, depth=1)
    crashes.run(add_fence_confirm)
    assert crashes.operations == CHANGES


def test_crash_with_two_disks_keeps_all_promises():
    crashes = Crashes(config(Path("/disk0"), Path("/disk1"), entry_log_bytes_max=3000), some, depth=0)
    crashes.run(add_fence_confirm)
    assert crashes.points > 250


def test_unclean_marker_reports_losses_of_a_crash_without_a_journal():
    settings = config(
        Path("/disk"),
        entry_log_bytes_max=3000,
        journal_write_data=False,
        background_sync_interval_ms=3_600_000,
        background_sync_bytes=2000,
    )
    crashes = Crashes(settings, some_and_in_the_boot, depth=1)
    crashes.run(acked_before_the_sync)
    assert crashes.operations == CHANGES
