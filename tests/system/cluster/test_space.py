"""Disk space of real bookies: reclaimed space and the read-only state."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from tests.awaiting import SECONDS_MAX, await_that


def log_bytes(bookie) -> int:
    total = 0
    for path in Path(bookie.directories[0], "logs").glob("*.arrow*"):
        with contextlib.suppress(FileNotFoundError):  # it may vanish at any moment
            total += path.stat().st_size
    return total


@pytest.fixture(scope="module")
def small(new_chroot):
    """A bookie with room for 4 MB."""
    with LocalCluster(
        bookies=1,
        entry_log_bytes_max=256 << 10,
        directory_bytes_max=4 << 20,
        disk_check_interval_seconds=0.1,
        gc_wait_time_seconds=0.2,
        checkpoint_interval_seconds=0.5,
        zookeeper=new_chroot(),
    ) as cluster:
        yield cluster


def create(bookkeeper):
    return bookkeeper.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)


def append_until_refused(ledger) -> None:
    while True:
        ledger.append_batch([os.urandom(16_000) for _ in range(10)])  # incompressible


def test_full_bookie_is_writable_again_after_a_ledger_is_deleted(small):
    [bookie] = small.bookies
    bookkeeper = small.bookkeeper(answer_timeout_seconds=60.0)
    store = bookkeeper.metadata
    kept = create(bookkeeper)
    kept.append_batch([b"kept %d" % i for i in range(1000)])
    kept.close()

    filling = create(bookkeeper)
    with pytest.raises(errors.NotEnoughBookiesError):  # perhaps before ZooKeeper knows that the bookie is read-only
        append_until_refused(filling)
    await_that(lambda: store.bookies()[bookie.bookie_id].read_only)
    with pytest.raises(errors.NotEnoughBookiesError, match="read-only"):
        create(bookkeeper)
    assert len(list(bookkeeper.open_ledger(kept.ledger_id).read())) == 1000, "it is read all the same"

    bookkeeper.delete_ledger(filling.ledger_id)
    await_that(lambda: not store.bookies()[bookie.bookie_id].read_only)
    await_that(lambda: log_bytes(bookie) < 1 << 20)
    again = create(bookkeeper)
    assert again.append(b"there is room again") == 0
    again.close()

    bookie.kill()
    bookie.start()
    assert [entry.payload for entry in bookkeeper.open_ledger(kept.ledger_id).read()] == [
        b"kept %d" % i for i in range(1000)
    ]
    assert [entry.payload for entry in bookkeeper.open_ledger(again.ledger_id).read()] == [b"there is room again"]


def test_killed_bookie_leaves_no_rewriting_process(small):
    [bookie] = small.bookies
    children = Path(f"/proc/{bookie.pid}/task/{bookie.pid}/children").read_text().split()
    assert len(children) == 1
    bookie.kill()
    await_that(
        lambda: not Path(f"/proc/{children[0]}").exists() or "Z" in Path(f"/proc/{children[0]}/stat").read_text()
    )
    bookie.start()


def test_moved_copies_leave_full_bookies_which_then_take_entries_again(new_chroot):
    """Three full bookies and three empty ones: there was nothing to be done, and moved copies stayed on the donors for ever."""
    room = {"entry_log_bytes_max": 256 << 10, "directory_bytes_max": 4 << 20, "disk_check_interval_seconds": 0.1}
    with LocalCluster(bookies=3, zookeeper=new_chroot(), **room) as cluster:
        bookkeeper = cluster.bookkeeper(answer_timeout_seconds=60.0)
        store, written = bookkeeper.metadata, {}
        with contextlib.suppress(errors.BookKeeperError):
            while True:
                ledger = bookkeeper.create_ledger(3, 3, 3)  # all three fill up alike
                payload = os.urandom(400_000)
                ledger.append(payload)
                ledger.close()
                written[ledger.ledger_id] = payload
        full = [one.bookie_id for one in cluster.bookies]
        await_that(lambda: all(store.bookies()[name].read_only for name in full))
        for _ in full:
            cluster.add_bookie()
        applied = ["cluster", "apply", "--balance", "--yes", "--zookeeper", cluster.zookeeper]
        subprocess.run([sys.executable, "-m", "bookspark", *applied], check=True, timeout=SECONDS_MAX)
        for name in full:
            bookkeeper.collect_now(name)
        await_that(lambda: not any(one.read_only for one in store.bookies().values()))
        assert all(log_bytes(one) < 3 << 20 for one in cluster.bookies)
        for ledger_id, payload in written.items():
            with bookkeeper.open_ledger(ledger_id) as reader:
                assert [entry.payload for entry in reader.read()] == [payload]
