"""``bookspark bench repair``: re-replication of a lost bookie's data, beside a plain copy of files with the same bytes.

Law: re-replication and the plain copy (``shutil.copyfile`` and a sync of each file) take turns, on the same disk. ``ratio``
is the speed of re-replication divided by that of the plain copies before and after it; the last line has the median of the
rounds. Each round stops another bookie, and empties its disk before the restart: a bookie that still had the copies would
only compare them. Speeds are 10⁶ bytes a second, and processor time is in seconds for 10⁹ bytes.

The data: closed ledgers of ensemble size 3, write quorum 3 and ack quorum 2 on four bookies, with random bytes in batches of
256 KiB, all in the page cache. The ratio falls with smaller ledgers, because each costs some requests to ZooKeeper, and with
smaller batches: docs/decisions/profile.md has figures.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bookspark.errors import BookKeeperError
from bookspark.lab.bench.processes import cpu_seconds
from bookspark.local import LocalBookie, LocalCluster
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.worker import ReplicationWorker

_BOOKIES = 4
_BATCH_BYTES = 256 << 10
_FILE_BYTES = 16 << 20
_SECONDS_MAX = 600.0
_POLL_SECONDS = 0.01

Case = dict[str, Any]


def measure_repair(
    rounds: int, entry_bytes: int, megabytes: int, ledgers: int, ledgers_at_once: int, directory: Path | None
) -> Iterator[Case]:
    """A case for each round, then their median. ``megabytes``: payload written to all ``ledgers``, in 10⁶ bytes; each
    bookie gets three quarters of it. Raises BookKeeperError if a repair takes longer than ten minutes."""
    with (
        tempfile.TemporaryDirectory(prefix="bookspark-bench-", dir=directory) as place,
        LocalCluster(_BOOKIES, Path(place, "cluster")) as cluster,
    ):
        bench = _Bench(
            cluster, Path(place), entry_bytes, AutorecoveryConfig(ledgers_at_once=ledgers_at_once, poll_seconds=1.0)
        )
        for _ in range(ledgers):
            bench.write_ledger(megabytes * 1_000_000 // ledgers)
        cases = [bench.round(number) for number in range(rounds)]
        yield from cases
        yield {"rounds": rounds, "ratio": round(median(case["ratio"] for case in cases), 3)}


class _Bench:
    def __init__(self, cluster: LocalCluster, place: Path, entry_bytes: int, config: AutorecoveryConfig) -> None:
        self._cluster = cluster
        self._place = place
        self._entry_bytes = entry_bytes
        self._bookkeeper = cluster.bookkeeper()
        self._config = config

    def write_ledger(self, byte_count: int) -> None:
        ledger = self._bookkeeper.create_ledger(3, 3, 2)
        batch = [os.urandom(self._entry_bytes) for _ in range(max(1, _BATCH_BYTES // self._entry_bytes))]
        for _ in range(max(1, byte_count // (len(batch) * self._entry_bytes))):
            ledger.append_batch(batch)
        ledger.close()

    def round(self, number: int) -> Case:
        lost = self._cluster.bookies[number % _BOOKIES]
        store = self._bookkeeper.metadata
        named = [
            one
            for one, _ in store.read_ledgers(store.list_ledgers(), {})
            if any(lost.bookie_id in fragment.ensemble for fragment in one.fragments)
        ]
        byte_count = sum(one.length for one in named)
        before = self._plain_copy(byte_count)
        lost.stop()
        others = [bookie.pid for bookie in self._cluster.bookies if bookie.pid is not None]
        own, theirs = time.process_time(), cpu_seconds(others)
        seconds = self._repaired(lost, [one.ledger_id for one in named])
        own, theirs = time.process_time() - own, cpu_seconds(others) - theirs
        after = self._plain_copy(byte_count)
        lost.wipe()
        lost.start()
        plain = (before + after) / 2
        return {
            "round": number,
            "entry_bytes": self._entry_bytes,
            "ledgers": len(named),
            "bytes": byte_count,
            "repair_mb_per_second": round(byte_count / seconds / 1e6, 1),
            "plain_mb_per_second": round(byte_count / plain / 1e6, 1),
            "ratio": round(plain / seconds, 3),
            "worker_cpu_seconds": round(own / byte_count * 1e9, 2),
            "bookies_cpu_seconds": round(theirs / byte_count * 1e9, 2),
        }

    def _repaired(self, lost: LocalBookie, ledger_ids: list[int]) -> float:
        """Seconds until every copy is made and named."""
        tasks = self._bookkeeper.metadata.underreplication
        with self._cluster.bookkeeper() as own:
            # In production, a worker's session is old when a bookie is lost.
            own.metadata.bookies()
            worker = ReplicationWorker(own, self._config)
            tasks.mark(Mark(ledger_id, {lost.bookie_id: Reason.LOST}) for ledger_id in ledger_ids)
            begun = time.monotonic()
            worker.start()
            try:
                while worker.progress().ledgers < len(ledger_ids):
                    if time.monotonic() > begun + _SECONDS_MAX:
                        raise BookKeeperError(f"the repair of {lost.bookie_id} takes longer than {_SECONDS_MAX:g} s")
                    time.sleep(_POLL_SECONDS)
                return time.monotonic() - begun
            finally:
                worker.stop()

    def _plain_copy(self, byte_count: int) -> float:
        """Seconds to copy files of ``byte_count`` bytes, synced."""
        source, target = self._place / "source", self._place / "target"
        source.mkdir()
        target.mkdir()
        names = [str(number) for number in range(max(1, byte_count // _FILE_BYTES))]
        for name in names:
            (source / name).write_bytes(os.urandom(byte_count // len(names)))
        begun = time.monotonic()
        for name in names:
            shutil.copyfile(source / name, target / name)
            with (target / name).open("rb") as copied:
                os.fsync(copied.fileno())
        seconds = time.monotonic() - begun
        shutil.rmtree(source)
        shutil.rmtree(target)
        return seconds
