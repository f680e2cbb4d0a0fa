"""A Pulsar broker on Bookspark's bookies, while both are killed and restarted.

Law: each check that is possible at the bookies is made there too, not only through Pulsar. Messages are produced and followed
while

==========  =======================================================================
at 15 %     the broker is killed (SIGKILL) and started again
at 35 %     a bookie with a copy of the open ledger is killed
at 55 %     the broker is stopped cleanly and started again, while the bookie is dead
at 75 %     the bookie is started again
==========  =======================================================================

Then each message is read once and in order: by Pulsar's reader, whose broker asks the bookies, and by Bookspark's client from
the ledgers of the topic. Before that the broker is killed once more, so that it has recovered and closed the last ledger. At
last the topic is deleted: its ledgers are gone from the metadata, and the bookies' disks get their bytes back, while another
topic of batched messages stays whole.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from bookspark import BookKeeper
from bookspark.local import LocalCluster
from tests.awaiting import await_that
from tests.system.peers.java_programs import BOOKIES, Programs, Steps, a_cluster, bookie_of_open_ledger
from tests.system.peers.pulsar.broker import Broker

COPIES = 3
_GIVEN_BACK_SECONDS = 240.0
_LOG_BYTES = 2 << 20
"""The length of a bookie's logs. The current log may keep deleted entries."""


def story(home: Path, count: int, size: int, step: Steps) -> None:
    """Produce ``count`` messages of ``size`` bytes under all faults, and check. Raises AssertionError at the first violation."""
    options = {
        "entry_log_bytes_max": _LOG_BYTES,
        "gc_wait_time_seconds": 1.0,
        "minor_compaction_interval_seconds": 5.0,
        "major_compaction_interval_seconds": 10.0,
    }
    with a_cluster(home, **options) as cluster, Programs("pulsar", home / "pulsar") as programs:
        broker = Broker(programs, home, cluster.zookeeper.removeprefix("zk://"))
        produced_under_faults(cluster, broker, count, size, step)


def produced_under_faults(cluster: LocalCluster, broker: Broker, count: int, size: int, step: Steps) -> None:
    """The story of this module's docstring. Raises AssertionError at the first violation."""
    beside = broker.judge("produce", "beside", count // 10, size, True)
    step("another topic, batched messages", beside.verdict())

    producer = broker.judge("produce", "numbers", count, size, False)
    follower = broker.judge("follow", "numbers", count, size)

    def reached(part: float) -> None:
        producer.wait_for(f"^produced {int(count * part) // 1000 * 1000}$")
        step(f"{part:.0%} produced")

    reached(0.15)
    broker.stop(signal.SIGKILL)
    broker.start()
    step("broker killed and started again")
    reached(0.35)
    with BookKeeper(cluster.zookeeper) as client:
        bookie = bookie_of_open_ledger(cluster, client, broker.ledgers("numbers"))
    bookie.kill()
    step("bookie killed", bookie.bookie_id)
    reached(0.55)
    broker.stop(signal.SIGTERM)
    broker.start()
    step("broker stopped and started again")
    reached(0.75)
    bookie.start()
    step("bookie started again")
    step("producer", producer.verdict())
    step("subscriber", follower.verdict())
    broker.stop(signal.SIGKILL)
    broker.start()
    step("broker killed and started again")
    step("reader", broker.judge("read", "numbers", count, size).verdict())

    ledgers = broker.ledgers("numbers")
    with BookKeeper(cluster.zookeeper) as client:
        step("read by Bookspark's client", read_by_bookspark(client, ledgers, count, size))
        before = bytes_of(cluster)
        broker.delete("numbers")
        await_that(lambda: not set(ledgers) & set(client.list_ledgers()), 120, "the end of the topic's ledgers")
        step("topic deleted", f"{len(ledgers)} ledgers are gone")
        least = COPIES * count * size - BOOKIES * _LOG_BYTES
        await_that(
            lambda: before - bytes_of(cluster) > least,
            _GIVEN_BACK_SECONDS,
            lambda: f"{least:,} bytes back: before {before:,}, now {bytes_of(cluster):,}",
        )
        step("space given back", f"{before / 1e6:.0f} MB on the bookies before, {bytes_of(cluster) / 1e6:.0f} MB after")
    step("the other topic", broker.judge("read", "beside", count // 10, size).verdict())


def read_by_bookspark(client: BookKeeper, ledgers: list[int], count: int, size: int) -> str:
    """Read the topic's ledgers, and check each message's number in its entry. Raises AssertionError."""
    expected, again = 0, 0
    for ledger_id in ledgers:
        with client.open_ledger_no_recovery(ledger_id) as reader:
            last = reader.last_add_confirmed
            for entry in reader.read(0, last) if last >= 0 else ():
                # Pulsar's headers come first, and the message is the rest.
                number = int.from_bytes(entry.payload[-size:][:8], "big")
                assert number <= expected, f"ledger {ledger_id}, entry {entry.entry_id}: {number} instead of {expected}"
                again += number < expected
                expected += number == expected
    # The broker has recovered and closed the last ledger.
    assert expected == count, f"{expected} messages in ledgers {ledgers}"
    return f"{expected} messages in {len(ledgers)} ledgers, in order, {again} of them twice"


def bytes_of(cluster: LocalCluster) -> int:
    """The number of bytes that the bookies' files take. A file that is removed meanwhile takes none."""
    total = 0
    for bookie in cluster.bookies:
        for directory in bookie.directories:
            for folder, _, names in os.walk(directory):
                for name in names:
                    with suppress(FileNotFoundError):
                        total += os.stat(Path(folder, name)).st_blocks * 512
    return total
