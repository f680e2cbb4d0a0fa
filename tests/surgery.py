"""Exact damage to the disks of bookies."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bookspark.local import LocalBookie
from bookspark.store.bookie.disk.checkpoint import NAME as CHECKPOINT
from bookspark.store.bookie.disk.entry_log import EntryLog, log_numbers
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.disk.log_scan import filler, scan_log
from bookspark.store.wire.logged_frames import LoggedFrames


def remove_entries(bookie: LocalBookie, ledger_id: int, first: int, last: int) -> int:
    """Remove a ledger's batches within ``first..last`` from a stopped bookie's entry logs, as if the bookie had never
    received them.

    Returns their number. The next boot reads the logs again and reports no damage: fillers replace the removed batches,
    because a shorter log would be an older copy.
    """
    assert bookie.pid is None, "stop it first"
    files = RealFileSystem()
    removed = 0
    for directory in bookie.directories:
        for number in log_numbers(files, directory):
            log = EntryLog(files, directory, number)
            with open(log.path, "rb") as file:
                content = file.read()
            found: list[LoggedFrames] = []
            scan_log(files.open(log.path), len(content), 0, len(content), found.append)
            frames = [frame for together in found for frame in together.each()]
            with open(log.path, "r+b") as file:
                for frame in frames:
                    if frame.ledger_id == ledger_id and first <= frame.first_entry_id and frame.last_entry_id <= last:
                        file.seek(frame.position)
                        file.writelines(filler(frame.size))
                        removed += 1
        checkpoint = f"{directory}/{CHECKPOINT}"
        if os.path.exists(checkpoint):
            # Without the checkpoint nothing refers to its parts.
            os.unlink(checkpoint)
    return removed


def turn_a_bit(bookie: LocalBookie, row: Mapping[str, int]) -> None:
    """Damage the batch of a ``row`` of ``BookKeeper.list_ranges``, in a log that was not rewritten; the bookie may run."""
    logs = (EntryLog(RealFileSystem(), directory, row["log"]).path for directory in bookie.directories)
    with open(next(filter(os.path.exists, logs)), "r+b") as file:
        file.seek(row["position"] + row["bytes"] - 100)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
