"""Processes on file systems that are read-only at their start."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookspark.local import LocalBookie, LocalCluster
from bookspark.store.bookie.bookie_config import bookie_config
from tests.awaiting import await_that

_SECONDS = 60.0


def mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True, capture_output=True)


def remounted(disk: Path, how: str) -> bool:
    """False while a process that ends has a file open for writing."""
    return subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=100m", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("directories", [1, 2])
def test_bookie_starts_on_a_read_only_disk_serves_and_goes_on_once_it_can_write(
    local_cluster: LocalCluster, tmp_path: Path, disk: Path, directories: int
) -> None:
    """The boot was lossy: all open ledgers of the bookie were fenced, and those with an ack quorum of 1 stayed in limbo for ever,
    with all their entries there. With one directory it did not start."""
    places = [str(disk / "a"), str(tmp_path / "b")][:directories]
    options = {"zookeeper": local_cluster.zookeeper, "lease_seconds": 30.0, "disk_check_interval_seconds": 0.2}
    bookie = LocalBookie(bookie_config(directories=places, labels={"read-only": "test"}, **options))
    bookie.start()
    try:
        with local_cluster.bookkeeper() as bookkeeper:
            ledgers = []
            while len(ledgers) < 4:
                ledger = bookkeeper.create_ledger(1, 1, 1)
                if ledger.metadata.fragments[0].ensemble == (bookie.bookie_id,):
                    ledgers.append(ledger.ledger_id)
                    for number in range(10):
                        ledger.append(b"%d" % number)
            bookie.stop()
            await_that(lambda: remounted(disk, "ro"), _SECONDS)
            bookie.start()
            status = bookkeeper.bookie_status(bookie.bookie_id)
            assert (status.lossy_boot, status.limbo_ledgers, status.failed_directories) == (0, 0, {})
            assert status.read_only is (directories == 1) and "is read-only" in status.reasons[0]
            for ledger_id in ledgers:
                reader = bookkeeper.open_ledger_no_recovery(ledger_id)
                assert [entry.payload for entry in reader.read_unconfirmed(0, 9)] == [b"%d" % n for n in range(10)]
            assert remounted(disk, "rw")
            await_that(lambda: not bookkeeper.bookie_status(bookie.bookie_id).reasons, _SECONDS)
            for ledger_id in ledgers:
                assert bookkeeper.open_ledger(ledger_id).last_add_confirmed == 9
            bookie.stop()
            bookie.start()
            assert bookkeeper.bookie_status(bookie.bookie_id).lossy_boot == 0
    finally:
        bookie.kill()
