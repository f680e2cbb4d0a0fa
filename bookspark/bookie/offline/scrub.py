"""Scrubbing: every byte of a stopped bookie's directory is read and checked, with the readers that a bookie has.

Law: nothing is changed. Every changed bit of the synced bytes is found, by the checks that a boot and a read make: of each batch,
record, note and checkpoint, and of the index against the batches that it names. A torn tail above the synced note, as a crash may
leave it, is no damage.

The checkpoint tells which entries were hit by damage, as far as it knows. A log alone can't tell what it lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bookspark.bookie.disk.checkpoint import NAME as CHECKPOINT
from bookspark.bookie.disk.checkpoint import Checkpoint, read_checkpoint
from bookspark.bookie.disk.control_log import ControlLog
from bookspark.bookie.disk.entry_log import LOGS, EntryLog, log_numbers
from bookspark.bookie.disk.file_system import File, FileSystem
from bookspark.bookie.disk.index import Row, location, log_of
from bookspark.bookie.disk.log_scan import SCHEMA, scan_log
from bookspark.bookie.disk.rewritten_log import rewritten_numbers, rewritten_path, scan_rewritten
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import WireError, decode

_HEADER_AT = 88


class EntryRange(NamedTuple):
    """Entries ``first..last`` of a ledger."""

    ledger_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not what they were. ``position`` and ``size`` in bytes. ``entries``: those that are known to be hit."""

    path: str
    position: int
    size: int
    what: str
    entries: tuple[EntryRange, ...] = ()


@dataclass(slots=True)
class Scrubbed:
    """What was found in a directory, all logs together."""

    damages: list[Damage]
    files: int = 0
    size: int = 0
    """The size of all files, in bytes."""
    batches: int = 0
    entries: int = 0
    """Superseded copies are counted too."""
    torn: int = 0
    """Bytes above the synced notes that the next boot cuts."""


Located = Mapping[int, EntryRange]
"""The good batches of a directory by location."""


def scrub(file_system: FileSystem, directory: str) -> Scrubbed:
    """Read and check everything in one directory of a stopped bookie. Raises OSError if the directory itself can't be read."""
    found = Scrubbed([])
    try:
        checkpoint = read_checkpoint(file_system, directory)
    except OSError:
        checkpoint = None
    path = f"{directory}/{CHECKPOINT}"
    if file_system.exists(path):
        found.files += 1
        if checkpoint is None:
            found.damages.append(Damage(path, 0, _size(file_system, path), "the index checkpoint fails its checks"))
    rows = _rows_by_log(checkpoint)
    _scrub_control_log(file_system, directory, found)
    entry_logs, rewritten_logs = log_numbers(file_system, directory), rewritten_numbers(file_system, directory)
    for number in sorted(rows.keys() - {*entry_logs, *rewritten_logs}):
        lost = tuple(EntryRange(ledger_id, row.first, row.last) for ledger_id, row in rows[number])
        found.damages.append(Damage(f"{directory}/{LOGS}", 0, 0, f"log {number:08x} is missing", lost))
    for number in entry_logs:
        batches = _scrub_log(EntryLog(file_system, directory, number), file_system, rows.get(number, []), found)
        _check_rows(path, batches, rows.get(number, []), found)
    for number in rewritten_logs:
        if checkpoint is None or number in checkpoint.rewritten:
            _scrub_rewritten(file_system, rewritten_path(directory, number), number, rows.get(number, []), found)
    return found


def _scrub_control_log(file_system: FileSystem, directory: str, found: Scrubbed) -> None:
    control = ControlLog(file_system, directory)
    scan = control.scan()
    if not scan.present and log_numbers(file_system, directory):
        found.damages.append(Damage(control.path, 0, 0, "the control log is missing"))
    if scan.present:
        found.files += 1
        found.size += scan.size
        if scan.size and control.note_is_bad():
            found.damages.append(Damage(control.path, 0, 0, "its synced note is missing or fails its checks"))
    if scan.damaged:
        found.damages.append(Damage(control.path, scan.end, scan.size - scan.end, "a control record fails its checks"))
    else:
        found.torn += scan.size - scan.end
    control.close()


