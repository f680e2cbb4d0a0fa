"""What a bookie reads when it starts: control logs, checkpoints, and the logs' tails.

Law: the state after a boot is what was synced, and of what was not, at most whole batches; it is all durable before anything
rests on it. A control log that is damaged is made good from another directory's whole copy, or the bookie stays down, for it
may have held a fence.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from bookspark.bookie.control_log import ControlScan, encode_records
from bookspark.bookie.entry_log import log_numbers
from bookspark.bookie.file_system import FileSystem
from bookspark.bookie.index import Index, location, log_of
from bookspark.bookie.log_directory import LogDirectory
from bookspark.protocol.bookie_ledger import BookieLedger, MasterKeyNoted
from bookspark.protocol.errors import StorageError


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without Python's cyclic garbage collector: a boot makes objects by the million and no cycles, and the collector, which
    walks all of them again and again, takes half of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def replay_control_logs(
    file_system: FileSystem, directories: list[LogDirectory], ledgers: dict[int, BookieLedger]
) -> None:
    """Fill ``ledgers`` with the union of all control logs, and leave that union in every directory."""
    scans = [directory.control.scan() for directory in directories]
    damaged = [
        scan.damaged or (not scan.present and bool(log_numbers(file_system, directory.path)))
        for directory, scan in zip(directories, scans, strict=True)
    ]
    if any(damaged) and not any(scan.present and not bad for scan, bad in zip(scans, damaged, strict=True)):
        first = directories[damaged.index(True)]
        raise StorageError(
            f"{first.control.path} is damaged at byte {scans[damaged.index(True)].end} or missing, and no other directory has "
            "a whole copy: a fence may be lost, so this bookie stays down; put the file back from a copy of the disk, or start "
            "the bookie anew with empty directories and let its ledgers be replicated again"
        )
    for scan in scans:
        for record in scan.records:
            ledger = ledgers.get(record.ledger_id)
            if ledger is None:
                ledger = ledgers[record.ledger_id] = BookieLedger(record.ledger_id)
            ledger.replay(record)
    if not any(damaged) and all(_is_settled(scan, scans[0]) for scan in scans):
        for directory, scan in zip(directories, scans, strict=True):
            directory.control.resume(scan.end)
        return
    content = encode_records(record for ledger in ledgers.values() for record in ledger.control_records())
    for directory in directories:
        directory.control.rewrite(content)


def _is_settled(scan: ControlScan, other: ControlScan) -> bool:
    """Is it all synced, nothing torn, and the same as in the other directory?"""
    return scan.present and scan.end == scan.size == scan.noted and scan.records == other.records


def replay_logs(directories: list[LogDirectory], ledgers: dict[int, BookieLedger], index: Index) -> int:
    """Fill ``index``, and the LACs of ``ledgers``; returns the highest log number that was ever used."""
    highest = 0
    for directory in directories:
        checkpoint, scans = directory.recover()
        if checkpoint is not None:
            highest = max(highest, log_of(checkpoint.covered))
            for kept, rows in checkpoint.ledgers:
                ledger = ledgers.setdefault(kept.ledger_id, kept)
                ledger.note(kept.last_add_confirmed, kept.last_add_fully_replicated)
                index.put(kept.ledger_id, rows)
        for entry_log in directory.logs:
            highest = max(highest, entry_log.number)
        for entry_log, scan in scans:
            number = entry_log.number
            for frame in scan.frames:
                found = ledgers.get(frame.ledger_id)
                if found is None:
                    found = ledgers[frame.ledger_id] = BookieLedger(frame.ledger_id)
                if found.master_key is None:
                    found.replay(MasterKeyNoted(frame.ledger_id, frame.master_key))
                found.note(frame.last_add_confirmed, frame.last_add_fully_replicated)
                index.of(frame.ledger_id).insert(
                    frame.first_entry_id, frame.last_entry_id, location(number, frame.position), frame.size
                )
    return highest
