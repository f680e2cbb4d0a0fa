"""What a bookie reads when it starts: control logs, checkpoints, and the logs' tails.

Law: after a boot the bookie holds everything that was synced. Of the batches that were not synced, each is there whole or not at
all. All of it is durable before anything rests on it. A copy that was lost before is not taken into the index again, whatever a
checkpoint or a log knows of it. A damaged control log may have held a fence: it is replaced by another
directory's whole copy, or the bookie stays down. A directory that can't be read is given up if another one is left; its entries
are unknown then, and the boot is lossy (``protocol.bookie.bookie_boot``).
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from bookspark.bookie.disk.control_log import ControlScan, encode_records
from bookspark.bookie.disk.control_state import ControlState
from bookspark.bookie.disk.index import Index, LedgerRows, location, log_of
from bookspark.bookie.disk.log_scan import LoggedFrame
from bookspark.bookie.disk.rewritten_block import Block, runs
from bookspark.bookie.disk.rewritten_log import scan_rewritten
from bookspark.bookie.holdings.holdings import Holdings
from bookspark.bookie.holdings.log_directory import LogDirectory, Recovered
from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, MasterKeyNoted

_LOST_LOGS_MAX = 1 << 16
"""A directory that can't be read may have logs of higher numbers than the others. They are fewer than this, so no number is used
twice."""

Found = TypeVar("Found")

log = logging.getLogger(__name__)


def read_directories(holdings: Holdings) -> None:
    """Read everything that lies in the directories of ``holdings``, which are empty so far. Raises StorageError."""
    live = holdings.live
    in_each(live, LogDirectory.prepare)
    with _collector_paused():
        scans = in_each(live, lambda directory: directory.control.scan())
        content = _replay_control_logs(scans, holdings.control)
        scanned = dict(scans)
        in_each(live, lambda directory: directory.begin_control_log(content, scanned[directory]))
        recovered = in_each(live, LogDirectory.recover)
        holdings.next_log = 1 + _replay_logs(recovered, holdings.control, holdings.index)
    holdings.unreadable = [directory.path for directory in holdings.directories if directory not in live]
    if holdings.unreadable:
        holdings.directories[:] = live
        holdings.next_log += _LOST_LOGS_MAX
    for directory in live:
        for stored in directory.stored:
            holdings.logs[stored.number] = (directory, stored)
        if directory.damaged:
            log.error("%s is damaged: what can't be found is answered I/O error until it is repaired", directory.path)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Switch Python's cyclic garbage collector off. A boot makes millions of objects and no cycles, and the collector, which
    walks all of them again and again, would take half of the time. Afterwards the collector treats them as old."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def in_each(directories: list[LogDirectory], act: Callable[[LogDirectory], Found]) -> list[tuple[LogDirectory, Found]]:
    """What ``act`` returns for each directory. A directory for which it raises OSError is removed from ``directories``. Raises
    StorageError if none is left."""
    found: list[tuple[LogDirectory, Found]] = []
    for directory in list(directories):
        try:
            found.append((directory, act(directory)))
        except OSError as error:
            log.error("%s can't be used: %s; check the disk. What was in it is unknown", directory.path, error)
            directories.remove(directory)
            if not directories:
                raise StorageError(
                    f"the bookie's directories can't be read, the last one was {directory.path}: {error}; check the disk and its "
                    "rights"
                ) from error
    return found


def _replay_control_logs(scans: Sequence[tuple[LogDirectory, ControlScan]], state: ControlState) -> list[bytes] | None:
    """Fill ``state`` with the union of all control logs. Returns the records that have to stand in every directory, encoded; None
    if they stand there. Raises StorageError if a fence may be lost."""
    damaged = [scan.damaged or (not scan.present and directory.holds_logs) for directory, scan in scans]
    if any(damaged) and not any(scan.present and not bad for (_, scan), bad in zip(scans, damaged, strict=True)):
        directory, scan = scans[damaged.index(True)]
        raise StorageError(
            f"{directory.control.path} is damaged at byte {scan.end} or missing, and no other directory has "
            "a whole copy: a fence may be lost, so this bookie stays down; put the file back from a copy of the disk, or start "
            "the bookie anew with empty directories and let its ledgers be replicated again"
        )
    for _, scan in scans:
        state.replay(scan.records)
    if not any(damaged) and all(_is_settled(scan, scans[0][1]) for _, scan in scans):
        return None
    return list(map(encode_records, state.records()))


def _is_settled(scan: ControlScan, other: ControlScan) -> bool:
    """Is everything in it synced and noted, nothing torn, and the same as in the other directory?"""
    return scan.present and scan.end == scan.size == scan.noted and scan.records == other.records


def _replay_logs(recovered: Sequence[tuple[LogDirectory, Recovered]], state: ControlState, index: Index) -> int:
    """Fill ``index``, and the LAC (last add confirmed) of each ledger; returns the highest log number that was ever used."""
    highest = 0
    seen: dict[int, tuple[BookieLedger, LedgerRows]] = {}
    for directory, (checkpoint, scans) in recovered:
        if checkpoint is not None:
            highest = max(highest, log_of(checkpoint.covered))
            for ledger_id, confirmed, replicated, rows in checkpoint.ledgers:
                state.of(ledger_id).note(confirmed, replicated)
                for where in state.lost_copies.get(ledger_id, ()):
                    rows.remove(where, where)
                index.put(ledger_id, rows)
        elif directory.rewritten:
            _replay_rewritten(directory, state, index)
        highest = max(highest, *(stored.number for stored in directory.stored), 0)
        for entry_log, scan in scans:
            start = location(entry_log.number, 0)
            for frame in scan.frames:
                position, size, ledger_id, first, last, confirmed, replicated, _ = frame
                known = seen.get(ledger_id)
                if known is None:
                    known = seen[ledger_id] = _replay_ledger(state, frame), index.of(ledger_id)
                else:
                    known[0].note(confirmed, replicated)
                if ledger_id not in state.lost_copies or start | position not in state.lost_copies[ledger_id]:
                    known[1].insert(first, last, start | position, size)
    return highest


def _replay_ledger(state: ControlState, found: LoggedFrame | Block) -> BookieLedger:
    """Note what the header of a batch says of its ledger."""
    ledger = state.of(found.ledger_id)
    if ledger.master_key is None:
        ledger.replay(MasterKeyNoted(found.ledger_id, found.master_key))
    ledger.note(found.last_add_confirmed, found.last_add_fully_replicated)
    return ledger


def _replay_rewritten(directory: LogDirectory, state: ControlState, index: Index) -> None:
    """Read every rewritten log of a directory whose checkpoint is lost."""
    for rewritten in directory.rewritten.values():
        for found in scan_rewritten(directory.file_system, rewritten.path):
            if found is None:
                directory.damaged = True
                continue
            block, content = found
            _replay_ledger(state, block)
            rows = index.of(block.ledger_id)
            where = location(rewritten.number, block.position)
            if where not in state.lost_copies.get(block.ledger_id, ()):
                for first, last in runs(memoryview(content), block):
                    rows.insert(first, last, where, block.size)
