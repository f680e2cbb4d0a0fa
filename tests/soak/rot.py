"""Rot at scale: on five bookies one byte of one copy of each of 200 ledgers changes, and no client or operator acts.

Within a scrub period (and the time of copying) each copy is whole again, by a read from each bookie. One of the ledgers
loses its other copies too: exactly those entries are lost, and everything else is repaired. Then one of two disks of a
bookie fails while it serves: its entries are copied again without a restart, and the writers see no error. ROUNDS: entries
of a ledger.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec

from bookspark import BookKeeper, LedgerMetadata
from bookspark.errors import BookKeeperError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.store.bookie.disk.entry_log import LOGS
from bookspark.store.client.inspection.copies import Unreadable, copies_on
from bookspark.store.wire.entry_batch import EntryBatch
from tests.awaiting import await_that
from tests.soak._command import main
from tests.system.cluster import failing_disk_daemon

log = logging.getLogger(__name__)

LEDGERS = 200
PERIOD_SECONDS = 60.0
_BATCH_ENTRIES = 25
_SLACK_SECONDS = 600.0
_BOOKIES = {"scrub_interval_hours": PERIOD_SECONDS / 3600, "gc_wait_time_seconds": 86_400.0}
_AUTORECOVERY = {"check_interval_hours": 0.0, "retry_seconds": 2.0, "retry_seconds_max": 10.0, "poll_seconds": 1.0}


def payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d " % (ledger_id, entry_id) * 8


def rot(cluster: LocalCluster, entries: int, random: Random) -> Mapping[str, object]:
    """Damage bytes and wait until all copies are whole. Returns figures; raises AssertionError."""
    client = cluster.bookkeeper()
    written = [_write(client, entries) for _ in range(LEDGERS)]
    batches = [_rot_one(cluster, client, ledger, random) for ledger in written]
    lost_ledger, lost_batch = written[0], batches[0]
    for bookie in lost_ledger.fragments[0].ensemble:
        # Each bookie may have cut the ledger into different batches.
        for row in _rows(client, bookie, lost_ledger.ledger_id):
            if row["first_entry_id"] <= lost_batch[0] <= row["last_entry_id"]:
                _change_a_byte(cluster, bookie, row, random)
    begun = time.monotonic()

    def found() -> bool:
        statuses = [client.bookie_status(bookie.bookie_id) for bookie in cluster.bookies]
        return sum(status.lost_copies for status in statuses) >= LEDGERS + 2

    # Only the bookies' lists are read: reading entries would find the damage that the scrub has to find.
    whole: set[int] = set()

    def all_is_whole() -> bool:
        whole.update(
            ledger.ledger_id
            for ledger in written[1:]
            if ledger.ledger_id not in whole and _listed_whole(client, ledger, entries)
        )
        return len(whole) == len(written) - 1

    found_after = _after(found, begun)
    whole_after = _after(all_is_whole, begun)
    for ledger in written[1:]:
        for bookie in ledger.fragments[0].ensemble:
            assert _read(client, ledger, bookie, entries) == set(range(entries)), f"{ledger.ledger_id} on {bookie}"
    left = [_read(client, lost_ledger, bookie, entries) for bookie in lost_ledger.fragments[0].ensemble]
    lost = set(range(entries)) - set().union(*left)
    assert lost and lost_batch[0] in lost, lost
    assert all(len(one) == entries - len(lost) for one in left), "everything else is repaired"
    return {
        "ledgers": LEDGERS,
        "entries": LEDGERS * entries,
        "scrub period in seconds": PERIOD_SECONDS,
        "found after seconds": found_after,
        "whole after seconds": whole_after,
        "entries lost with all their copies": len(lost),
        "tasks left": client.metadata.underreplication.list_tasks() == [lost_ledger.ledger_id],
    }


def dying_disk(cluster: LocalCluster, entries: int) -> Mapping[str, object]:
    """Let one of two disks of a bookie fail. Returns figures; raises AssertionError."""
    client = cluster.bookkeeper()
    with _failing_bookie(cluster, client) as (bookie_id, fail):
        written = [_write(client, entries) for _ in range(30)]
        named = [ledger for ledger in written if bookie_id in ledger.fragments[0].ensemble]
        errors: list[BaseException] = []
        appended = [0]
        stopping = threading.Event()

        def append() -> None:
            try:
                with client.create_ledger(3, 3, 2) as writer:
                    while not stopping.is_set():
                        writer.append(b"x" * 100)
                        appended[0] += 1
            except BookKeeperError as error:
                errors.append(error)

        writers = [threading.Thread(target=append) for _ in range(8)]
        for writer in writers:
            writer.start()
        await_that(lambda: appended[0] > 100, 60.0)
        fail()
        begun = time.monotonic()
        retired = _after(lambda: len(client.bookie_status(bookie_id).failed_directories) == 1, begun)
        again = _after(lambda: all(_listed_whole(client, ledger, entries) for ledger in named), begun)
        stopping.set()
        for writer in writers:
            writer.join(60.0)
        assert not errors, errors
        for ledger in named:
            for bookie in client.metadata.read_ledger(ledger.ledger_id).value.fragments[0].ensemble:
                assert _read(client, ledger, bookie, entries) == set(range(entries)), f"{ledger.ledger_id} on {bookie}"
        return {
            "dead disk: told after seconds": retired,
            "dead disk: whole after seconds": again,
            "dead disk: ledgers": len(named),
            "dead disk: appended meanwhile": appended[0],
        }


def _after(happened: Callable[[], bool], begun: float) -> float:
    """Wait for the condition; returns the seconds since ``begun``."""
    await_that(happened, PERIOD_SECONDS + _SLACK_SECONDS)
    return round(time.monotonic() - begun, 1)


def _write(client: BookKeeper, entries: int) -> LedgerMetadata:
    with client.create_ledger(3, 3, 2) as writer:
        ledger_id: int = writer.ledger_id
        for first in range(0, entries, _BATCH_ENTRIES):
            writer.append_batch([payload(ledger_id, first + i) for i in range(min(_BATCH_ENTRIES, entries - first))])
    # The slowest copy may come after the close.
    metadata = client.metadata.read_ledger(ledger_id).value
    await_that(lambda: _listed_whole(client, metadata, entries), 60.0)
    return metadata


def _rows(client: BookKeeper, bookie: str, ledger_id: int) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = client.list_ranges(bookie, ledger_id).to_pylist()
    return rows


def _listed_whole(client: BookKeeper, ledger: LedgerMetadata, entries: int) -> bool:
    current = client.metadata.read_ledger(ledger.ledger_id).value
    for bookie in current.fragments[0].ensemble:
        rows = _rows(client, bookie, ledger.ledger_id)
        if sum(row["last_entry_id"] - row["first_entry_id"] + 1 for row in rows) < entries:
            return False
    return True


def _rot_one(cluster: LocalCluster, client: BookKeeper, ledger: LedgerMetadata, random: Random) -> tuple[int, int]:
    """Change a byte of one copy; returns the entries of its batch."""
    bookie = random.choice(ledger.fragments[0].ensemble)
    row = random.choice(_rows(client, bookie, ledger.ledger_id))
    _change_a_byte(cluster, bookie, row, random)
    return row["first_entry_id"], row["last_entry_id"]


def _change_a_byte(cluster: LocalCluster, bookie_id: str, row: Mapping[str, int], random: Random) -> None:
    bookie: LocalBookie = next(one for one in cluster.bookies if one.bookie_id == bookie_id)
    paths = (f"{directory}/{LOGS}/{row['log']:08x}.arrows" for directory in bookie.directories)
    with open(next(filter(os.path.exists, paths)), "r+b") as file:
        at = row["position"] + random.randrange(row["bytes"])
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ random.randrange(1, 256)]))


def _read(client: BookKeeper, ledger: LedgerMetadata, bookie: str, entries: int) -> set[int]:
    """The entries readable on one bookie, each checked against the written payload."""
    rows = [(row["first_entry_id"], row["last_entry_id"]) for row in _rows(client, bookie, ledger.ledger_id)]
    found: set[int] = set()
    for copy in copies_on(client.context, bookie, ledger.ledger_id, sorted(rows)):
        if isinstance(copy, Unreadable):
            continue
        for entry in EntryBatch(copy.frame).entries():
            assert entry.payload == payload(ledger.ledger_id, entry.entry_id)
            found.add(entry.entry_id)
    return found


@contextmanager
def _failing_bookie(cluster: LocalCluster, client: BookKeeper) -> Iterator[tuple[str, Callable[[], None]]]:
    with tempfile.TemporaryDirectory() as folder:
        directories = [f"{folder}/disk0", f"{folder}/disk1"]
        for directory in directories:
            os.mkdir(directory)
        options = Path(folder, "options.json")
        told = {"directories": directories, "zookeeper": cluster.zookeeper, "lease_seconds": 3600.0, **_BOOKIES}
        options.write_bytes(msgspec.json.encode(told))
        before = set(client.metadata.bookies())
        command = [sys.executable, "-m", failing_disk_daemon.__name__, str(options)]
        environment = {**os.environ, failing_disk_daemon.FAILING: directories[1]}
        with open(f"{folder}/log", "wb") as output:
            process = subprocess.Popen(command, stderr=output, env=environment)
        try:
            await_that(lambda: len(client.metadata.bookies()) > len(before), 120.0)
            (bookie_id,) = set(client.metadata.bookies()) - before
            yield bookie_id, lambda: process.send_signal(signal.SIGUSR1)
        finally:
            process.terminate()
            process.wait(60.0)


def _run(rounds: int) -> Mapping[str, object]:
    logging.basicConfig()
    with LocalCluster(bookies=5, autorecovery=_AUTORECOVERY, **_BOOKIES) as cluster:
        found = rot(cluster, rounds, Random(16))
        print(found, flush=True)
        return {**found, **dying_disk(cluster, rounds)}


if __name__ == "__main__":
    main(__doc__, _run, 500)
