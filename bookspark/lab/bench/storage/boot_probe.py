"""Cost of a bookie's state: its load time and its memory, measured in a separate process on a directory made by ``make``.

It prints one JSON line: memory of the index alone in MB; seconds and CPU seconds of a boot; and for each background work of a
bookie the longest step, in CPU milliseconds. The bookie's event loop stands still during a step.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bookspark.lab.bench.processes import resident_bytes
from bookspark.protocol.bookie.bookie_ledger import MasterKeyNoted
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from bookspark.store.bookie.disk.control_log import ControlLog, encode_records
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.disk.index import ROW_BYTES, ChangingRows, Index, LedgerRows, location
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.steps import Steps
from bookspark.store.bookie.storage import Storage

_FRAME_BYTES = 1024
_KEY = bytes(16)


def make(directory: Path, ledgers: int, entries: int) -> None:
    """Make a directory with a checkpoint of ``ledgers`` ledgers. Each has ``entries`` ranges of one entry. Their log
    exists, but nothing reads it."""
    files = RealFileSystem()
    os.makedirs(directory / "logs")
    log = EntryLog(files, str(directory), 1)
    log.create(len(SCHEMA))
    log.sync(len(SCHEMA))
    log.seal()
    ControlLog(files, str(directory)).rewrite(
        [encode_records(MasterKeyNoted(ledger_id, _KEY) for ledger_id in range(ledgers))]
    )
    snapshot = Snapshot(None, location(2, 0), frozenset(), whole=True)
    first, extent = array("q", range(entries)), array("q", [1 << 32 | _FRAME_BYTES]) * entries
    where = array("q", (location(1, at * _FRAME_BYTES) for at in range(entries)))
    rows = LedgerRows(first, where, extent)
    for ledger_id in range(ledgers):
        snapshot.add(ledger_id, entries - 1, -1, 0, rows)
    snapshot.end()
    write_checkpoint(files, str(directory), [], [snapshot])


def index_bytes(batches: int, entries: int) -> int:
    """Memory of the index of one ledger of ``batches`` batches with ``entries`` entries each, in bytes."""
    rows = ChangingRows.empty()
    for number in range(batches):
        rows.insert(number * entries, (number + 1) * entries - 1, location(1, number * _FRAME_BYTES), _FRAME_BYTES)
    return sum(sys.getsizeof(column) for column in (rows, rows.first, rows.where, rows.extent))


def probe(directory: Path) -> Iterator[tuple[str, Any]]:
    """The figures of the JSON line, one after the other."""
    files = RealFileSystem()
    before = _resident()
    checkpoint = read_checkpoint(files, str(directory))
    assert checkpoint is not None
    index = Index()
    for block in checkpoint.blocks():
        at = 0
        for ledger_id, count in zip(block.ids, block.counts, strict=True):
            index.put(ledger_id, block.rows[at : (at := at + ROW_BYTES * count)])
    del checkpoint, block
    yield "index_mb", round((_resident() - before) / 1e6, 1)
    del index
    start, cpu = time.perf_counter(), time.process_time()
    storage = Storage(BookieConfig(directories=(str(directory),), zookeeper="-")).open()
    yield "boot_seconds", round(time.perf_counter() - start, 2)
    yield "boot_cpu_seconds", round(time.process_time() - cpu, 2)
    ledgers = storage.status().ledgers
    yield "ledgers", ledgers
    # As in a bookie after its boot.
    gc.freeze()
    yield "held_step_ms", _longest_step(storage.garbage_collection.held())
    yield "checkpoint_step_ms", _longest_step(storage.checkpoint())
    # An eighth of the ledgers is enough to trigger a rewrite of the control log.
    eighth = range(0, ledgers, 8)
    yield "forget_step_ms", _longest_step(storage.garbage_collection.forget(eighth))
    yield "use_step_ms", _longest_step(storage.reclaiming.uses())


def _longest_step(steps: Steps[Any]) -> float:
    longest, more = 0.0, True
    while more:
        start = time.thread_time()
        more = next(steps, steps) is None
        longest = max(longest, time.thread_time() - start)
    return round(1000 * longest, 1)


def _resident() -> int:
    return resident_bytes([os.getpid()])[0]


if __name__ == "__main__":
    print(json.dumps(dict(probe(Path(sys.argv[1])))))
