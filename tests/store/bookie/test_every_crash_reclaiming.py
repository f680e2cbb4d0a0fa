"""Crashes before every file operation while space is reclaimed: no living entry is lost, and no file is left over."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.testing.power_cuts import LOSSES, drawn
from tests.store.bookie.crashes import CHANGES, Crashes
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Stepped, without_threads


@pytest.fixture(autouse=True)
def stepped():
    with without_threads():
        yield


def rewrite_collect_and_compact(run: Stepped) -> None:
    """Rewrite logs with and without an earlier checkpoint, delete ledgers, compact and remove rewritten logs."""
    for entry_id in range(6):
        run.add(5, entry_id, payload=b"text and text " * 20, last_add_confirmed=entry_id - 1)
        run.add(6, 2 * entry_id, 2 * entry_id + 1)
    run.fence(6)
    run.commit()
    run.seal()
    run.reclaim()
    run.add(5, 6, 8)
    run.add(700, 0, 2)
    run.commit()
    run.checkpoint()
    run.seal()
    run.add(700, 3)
    run.commit()
    run.delete(6)
    run.reclaim(0.9)
    run.restart()
    run.add(700, 4)
    run.commit()
    run.delete(5)
    run.reclaim(0.5, entry_logs=False)
    run.add(8, 0)
    run.commit()


def some(point, depth):
    return (LOSSES[point % len(LOSSES)], LOSSES[(point + 3) % len(LOSSES)], drawn(point))


def test_crash_while_reclaiming_space_loses_no_living_entry():
    crashes = Crashes(config(Path("/disk"), entry_log_bytes_max=3000), some, depth=0)
    crashes.run(rewrite_collect_and_compact)
    assert crashes.operations == CHANGES
    assert crashes.boots > 100


def test_crash_while_reclaiming_two_disks_loses_no_living_entry():
    crashes = Crashes(config(Path("/disk0"), Path("/disk1"), entry_log_bytes_max=3000), some, depth=0)
    crashes.run(rewrite_collect_and_compact)
    assert crashes.boots > 200
