"""Inspection of a stopped bookie's directories, by the code of its boot and its reads.

Law: only ``rebuild_index`` and ``take_back_good`` change anything: the index checkpoints and, like a boot, torn tails and records
of losses. The shown state is the state that the next boot would serve. It needs all directories of the bookie, because its
control log and its ledgers are spread over them.

Source: BookKeeper's shell commands ``listfilesondisc``, ``readlog``, ``ledger`` and ``rebuild-db-ledger-locations-index``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from bookspark.errors import StorageError
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges, with_ranges, without_ranges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.checkpoint import NAME as CHECKPOINT
from bookspark.store.bookie.disk.checkpoint import read_checkpoint
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import File, FileSystem
from bookspark.store.bookie.disk.index import location, log_of
from bookspark.store.bookie.disk.log_scan import SCHEMA, BadBytes, read_frames
from bookspark.store.bookie.disk.rewritten_block import plain_frame, runs
from bookspark.store.bookie.disk.rewritten_log import BadPart, RewrittenLog, scan_rewritten
from bookspark.store.bookie.disk.unclean_marker import NAME as UNCLEAN
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.reads import Piece
from bookspark.store.bookie.offline.scrub import EntryRange
from bookspark.store.bookie.steps import run_steps
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.entry_batch import Buffer, Entry, EntryBatch
from bookspark.support.plain_text import bytes_text

# -- A file system without changes, for a boot that leaves no trace


class DryRunFileSystem:
    """``Storage(config, DryRunFileSystem(RealFileSystem())).open()`` is a boot that leaves no trace. For the calls see
    ``FileSystem``.

    Law: reads are those of the inner file system. Writes, syncs, renames and unlinks succeed without effect. A created file reads
    as empty, and an unlinked file as gone."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner
        self._made: set[str] = set()
        self._gone: set[str] = set()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if path not in self._gone and self._inner.exists(path):
            return _UnchangedFile(self._inner.open(path))
        if not create and path not in self._made:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._made.add(path)
        return _UnchangedFile(None)

    def exists(self, path: str) -> bool:
        return path in self._made or (path not in self._gone and self._inner.exists(path))

    def list(self, directory: str) -> list[str]:
        if directory in self._made and not self._inner.exists(directory):
            return []
        return [name for name in self._inner.list(directory) if f"{directory}/{name}" not in self._gone]

    def make_directory(self, path: str) -> None:
        self._made.add(path)

    def rename(self, source: str, target: str) -> None:
        self.unlink(source)
        self._made.add(target)

    def unlink(self, path: str) -> None:
        self._made.discard(path)
        self._gone.add(path)

    def sync_directory(self, path: str) -> None:
        """No effect."""

    def free_bytes(self, path: str) -> int:
        return self._inner.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._inner.total_bytes(path)

    def inodes(self, path: str) -> tuple[int, int]:
        return self._inner.inodes(path)


class _UnchangedFile:
    def __init__(self, inner: File | None) -> None:
        """``inner``: the file to read; None: an empty file."""
        self._inner = inner

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        return sum(map(len, buffers))

    def read(self, size: int, position: int) -> bytes:
        return b"" if self._inner is None else self._inner.read(size, position)

    def read_cached(self, into: memoryview, position: int) -> bool:
        return self._inner is not None and self._inner.read_cached(into, position)

    def drop_cached(self) -> None:
        if self._inner is not None:
            self._inner.drop_cached()

    def sync(self) -> None:
        """No effect."""

    def preallocate(self, size: int) -> None:
        """No effect."""

    def truncate(self, size: int) -> None:
        """No effect."""

    def size(self) -> int:
        return 0 if self._inner is None else self._inner.size()

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


# -- Inspection


class LogInfo(NamedTuple):
    """One log; sizes in bytes. ``live``: size of the batches in the index."""

    number: int
    path: str
    rewritten: bool
    size: int
    synced: int
    ledgers: int
    entries: int
    live: int


class Batch(NamedTuple):
    """One stored batch of a log. Position and size in bytes."""

    position: int
    size: int
    ledger_id: int
    first: int
    last: int
    last_add_confirmed: int
    entries: list[Entry]


