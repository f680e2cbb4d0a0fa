"""Disks that fail under a serving bookie. (``scripts/soak rot`` has one of two disks fail.)"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bookspark.errors import NotEnoughBookiesError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.servers.daemon import launch
from tests.awaiting import await_that
from tests.system.cluster import failing_disk_daemon


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies whose disks fail at SIGUSR1; the environment names the disks."""
    monkeypatch.setattr(launch, "DAEMON", failing_disk_daemon.__name__)


def fail(bookie: LocalBookie) -> None:
    assert bookie.pid is not None
    os.kill(bookie.pid, signal.SIGUSR1)
    log = Path(bookie.directories[0], "bookie.log")
    await_that(lambda: failing_disk_daemon.FAILS in log.read_bytes())


def test_bookie_whose_last_disk_fails_ends_and_logs_the_reason(
    failing: None, new_chroot: Callable[[], str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failing_disk_daemon.FAILING, str(tmp_path))
    with LocalCluster(bookies=1, zookeeper=new_chroot(), directory=tmp_path) as cluster:
        bookie = cluster.bookies[0]
        writer = cluster.bookkeeper().create_ledger(1, 1, 1)
        writer.append(b"before")
        fail(bookie)
        with pytest.raises(NotEnoughBookiesError):
            writer.append(b"after")
        await_that(lambda: bookie.pid is None)
        bookie.kill()  # closes its lease
        with open(f"{bookie.directories[0]}/bookie.log") as file:
            last = file.read().splitlines()[-1]
        assert last.startswith("bookspark bookie: no directory can be used any more") and "Input/output error" in last
