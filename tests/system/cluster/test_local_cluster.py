"""LocalCluster: the verbs of its bookies, and the end of its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookspark.errors import BookieError, ConfigurationError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.servers.daemon.processes import Process, wait_for_end

PAYLOADS = [b"entry %d" % i for i in range(20)]


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    """A cluster of this module's own: some verbs change a bookie's identity."""
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture
def bookie(cluster: LocalCluster) -> Iterator[LocalBookie]:
    bookie = cluster.bookies[0]
    yield bookie
    bookie.start()


def write_ledger(cluster: LocalCluster) -> int:
    with cluster.bookkeeper().create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as ledger:
        ledger.append_batch(PAYLOADS)
        return int(ledger.ledger_id)


def held_by(cluster: LocalCluster, bookie: LocalBookie, ledger_id: int) -> int:
    """The number of entries of the ledger that ``bookie`` itself lists."""
    ranges = cluster.bookkeeper().list_ranges(bookie.bookie_id).to_pylist()
    return sum(row["last_entry_id"] - row["first_entry_id"] + 1 for row in ranges if row["ledger_id"] == ledger_id)


def test_killed_bookie_restarts_with_its_identity_and_all_acknowledged_entries(
    cluster: LocalCluster, bookie: LocalBookie
) -> None:
    ledger_id = write_ledger(cluster)
    before = bookie.bookie_id, bookie.pid
    bookie.kill()
    assert bookie.pid is None
    bookie.start()
    assert bookie.bookie_id == before[0] and bookie.pid not in (None, before[1])
    assert held_by(cluster, bookie, ledger_id) == len(PAYLOADS)


def test_lose_unsynced_keeps_entries_acknowledged_after_sync(cluster: LocalCluster, bookie: LocalBookie) -> None:
    ledger_id = write_ledger(cluster)
    bookie.kill()
    bookie.lose_unsynced()
    bookie.start()
    assert held_by(cluster, bookie, ledger_id) == len(PAYLOADS)


def test_stop_removes_the_registration_and_start_restores_it(cluster: LocalCluster, bookie: LocalBookie) -> None:
    identity = bookie.bookie_id
    bookie.stop()
    assert bookie.pid is None
    assert identity not in cluster.bookkeeper().metadata.bookies()
    bookie.start()
    assert bookie.bookie_id == identity
    assert cluster.bookkeeper().metadata.bookies()[identity].address == bookie.address


def test_start_of_a_running_and_stop_of_a_stopped_bookie_do_nothing(bookie: LocalBookie) -> None:
    pid = bookie.pid
    bookie.start()
    assert bookie.pid == pid
    bookie.stop()
    bookie.stop()


def test_resumed_bookie_continues_in_the_same_process(cluster: LocalCluster, bookie: LocalBookie) -> None:
    pid = bookie.pid
    bookie.suspend()
    assert pid is not None
    process = Process.of(pid)
    assert process is not None and process.suspended
    bookie.resume()
    ledger_id = write_ledger(cluster)
    assert bookie.pid == pid
    assert held_by(cluster, bookie, ledger_id) == len(PAYLOADS)


def test_a_suspended_bookie_can_be_stopped(bookie: LocalBookie) -> None:
    bookie.suspend()
    bookie.stop()
    assert bookie.pid is None


def test_wiped_bookie_has_a_new_identity(cluster: LocalCluster) -> None:
    bookie = cluster.add_bookie()
    identity = bookie.bookie_id
    with pytest.raises(BookieError, match=r"kill\(\) or stop\(\) it"):
        bookie.wipe()
    bookie.stop()
    bookie.wipe()
    assert os.listdir(bookie.directories[0]) == []
    bookie.start()
    assert bookie.bookie_id != identity


def test_suspend_of_a_stopped_bookie_says_to_start_it_first(bookie: LocalBookie) -> None:
    bookie.kill()
    with pytest.raises(BookieError, match=r"start\(\) it first"):
        bookie.suspend()


def test_idle_bookie_takes_less_than_60_mb_of_memory(bookie: LocalBookie) -> None:
    rows = Path(f"/proc/{bookie.pid}/status").read_text().splitlines()
    kilobytes = next(int(row.split()[1]) for row in rows if row.startswith("VmRSS"))
    assert kilobytes < 60_000


def test_error_for_an_unknown_option_suggests_the_nearest_name() -> None:
    with pytest.raises(
        ConfigurationError, match="unknown LocalCluster option 'lease_second'; did you mean 'lease_seconds'"
    ):
        LocalCluster(lease_second=1)
    with pytest.raises(ConfigurationError, match="lease_seconds"):
        LocalCluster(lease_seconds="long")


@pytest.mark.acceptance
def test_cluster_restarted_in_its_directory_keeps_bookies_and_ledgers(tmp_path: Path) -> None:
    with LocalCluster(bookies=1, directory=tmp_path) as cluster:
        bookie = cluster.bookies[0]
        identity, pid = bookie.bookie_id, bookie.pid
        ledger = cluster.bookkeeper().create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        ledger.append_batch(PAYLOADS)
        ledger.close()
    assert pid is not None and Process.of(pid) is None
    with LocalCluster(bookies=1, directory=tmp_path) as cluster:
        assert cluster.bookies[0].bookie_id == identity
        reader = cluster.bookkeeper().open_ledger(ledger.ledger_id)
        assert [entry.payload for entry in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS


def test_local_cluster_leaves_an_external_zookeeper_running(chroot: str) -> None:
    with LocalCluster(bookies=1, zookeeper=chroot) as cluster:
        assert cluster.zookeeper == chroot
    with LocalCluster(bookies=1, zookeeper=chroot):
        pass


def test_failed_start_leaves_no_bookie_running(chroot: str) -> None:
    cluster = LocalCluster(bookies=2, zookeeper=chroot, host="192.0.2.77")
    with pytest.raises(BookieError, match=r"can't listen on 192\.0\.2\.77"):
        cluster.start()
    assert [bookie.pid for bookie in cluster.bookies] == [None, None]


@pytest.mark.acceptance
def test_bookies_of_a_killed_process_end_when_their_lease_expires(tmp_path: Path) -> None:
    program = (
        "import sys; from bookspark.local import LocalCluster\n"
        f"with LocalCluster(bookies=1, directory={str(tmp_path)!r}, lease_seconds=1) as cluster:\n"
        "    print(cluster.bookies[0].pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        bookie = Process.of(int(starter.stdout.readline()))
        assert bookie is not None
        starter.send_signal(signal.SIGKILL)
    assert wait_for_end(bookie, 60)
    assert "stopping: nobody has held its lease for 1 s" in (tmp_path / "bookie-0" / "bookie.log").read_text()