class IndexRow(NamedTuple):
    """A range of entries and its place. Position and size in bytes."""

    ledger_id: int
    first: int
    last: int
    log: int
    position: int
    size: int


class Inspection:
    """One bookie, with all of its directories. Raises StorageError if the bookie would not start."""

    def __init__(self, file_system: FileSystem, directories: Sequence[str]) -> None:
        self._file_system = DryRunFileSystem(file_system)
        self._storage = Storage(_config(directories), self._file_system).open()

    def logs(self) -> list[LogInfo]:
        live: dict[int, tuple[set[int], int, dict[int, int]]] = {}
        for row in self.rows():
            ledgers, entries, sizes = live.get(row.log, (set(), 0, {}))
            ledgers.add(row.ledger_id)
            # Rows may share a batch, which counts once.
            sizes[row.position] = row.size
            live[row.log] = ledgers, entries + row.last - row.first + 1, sizes
        found = []
        for number, stored in self._storage.logs.items():
            ledgers, entries, sizes = live.get(number, (set(), 0, {}))
            rewritten = isinstance(stored, RewrittenLog)
            found.append(
                LogInfo(
                    number,
                    stored.path,
                    rewritten,
                    stored.end,
                    stored.synced,
                    len(ledgers),
                    entries,
                    sum(sizes.values()),
                )
            )
        return found

    def rows(self, ledger_id: int | None = None) -> Iterator[IndexRow]:
        """Rows of the index, by ledger and entry: of ``ledger_id``, or of all ledgers (None)."""
        at, first, only = ledger_id or 0, 0, ledger_id is not None
        while at >= 0:
            ranges, at, first = self._storage.holdings.ranges(at, first, 0, only=only)
            yield from map(IndexRow, *ranges)

    def batches(self, number: int) -> Iterator[Batch]:
        """The good batches of a log, in its order. Raises StorageError for an unknown log."""
        stored = self._storage.logs.get(number)
        if stored is None:
            known = ", ".join(f"{each:08x}" for each in self._storage.logs) or "none"
            raise StorageError(f"there is no log {number:08x} here; there are: {known}")
        if isinstance(stored, RewrittenLog):
            yield from self._rewritten_batches(stored)
        else:
            yield from self._plain_batches(stored)

    def _plain_batches(self, entry_log: EntryLog) -> Iterator[Batch]:
        with closing(self._file_system.open(entry_log.path)) as file:
            for found in read_frames(file, len(SCHEMA), size := file.size(), size, unread=[]):
                if isinstance(found, BadBytes):
                    continue
                frame, content = found
                batch = EntryBatch(bytes(content))
                yield Batch(
                    frame.position,
                    frame.size,
                    frame.ledger_id,
                    frame.first_entry_id,
                    frame.last_entry_id,
                    frame.last_add_confirmed,
                    list(batch.entries()),
                )

    def _rewritten_batches(self, log: RewrittenLog) -> Iterator[Batch]:
        for found in scan_rewritten(self._file_system, log.path, unread=[]):
            if isinstance(found, BadPart):
                continue
            block, content = found
            view = memoryview(content)
            entries: list[Entry] = []
            for first, last in runs(view, block):
                frame = plain_frame(view, block, first, last)
                entries += EntryBatch(frame).entries() if frame is not None else ()
            yield Batch(
                block.position,
                block.size,
                block.ledger_id,
                block.first_entry_id,
                block.last_entry_id,
                block.last_add_confirmed,
                entries,
            )


def rebuild_index(file_system: FileSystem, directories: Sequence[str]) -> int:
    """Rebuild the index checkpoints from the logs; returns the number of their ranges. Like a boot, it cuts torn tails, and first
    notes losses known from the old checkpoints. Raises StorageError if the bookie would not start, or if a checkpoint can't be
    written."""
    Storage(_config(directories), file_system).open().close()
    for directory in directories:
        path = f"{directory}/{CHECKPOINT}"
        if file_system.exists(path):
            file_system.unlink(path)
            file_system.sync_directory(directory)
    storage = Storage(_config(directories), file_system).open()
    # The storage was never started, so this only writes the checkpoints.
    storage.close()
    count = 0
    for directory in directories:
        checkpoint = read_checkpoint(file_system, directory)
        if checkpoint is None:
            raise StorageError(f"{directory}: the checkpoint could not be written; check the disk and its rights")
        count += sum(len(ledger.rows) for ledger in checkpoint.ledgers)
    return count


