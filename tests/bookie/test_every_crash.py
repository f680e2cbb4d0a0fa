"""A crash before every operation on files: what was promised is kept, in every way in which the power can go.

Here each boot after a crash is crashed in one way at each of its operations; ``scripts/soak bookie-crashes`` tries them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.testing.power_cuts import LOSSES, drawn
from tests.bookie.crashes import CHANGES, Crashes, acked_before_the_sync, add_fence_confirm
from tests.bookie.kit import config
from tests.bookie.stepped import without_threads


@pytest.fixture(autouse=True)
def stepped(monkeypatch):
    monkeypatch.setattr("bookspark.bookie.disk.control_log._REWRITE_BYTES_MIN", 100)
    with without_threads():
        yield


def all_and_drawn(point, depth):
    """Every loss, and two that are drawn; while a boot is crashed, one of them in turn."""
    if depth == 0:
        return ((*LOSSES, drawn(point))[point % (len(LOSSES) + 1)],)
    return (*LOSSES, drawn(2 * point), drawn(2 * point + 1))


def test_a_crash_anywhere_loses_nothing_that_was_promised():
    crashes = Crashes(config(Path("/disk"), entry_log_bytes_max=3000), all_and_drawn, depth=1)
    crashes.run(add_fence_confirm)
    assert crashes.operations == CHANGES


def some(point, depth):
    """Three losses: two in turn, one drawn."""
    return (LOSSES[point % len(LOSSES)], LOSSES[(point + 3) % len(LOSSES)], drawn(point))


def test_a_crash_anywhere_with_two_disks_loses_nothing_that_was_promised():
    crashes = Crashes(config(Path("/disk0"), Path("/disk1"), entry_log_bytes_max=3000), some, depth=0)
    crashes.run(add_fence_confirm)
    assert crashes.points > 250


def test_a_crash_of_a_bookie_without_a_journal_is_told_by_the_marker_where_it_loses_something():
    settings = config(
        Path("/disk"),
        entry_log_bytes_max=3000,
        journal_write_data=False,
        background_sync_interval_ms=3_600_000,
        background_sync_bytes=2000,
    )
    crashes = Crashes(settings, all_and_drawn, depth=1)
    crashes.run(acked_before_the_sync)
    assert crashes.operations == CHANGES
