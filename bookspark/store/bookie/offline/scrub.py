"""Scrub of a stopped bookie's directory: every byte is read and checked by the production readers.

Law: nothing is changed. Every changed bit of the synced bytes is detected, by the checks of a boot and a read: of each batch,
record, note and checkpoint, and of the index against its batches. A torn tail above the synced note, as after a crash, is no
damage.

The checkpoint names the damaged entries, as far as it knows them. A log alone can't name its lost entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from bookspark.store.bookie import checks
from bookspark.store.bookie.checks import NotRead, Stored, Torn
from bookspark.store.bookie.disk.checkpoint import Checkpoint
from bookspark.store.bookie.disk.entry_log import LOGS, EntryLog, log_numbers
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.bookie.disk.index import Row, location, log_of, position_of
from bookspark.store.bookie.disk.rewritten_log import rewritten_numbers, rewritten_path


class EntryRange(NamedTuple):
    """Entries ``first..last`` of a ledger."""

    ledger_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged bytes. ``position`` and ``size`` in bytes. ``entries``: the known entries among them."""

    path: str
    position: int
    size: int
    what: str
    entries: tuple[EntryRange, ...] = ()


@dataclass(slots=True)
class Scrubbed:
    """Result for one directory, all logs together."""

    damages: list[Damage]
    files: int = 0
    size: int = 0
    batches: int = 0
    entries: int = 0
    """Including superseded copies."""
    torn: int = 0
    """Bytes above the synced notes, to be cut by the next boot."""


Located = Mapping[int, Stored]
"""The good batches of a log by location."""


def scrub(file_system: FileSystem, directory: str) -> Scrubbed:
    """Check all files in one directory of a stopped bookie. Raises OSError if the directory itself can't be read."""
    found = Scrubbed([])
    checkpoint, damages = checks.check_checkpoint(file_system, directory)
    found.files += checkpoint is not None or bool(damages)
    _tell(damages, [], found)
    rows = _rows_by_log(checkpoint)
    entry_logs, rewritten_logs = log_numbers(file_system, directory), rewritten_numbers(file_system, directory)
    _scrub_control_log(file_system, directory, found, expected=bool(entry_logs))
    for number in sorted(rows.keys() - {*entry_logs, *rewritten_logs}):
        lost = tuple(EntryRange(ledger_id, row.first, row.last) for ledger_id, row in rows[number])
        found.damages.append(Damage(f"{directory}/{LOGS}", 0, 0, f"log {number:08x} is missing", lost))
    for number in entry_logs:
        entry_log = EntryLog(file_system, directory, number)
        try:
            _scrub_log(entry_log, file_system, rows.get(number, []), found)
        except OSError as error:
            found.damages.append(Damage(entry_log.path, 0, 0, f"the log can't be looked at: {error}"))
    for number in rewritten_logs:
        if checkpoint is None or number in checkpoint.rewritten:
            of_log = rows.get(number, [])
            path = rewritten_path(directory, number)
            starts = sorted({position_of(row.where) for _, row in of_log})
            _take(path, number, checks.check_rewritten_log(file_system, path, starts), of_log, found)
            found.size += _size(file_system, path)
    return found


def _scrub_control_log(file_system: FileSystem, directory: str, found: Scrubbed, *, expected: bool) -> None:
    scan, damages = checks.check_control_log(file_system, directory, expected=expected)
    _tell(damages, [], found)
    if scan.present:
        found.files += 1
        found.size += scan.size
    if not scan.damaged:
        found.torn += scan.size - scan.end


def _scrub_log(entry_log: EntryLog, file_system: FileSystem, rows: list[_LedgerRow], found: Scrubbed) -> None:
    blank, noted, path = entry_log.note.is_blank(), entry_log.note.read(), entry_log.path
    entry_log.note.close()
    exists = file_system.exists(path)
    bad_note = checks.check_note(file_system, entry_log.note_path, entry_log.number)
    if bad_note is not None and (exists or not blank):
        found.damages.append(Damage(path, 0, 0, bad_note.what))
    if exists:
        size = _size(file_system, path)
        found.size += size
        items = checks.check_entry_log(file_system, path, size if noted is None else noted)
        _take(path, entry_log.number, items, rows, found)
    elif noted:
        found.damages.append(Damage(path, 0, noted, "the log is missing", _hit(rows, 0, noted)))


def _take(
    path: str,
    number: int,
    items: Iterable[Stored | checks.Damage | NotRead | Torn],
    rows: list[_LedgerRow],
    found: Scrubbed,
) -> None:
    """Add the results of a log's check."""
    found.files += 1
    located: dict[int, Stored] = {}
    for item in items:
        if isinstance(item, Stored):
            located[location(number, item.position)] = item
            found.batches += 1
            found.entries += item.entries
        elif isinstance(item, Torn):
            found.torn += item.size
        elif isinstance(item, NotRead):
            _tell([checks.Damage(*item, checks.CANNOT_READ)], rows, found)
        else:
            _tell([item], rows, found)
    _check_rows(path, located, rows, found)


def _tell(damages: Iterable[checks.Damage], rows: list[_LedgerRow], found: Scrubbed) -> None:
    for path, position, size, what, _ in damages:
        found.damages.append(Damage(path, position, size, what, _hit(rows, position, position + size)))


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
    """Check each row against its batch. (Rows of damaged batches are reported already.)"""
    for ledger_id, row in rows:
        batch = batches.get(row.where)
        if batch is not None and not (
            ledger_id == batch.ledger_id and batch.first <= row.first <= row.last <= batch.last
        ):
            hit = (EntryRange(ledger_id, row.first, row.last),)
            found.damages.append(Damage(path, 0, 0, "a row of the index names a batch of other entries", hit))


def _hit(rows: list[_LedgerRow], start: int, end: int) -> tuple[EntryRange, ...]:
    """Entries whose batches touch the bytes ``start..end`` of their log."""
    return tuple(_hits(rows, start, end))


def _hits(rows: list[_LedgerRow], start: int, end: int) -> Iterator[EntryRange]:
    for ledger_id, row in rows:
        at = row.where & 0xFFFFFFFF
        if at < end and at + row.size > start:
            yield EntryRange(ledger_id, row.first, row.last)


def _size(file_system: FileSystem, path: str) -> int:
    with closing(file_system.open(path)) as file:
        return file.size()