class LossToAccept(NamedTuple):
    """``what``: the lost bytes of a file, in words. ``entries``: the entries that may lie there, as far as the index and the LAC
    of their ledgers show. Entries of other ledgers, and at the end of these, may lie there as well."""

    what: str
    entries: tuple[EntryRange, ...] = ()


def losses_to_accept(file_system: FileSystem, directories: Sequence[str]) -> list[LossToAccept]:
    """Losses of control logs and of bytes that the disk can't read, as ``accept_losses`` would accept them. Changes nothing.
    Raises StorageError if the bookie would not start even then."""
    return accept_losses(DryRunFileSystem(file_system), directories, "-")


def accept_losses(file_system: FileSystem, directories: Sequence[str], by: str) -> list[LossToAccept]:
    """Note that operator ``by`` accepts these losses; returns them. The next start is lossy. Once every bookie that may have the
    lost entries has answered, the bytes are given up, except for entries of ledgers whose record the metadata lost. Raises
    StorageError."""
    storage = Storage(_config(directories), file_system).open(accepted_by=by)
    control, unread = storage.lossy_boots.accept_losses(by)
    found = [LossToAccept(what) for what in control]
    for entry_log, ranges in unread.items():
        what = f"{entry_log.path}: the disk can't read {bytes_text(ranges)}"
        found.append(LossToAccept(what, tuple(_may_lie_in(storage.holdings, entry_log.number, ranges))))
    storage.close()
    return found


def _may_lie_in(holdings: Holdings, log: int, unread: EntryRanges) -> Iterator[EntryRange]:
    """Entries that are not held and may lie in these bytes of the log: of each ledger, those between its entries before and
    behind them, or up to its LAC. (A rewritten log has no place in the order of writes.)"""
    written = {number for number, (_, stored) in holdings.logs.items() if isinstance(stored, EntryLog)}
    parts = [(location(log, start), location(log, end)) for start, end in unread]
    for ledger_id in holdings.index.ids():
        rows = holdings.index.get(ledger_id)
        held = [rows.row(number) for number in range(len(rows))] if rows is not None else []
        ordered = [row for row in held if log_of(row.where) in written]
        confirmed = holdings.control.known(ledger_id).last_add_confirmed
        lacking = [
            (
                1 + max((row.last for row in ordered if row.where < start), default=NO_ENTRY),
                min((row.first - 1 for row in ordered if row.where > end), default=confirmed),
            )
            for start, end in parts
        ]
        wanted = with_ranges(NO_RANGES, [(first, last) for first, last in lacking if first <= last])
        for first, last in without_ranges(wanted, ((row.first, row.last) for row in held)):
            yield EntryRange(ledger_id, first, last)


def take_back_good(file_system: FileSystem, directories: Sequence[str]) -> int:
    """Take the notes of losses back whose bytes are good, as the scrub of a running bookie does; returns the number of such
    batches. Without any nothing is changed, nor after an unclean stop: only the next start may settle the logs then. Raises
    StorageError if the bookie would not start."""
    if any(file_system.exists(f"{directory}/{UNCLEAN}") for directory in directories):
        return 0
    if not _good_again(Storage(_config(directories), DryRunFileSystem(file_system)).open()):
        return 0
    storage = Storage(_config(directories), file_system).open()
    good = _good_again(storage)
    for piece in good:
        storage.holdings.take_back(piece)
    storage.close()
    return len(good)


def _good_again(storage: Storage) -> list[Piece]:
    """Good batches of entries that are noted as lost."""
    scrubbing, copies = storage.scrubbing, storage.holdings.control.lost_copies
    wheres = (where for ledger_id in copies if storage.holdings.lacking(ledger_id) for where in copies[ledger_id])
    storage.holdings.suspected.update(log for log in map(log_of, wheres) if log in storage.logs)
    to_read = run_steps(scrubbing.take_suspected(), lambda: None)
    return [piece for number in to_read for looked in scrubbing.look(number, to_read[number]) for piece in looked.back]


def _config(directories: Sequence[str]) -> BookieConfig:
    return BookieConfig(directories=tuple(directories), zookeeper="-")
