"""The screen of ``bookspark top``."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from bookspark.local import LocalCluster
from bookspark.operations.why.picture import BookieLine, bookie_lines, moving
from bookspark.store.metadata.bookie_homes import BookieHome
from bookspark.store.wire.messages import HealingStatus
from tests.awaiting import SECONDS_MAX
from tests.operations.cli.conftest import Run, bookspark  # noqa: F401
from tests.operations.why.kit import autorecovery, facts, status


def test_each_bookie_has_a_line_even_if_it_does_not_answer():
    seen = facts(
        {"a": {"registered": False}},
        statuses={"c": status("c", read_only=True, log_bytes=2_000_000, free_bytes=3_000_000_000, ledgers=12)},
        homes={"a": BookieHome("host-9", ())},
        bookie_problems={"b": "does not answer"},
    )
    assert list(bookie_lines(seen)) == [
        BookieLine("a", "down", "host-9", None, "", "", ""),
        BookieLine("b", "silent", "host-b", None, "", "", ""),
        BookieLine("c", "read-only", "host-c", 12, "2.0 MB", "", "3.0 GB"),
    ]


def test_bookie_with_ledgers_in_limbo_heals():
    assert [one.state for one in bookie_lines(facts(statuses={"b": status("b", limbo_ledgers=1)}))] == [
        "writable",
        "healing",
        "writable",
    ]


@pytest.mark.parametrize(
    ("log_bytes", "incarnation", "written"),
    [(5_000_001, 1, "2.5 MB/s"), (0, 1, "0 B/s"), (5_000_001, 2, "")],
    ids=["it wrote", "its logs shrank", "it was started again"],
)
def test_write_rate_is_computed_from_the_previous_look(log_bytes, incarnation, written):
    before = facts()
    after = facts(statuses={"a": status("a", log_bytes=log_bytes, incarnation=incarnation)})
    line = next(bookie_lines(replace(after, at_ms=before.at_ms + 2000), before))
    assert line.written == written


def test_moving_describes_repairs_and_healing_under_way():
    assert moving(facts()) == ""
    healing = HealingStatus(ledgers=10, ledgers_left=5, entries_copied=1, bytes_copied=1, seconds=60.0)
    told = moving(
        facts(
            statuses={"b": status("b", limbo_ledgers=5, healing=healing)},
            autorecovery=autorecovery(ledgers=3, being_repaired=2, bytes_left=5_000_000, seconds_left=None),
        )
    )
    assert told == (
        "3 ledgers lack copies, 2 are being repaired: 5.0 MB, an unknown time left; b heals: 5 ledgers, 0:01:00 left"
    )


@pytest.mark.acceptance
def test_top_shows_a_cluster_once_and_live(new_chroot, bookspark: Run):  # noqa: F811
    with LocalCluster(bookies=2, autorecovery=True, zookeeper=new_chroot()) as cluster:
        names = sorted(one.bookie_id for one in cluster.bookies)
        once = bookspark("top", "--once", "--zookeeper", cluster.zookeeper)
        assert "2 of 2 bookies are up" in once.text and all(name in once.text for name in names)
        live(cluster.zookeeper, [name.encode() for name in names])
        cluster.bookies[0].stop()
        once = bookspark("top", "--zookeeper", cluster.zookeeper)
        assert once.status == 1 and "1 of 2 bookies are up" in once.text and "next: bookspark" in once.text
        assert "down" in once.text


def live(zookeeper, wanted):
    """Watch until every wanted name and a write rate appear, then end ``top`` with SIGINT."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "bookspark", "top", "--zookeeper", zookeeper, "--interval", "0.2"]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    shown, deadline = b"", time.monotonic() + SECONDS_MAX
    try:
        while not all(name in shown for name in wanted) or b"/s" not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 1.0)[0]:
                shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65536)
                except OSError:
                    break
        assert process.wait(SECONDS_MAX) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