def _scrub_log(entry_log: EntryLog, file_system: FileSystem, rows: list[_LedgerRow], found: Scrubbed) -> Located:
    """Check one entry log and its note; returns the good batches."""
    blank = entry_log.note.is_blank()
    noted = entry_log.note.read()
    entry_log.note.close()
    path = entry_log.path
    exists = file_system.exists(path)
    if noted is None and (exists or not blank):
        found.damages.append(Damage(path, 0, 0, "its synced note is missing or fails its checks"))
    if not exists:
        if noted:
            found.damages.append(Damage(path, 0, noted, "the log is missing", _hit(rows, 0, noted)))
        return {}
    file = file_system.open(path)
    try:
        size = file.size()
        below = size if noted is None else noted
        scan = scan_log(file, size, 0, below)
        found.files += 1
        found.size += size
        at = len(SCHEMA) if file.read(len(SCHEMA), 0) == SCHEMA else 0
        located: dict[int, EntryRange] = {}
        for frame in scan.frames:
            if frame.position > at:
                found.damages.append(_bad_batches(path, at, frame.position, rows))
            at = frame.position + frame.size
            located[location(entry_log.number, frame.position)] = EntryRange(
                frame.ledger_id, frame.first_entry_id, frame.last_entry_id
            )
            found.batches += 1
            found.entries += frame.last_entry_id - frame.first_entry_id + 1
            if (wrong := _wrong_inside(file, frame.position, frame.size)) is not None:
                found.damages.append(Damage(path, frame.position, frame.size, wrong, _hit(rows, frame.position, at)))
        if at < min(below, size):
            found.damages.append(_bad_batches(path, at, min(below, size), rows))
        elif size > at:
            found.torn += size - at
        if size < below:
            what = f"the log is shorter than the {below} bytes that were synced"
            found.damages.append(Damage(path, size, below - size, what, _hit(rows, size, below)))
        return located
    finally:
        file.close()


def _scrub_rewritten(file_system: FileSystem, path: str, number: int, rows: list[_LedgerRow], found: Scrubbed) -> None:
    found.files += 1
    found.size += _size(file_system, path)
    good: set[int] = set()
    damaged = False
    for item in scan_rewritten(file_system, path):
        if item is None:
            damaged = True
            continue
        block, _ = item
        good.add(location(number, block.position))
        found.batches += 1
        found.entries += block.entries
    lost = tuple(EntryRange(ledger_id, row.first, row.last) for ledger_id, row in rows if row.where not in good)
    if damaged or lost:
        found.damages.append(Damage(path, 0, 0, "a block of the rewritten log, or its frame, fails its checks", lost))


class _LedgerRow(NamedTuple):
    ledger_id: int
    row: Row


def _rows_by_log(checkpoint: Checkpoint | None) -> dict[int, list[_LedgerRow]]:
    by_log: dict[int, list[_LedgerRow]] = {}
    for ledger in checkpoint.ledgers if checkpoint is not None else ():
        for i in range(len(ledger.rows)):
            row = ledger.rows.row(i)
            by_log.setdefault(log_of(row.where), []).append(_LedgerRow(ledger.ledger_id, row))
    return by_log


def _check_rows(path: str, batches: Located, rows: list[_LedgerRow], found: Scrubbed) -> None:
    """Check that every row names a batch that has its entries. (Rows of damaged batches are reported already.)"""
    for ledger_id, row in rows:
        batch = batches.get(row.where)
        if batch is not None and not (
            ledger_id == batch.ledger_id and batch.first <= row.first <= row.last <= batch.last
        ):
            hit = (EntryRange(ledger_id, row.first, row.last),)
            found.damages.append(Damage(path, 0, 0, "a row of the index names a batch of other entries", hit))


def _bad_batches(path: str, start: int, end: int, rows: list[_LedgerRow]) -> Damage:
    return Damage(path, start, end - start, "no good batch lies here", _hit(rows, start, end))


def _hit(rows: list[_LedgerRow], start: int, end: int) -> tuple[EntryRange, ...]:
    """The entries whose batches touch the bytes ``start..end`` of their log."""
    return tuple(_hits(rows, start, end))


def _hits(rows: list[_LedgerRow], start: int, end: int) -> Iterator[EntryRange]:
    for ledger_id, row in rows:
        at = row.where & 0xFFFFFFFF
        if at < end and at + row.size > start:
            yield EntryRange(ledger_id, row.first, row.last)


def _wrong_inside(file: File, position: int, size: int) -> str | None:
    """What is wrong with the columns of a batch whose checksums are right, None if nothing is."""
    frame = file.read(size, position)
    try:
        header, body_crc = decode(frame, _HEADER_AT)
        EntryBatch.checked(frame, header, body_crc)
    except WireError as error:
        return str(error)
    return None


def _size(file_system: FileSystem, path: str) -> int:
    file = file_system.open(path)
    size = file.size()
    file.close()
    return size
