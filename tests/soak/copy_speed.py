"""The copy speed of one replication worker, compared with a plain copy of as many bytes between two files of the same
disk.

A round is a ledger of 64 MiB in entries of 16 KiB on three of four bookies, one of which is lost for good. The copies are
synced, on both sides. Only the existence of all copies is asserted; the speeds are printed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bookspark import BookKeeper
from bookspark.local import LocalCluster
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.worker import ReplicationWorker
from tests.awaiting import await_that
from tests.soak._command import main
from tests.system.cluster.copies import replication_factors

_ENTRY = os.urandom(16 << 10)
_ENTRIES = 4096
_SECONDS_MAX = 600.0


def copy_speed(rounds: int) -> Mapping[str, float]:
    with LocalCluster(bookies=4) as cluster:
        bookkeeper = cluster.bookkeeper()
        ledgers = [_written(bookkeeper) for _ in range(rounds)]
        named_by = {one: [i for i in ledgers if one.bookie_id in _ensemble(bookkeeper, i)] for one in cluster.bookies}
        lost, named = max(named_by.items(), key=lambda item: len(item[1]))
        lost.stop()
        byte_count = len(named) * _ENTRIES * len(_ENTRY)
        used = time.process_time()
        copied = _repair(bookkeeper, named, lost.bookie_id)
        used = time.process_time() - used
        for ledger_id in named:
            metadata = bookkeeper.get_ledger_metadata(ledger_id)
            assert set(replication_factors(bookkeeper, metadata, _ENTRIES)) == {3}, ledger_id
        plain = _copy_a_file(Path(lost.directories[0]).parent, byte_count)
    return {
        "ledgers": len(named),
        "bytes": byte_count,
        "copy_gb_per_second": round(byte_count / copied / 1e9, 3),
        "file_copy_gb_per_second": round(byte_count / plain / 1e9, 3),
        "ratio": round(plain / copied, 3),
        "worker_cpu_seconds_per_gb": round(used / byte_count * 1e9, 2),
    }


def _written(bookkeeper: BookKeeper) -> int:
    with bookkeeper.create_ledger(3, 3, 3) as ledger:
        for _ in range(_ENTRIES // 64):
            ledger.append_batch_async([_ENTRY] * 64)
    return ledger.ledger_id


def _ensemble(bookkeeper: BookKeeper, ledger_id: int) -> tuple[str, ...]:
    return bookkeeper.get_ledger_metadata(ledger_id).last_fragment.ensemble


def _repair(bookkeeper: BookKeeper, ledgers: list[int], lost: str) -> float:
    """The seconds that one worker needs."""
    tasks = bookkeeper.metadata.underreplication
    tasks.mark(Mark(ledger_id, {lost: Reason.LOST}) for ledger_id in ledgers)
    worker = ReplicationWorker(bookkeeper, AutorecoveryConfig())
    began = time.monotonic()
    worker.start()
    await_that(lambda: not tasks.list_tasks(), _SECONDS_MAX, lambda: tasks.task(tasks.list_tasks()[0]))
    seconds = time.monotonic() - began
    worker.stop()
    return seconds


def _copy_a_file(place: Path, byte_count: int) -> float:
    """The seconds that a copy of a file with so many bytes needs, with its sync."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        with source.open("wb") as file:
            for _ in range(byte_count // len(_ENTRY)):
                file.write(_ENTRY)
        began = time.monotonic()
        shutil.copyfile(source, target)
        with target.open("rb+") as file:
            os.fsync(file.fileno())
        return time.monotonic() - began


if __name__ == "__main__":
    main(__doc__, copy_speed, 8)
