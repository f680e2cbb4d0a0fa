"""Disks that fail under a bookie that serves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from bookspark import BookKeeper
from bookspark.bookie.bookie_config import bookie_config
from bookspark.daemon import launch
from bookspark.local import LocalBookie, LocalCluster
from tests.awaiting import await_that
from tests.cluster import failing_disk_daemon

AUTORECOVERY = {"check_interval_hours": 0.0, "poll_seconds": 0.5, "retry_seconds": 0.5}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies fail when they get SIGUSR1: the environment tells with which disks."""
    monkeypatch.setattr(launch, "DAEMON", failing_disk_daemon.__name__)


def fail(bookie: LocalBookie) -> None:
    assert bookie.pid is not None
    os.kill(bookie.pid, signal.SIGUSR1)


def held(bookkeeper: BookKeeper, bookie: LocalBookie, ledger_id: int) -> int:
    rows = bookkeeper.list_ranges(bookie.bookie_id, ledger_id).to_pylist()
    return sum(row["last_entry_id"] - row["first_entry_id"] + 1 for row in rows)


def test_one_of_two_disks_fails_and_its_entries_are_copied_again_without_a_restart(
    failing: None, new_chroot: Callable[[], str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = [str(tmp_path / name) for name in ("disk0", "disk1")]
    for directory in directories:
        os.mkdir(directory)
    monkeypatch.setenv(failing_disk_daemon.FAILING, directories[1])
    with LocalCluster(bookies=3, zookeeper=new_chroot(), autorecovery=AUTORECOVERY) as cluster:
        bookie = LocalBookie(bookie_config(directories=directories, zookeeper=cluster.zookeeper))
        bookie.start()
        cluster.bookies.append(bookie)
        bookkeeper = cluster.bookkeeper()
        ledgers = []
        for _ in range(8):
            with bookkeeper.create_ledger(3, 3, 2) as writer:
                writer.append_batch([b"entry %d" % i for i in range(50)])
            if bookie.bookie_id in writer.metadata.fragments[0].ensemble:
                ledgers.append(writer.ledger_id)
        assert {ledger_id % 2 for ledger_id in ledgers} == {0, 1}, "on both disks"
        with bookkeeper.create_ledger(3, 3, 2) as writer:
            await_that(lambda: all(held(bookkeeper, bookie, one) == 50 for one in ledgers))
            fail(bookie)
            for _ in range(20):
                writer.append(b"on and on")
            await_that(lambda: directories[1] in bookkeeper.bookie_status(bookie.bookie_id).failed_directories)
            await_that(lambda: all(held(bookkeeper, bookie, one) == 50 for one in ledgers))


def test_a_bookie_whose_last_disk_fails_ends_and_says_why(
    failing: None, new_chroot: Callable[[], str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failing_disk_daemon.FAILING, str(tmp_path))
    with LocalCluster(bookies=3, zookeeper=new_chroot(), directory=tmp_path) as cluster:
        bookkeeper, bookie = cluster.bookkeeper(), cluster.bookies[0]
        with bookkeeper.create_ledger(2, 2, 2) as writer:
            writer.append(b"before")
            fail(bookie)
            for _ in range(10):
                writer.append(b"after")
        await_that(lambda: bookie.pid is None)
        with open(f"{bookie.directories[0]}/bookie.log") as file:
            last = file.read().splitlines()[-1]
        assert last.startswith("bookspark bookie: no directory can be used any more") and "Input/output error" in last
