"""The index checkpoint: a copy of the index, so that a boot need not scan all logs again.

Law: a checkpoint holds exactly the rows of its directory's logs below the location it covers, and that location is synced when
the checkpoint is made; so the index on disk is never ahead of the data. It costs what changed since the last one, not what there
is: it consists of *parts*, each with the ledgers that changed while it was the newest, and of a short file that names them. A
part is merged with the ones before it that are not more than twice as long, so there are few, and what a ledger costs in all
grows with the logarithm of their number::

    <directory>/checkpoint                  "BSPKCKP3" │ u32 CRC32C of all that follows │ u32 flags (1: damage was found here)
                                            i64 covered log number │ i64 position in it │ i64 parts p │ i64 rewritten logs r
                                            p × (i64 number, i64 size, i64 CRC32C) │ r × i64 number
    <directory>/checkpoint.<number, 8 hex>  "BSPKPART" │ block │ block │ …     (``index_block``)

Parts are durable before ``checkpoint`` is replaced, atomically, by one that names them. It names the older part first. Parts
that it does not name are removed. If it is missing, or it or a part fails its checksum, that costs a full scan and nothing else.

Entry logs of lower numbers than the covered one are covered whole. The rewritten logs that are named are in use, and no others:
a crash may leave one that no checkpoint names yet. Format 2 was one file (``_decode_2``); it is still read.

Source: docs/decisions/one-log.md; the counterpart of BookKeeper's ``LastLogMark`` together with its ledger index. The parts are
those of O'Neil and others, "The Log-Structured Merge-Tree" (1996)."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import accumulate
from typing import NamedTuple

from crc32c import crc32c

from bookspark.store.bookie.disk.file_system import (
    NO_DESCRIPTOR,
    File,
    FileSystem,
    needing_space,
    read_all,
    replace_file,
    write_all,
)
from bookspark.store.bookie.disk.index import ROW_BYTES, ChangingRows, LedgerRows, log_of
from bookspark.store.bookie.disk.index_block import HEAD as BLOCK_HEAD
from bookspark.store.bookie.disk.index_block import LEDGER_BYTES, Block, BlockBuilder, decode_block, gathered, overlaid

NAME = "checkpoint"

_MAGIC, _MAGIC_2 = b"BSPKCKP3", b"BSPKCKP2"
_PART_MAGIC = b"BSPKPART"
_HEAD = struct.Struct("<8sII")
_COUNTS = struct.Struct("<qqqq")
_COUNTS_2 = struct.Struct("<qqqqq")
_DAMAGED = 1
_READ_BYTES = 4 << 20
_TIMES_MAX = 2
"""A part is merged with the newer ones unless it is longer than this multiple of all of them."""


class Part(NamedTuple):
    """A part as the checkpoint names it; its size in bytes."""

    number: int
    size: int
    checksum: int


class DamagedPartError(OSError):
    """A part can't be read, or is not what the checkpoint says."""


class KeptLedger(NamedTuple):
    """What a checkpoint holds of a ledger. The control log holds the rest."""

    ledger_id: int
    last_add_confirmed: int
    last_add_fully_replicated: int
    rows: LedgerRows


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    damaged: bool
    """Damage was found in the directory before the checkpoint was made."""
    covered: int
    """Location (log << 32 | position) below which nothing has to be scanned."""
    rewritten: list[int]
    """The numbers of the rewritten logs in use."""
    parts: list[Part] | None
    """The parts, the oldest first. None: it is of the earlier format, and the next one has to hold everything."""
    blocks: Callable[[], Iterator[Block]]
    """Reads what it holds, one entry a ledger. Raises OSError."""

    @property
    def ledgers(self) -> Iterator[KeptLedger]:
        """The ledgers, ascending. Raises OSError."""
        for block in self.blocks():
            starts = block.starts
            for number, (ledger_id, confirmed, replicated) in enumerate(zip(*block[:3], strict=True)):
                rows = ChangingRows.of_bytes(block.rows[starts[number] : starts[number + 1]])
                yield KeptLedger(ledger_id, confirmed, replicated, rows)


class Snapshot:
    """What changed in one directory since its last checkpoint was taken, or all that is there."""

    def __init__(
        self, logs: frozenset[int] | None, covered: int, damaged: bool, rewritten: frozenset[int], *, whole: bool
    ) -> None:
        """``logs``: the numbers of the directory's entry logs, or None if the bookie has no other directory; ``rewritten``:
        those of its rewritten logs. ``whole``: nothing of the checkpoints before counts any more."""
        self.logs = logs
        self.covered = covered
        self.damaged = damaged
        self.rewritten = rewritten
        self.whole = whole
        self._newest = max(logs or (), default=0)
        self.blocks: list[Block] = []
        self._builder = BlockBuilder()

    def holds_all(self, rows: LedgerRows) -> bool:
        """Do all ``rows`` belong into this checkpoint? (False if that would take long to tell.)"""
        if self.logs is None and max(rows.where, default=-1) < self.covered:
            return True
        return all(
            log in self.rewritten or (log < log_of(self.covered) and (self.logs is None or log in self.logs))
            for log in set(map(log_of, rows.where))
        )

    def holds(self, where: int) -> bool:
        """Does a row with this ``where`` belong into this checkpoint?"""
        log = log_of(where)
        return log in self.rewritten or (where < self.covered and (self.logs is None or log in self.logs))

    def may_hold_later(self, where: int) -> bool:
        """Is this a row of a log of the directory, or of one that is newer than this checkpoint?"""
        log = log_of(where)
        return self.logs is None or log in self.logs or log > self._newest

    def add(self, ledger_id: int, confirmed: int, replicated: int, since: int, rows: LedgerRows) -> None:
        """The ledger's rows from entry id ``since`` on are ``rows``. Ledgers come in ascending order."""
        self._builder.add((ledger_id, confirmed, replicated, since, len(rows)), rows.to_bytes())
        if self._builder.is_full:
            self.blocks.append(self._builder.take())

    def end(self) -> None:
        """All ledgers have come."""
        if len(self._builder):
            self.blocks.append(self._builder.take())

    @property
    def size(self) -> int:
        """Bytes of its blocks."""
        return sum(block.size for block in self.blocks)

    def encode(self, parts: Sequence[Part]) -> bytes:
        """The bytes of the file that names ``parts``."""
        counts = _COUNTS.pack(self.covered >> 32, self.covered & 0xFFFFFFFF, len(parts), len(self.rewritten))
        numbers = array("q", (value for part in parts for value in part))
        numbers.extend(sorted(self.rewritten))
        body = struct.pack("<I", _DAMAGED if self.damaged else 0) + counts + numbers.tobytes()
        return _HEAD.pack(_MAGIC, crc32c(body), _DAMAGED if self.damaged else 0) + body[4:]


# -- writing


def write_checkpoint(
    file_system: FileSystem, directory: str, parts: Sequence[Part], taken: Sequence[Snapshot]
) -> list[Part]:
    """Replace the directory's checkpoint, which has ``parts``, durably by one that holds what was ``taken`` since, the oldest
    first. Returns the new one's parts. Raises DamagedPartError, OSError, with the old one in place."""
    number = 1 + max((part.number for part in parts), default=0)
    begin = max((i for i, snapshot in enumerate(taken) if snapshot.whole), default=None)
    older = list(parts) if begin is None else []
    newer = list(taken[begin or 0 :])
    size, kept = sum(snapshot.size for snapshot in newer), list(older)
    while size and kept and kept[-1].size <= _TIMES_MAX * size:
        size += kept.pop().size
    path = part_path(directory, number)
    try:
        if size:
            sequences: list[Iterable[Block]] = [_read_part(file_system, directory, part) for part in older[len(kept) :]]
            sequences += [snapshot.blocks for snapshot in newer]
            blocks = gathered(_together(sequences), complete=not kept)
            length, checksum = _write_part(file_system, path, blocks)
            file_system.sync_directory(directory)
            kept.append(Part(number, length, checksum))
        replace_file(file_system, f"{directory}/{NAME}", [newer[-1].encode(kept)])
    except OSError:
        with suppress(OSError):
            file_system.unlink(path)
        raise
    for part in set(parts) - set(kept):
        # If one stays, the next boot removes it.
        with suppress(OSError):
            file_system.unlink(part_path(directory, part.number))
    return kept


def _write_part(file_system: FileSystem, path: str, blocks: Iterable[Block]) -> tuple[int, int]:
    """Write a part, synced; returns its size and checksum. Raises NoSpaceError, OSError."""
    if file_system.exists(path):
        file_system.unlink(path)
    with needing_space():
        file = file_system.open(path, create=True)
        try:
            end, checksum = write_all(file, [_PART_MAGIC], 0), crc32c(_PART_MAGIC)
            for block in blocks:
                pieces = [piece for piece in block.encode() if len(piece)]
                end = write_all(file, pieces, end)
                for piece in pieces:
                    checksum = crc32c(piece, checksum)
            file.sync()
        finally:
            file.close()
    return end, checksum


# -- reading


def _together(sequences: Sequence[Iterable[Block]]) -> Iterable[Block]:
    """What several sequences of blocks say together, the oldest first."""
    return reduce(lambda newer, older: overlaid(older, newer), reversed(sequences)) if sequences else ()


def part_path(directory: str, number: int) -> str:
    return f"{directory}/{NAME}.{number:08x}"


def remove_parts(file_system: FileSystem, directory: str, named: Iterable[Part]) -> None:
    """Remove every part that is not ``named``: a crash left it. Raises OSError."""
    kept = {part_path(directory, part.number) for part in named}
    for name in file_system.list(directory):
        if name.startswith(f"{NAME}.") and f"{directory}/{name}" not in kept:
            file_system.unlink(f"{directory}/{name}")


def read_checkpoint(file_system: FileSystem, directory: str) -> Checkpoint | None:
    """The directory's checkpoint, or None if there is none that can be trusted. Each part is checked here already."""
    path = f"{directory}/{NAME}"
    if not file_system.exists(path):
        return None
    file = file_system.open(path)
    try:
        content = memoryview(read_all(file))
    except OSError:
        return None
    finally:
        file.close()
    if len(content) < _HEAD.size + _COUNTS.size:
        return None
    magic, checksum, flags = _HEAD.unpack_from(content)
    if crc32c(struct.pack("<I", flags), crc32c(content[_HEAD.size :])) == checksum and magic == _MAGIC_2:
        return _decode_2(bool(flags & _DAMAGED), content[_HEAD.size :])
    if magic != _MAGIC or crc32c(content[12:]) != checksum:
        return None
    log, position, part_count, rewritten_count = _COUNTS.unpack_from(content, _HEAD.size)
    numbers = array("q")
    numbers.frombytes(content[_HEAD.size + _COUNTS.size :])
    parts = [Part(*numbers[3 * i : 3 * i + 3]) for i in range(part_count)]
    rewritten = numbers[3 * part_count : 3 * part_count + rewritten_count]
    if not all(_is_whole(file_system, directory, part) for part in parts):
        return None

    def blocks() -> Iterator[Block]:
        sequences = [_read_part(file_system, directory, part) for part in parts]
        return gathered(_together(sequences), complete=True)

    return Checkpoint(bool(flags & _DAMAGED), log << 32 | position, rewritten.tolist(), parts, blocks)


def _is_whole(file_system: FileSystem, directory: str, part: Part) -> bool:
    path = part_path(directory, part.number)
    try:
        file = file_system.open(path)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        return False
    try:
        checksum = 0
        for position in range(0, part.size, _READ_BYTES):
            checksum = crc32c(file.read(min(_READ_BYTES, part.size - position), position), checksum)
        return file.size() == part.size and checksum == part.checksum
    except OSError:
        return False
    finally:
        file.close()


def _read_part(file_system: FileSystem, directory: str, part: Part) -> Iterator[Block]:
    """The blocks of a part, which is looked through first: of bytes that changed since it was written no block is made. Raises
    DamagedPartError, at its end at the latest."""
    path = part_path(directory, part.number)
    if not _is_whole(file_system, directory, part):
        raise DamagedPartError(f"{path}: a part of the checkpoint has changed since it was written, or can't be read")
    try:
        file = file_system.open(path)
    except OSError as error:
        raise DamagedPartError(f"{path}: a part of the checkpoint can't be opened: {error}") from error
    try:
        position, checksum = len(_PART_MAGIC), crc32c(_PART_MAGIC)
        while position < part.size:
            head = _read(file, path, position, BLOCK_HEAD.size, part)
            ledgers, rows = BLOCK_HEAD.unpack(head)
            content = _read(file, path, position + len(head), ledgers * LEDGER_BYTES + rows * ROW_BYTES, part)
            checksum = crc32c(content, crc32c(head, checksum))
            position += len(head) + len(content)
            if position == part.size and checksum != part.checksum:
                break
            yield decode_block(ledgers, memoryview(content))
        if checksum != part.checksum:
            raise DamagedPartError(f"{path}: a part of the checkpoint has changed since it was written")
    finally:
        file.close()


def _read(file: File, path: str, position: int, size: int, part: Part) -> bytes:
    try:
        content = file.read(size, position) if 0 <= size <= part.size - position else b""
    except OSError as error:
        raise DamagedPartError(f"{path}: a part of the checkpoint can't be read: {error}") from error
    if len(content) < size or size < 0:
        raise DamagedPartError(f"{path}: a part of the checkpoint is cut at byte {position}")
    return content


def _decode_2(damaged: bool, content: memoryview) -> Checkpoint | None:
    """A checkpoint of format 2: i64 covered log number, covered position, ledgers n, rows m, rewritten logs r; r × number;
    n × ledger id, LAC, LAFR, row count; m × first, where, extent. None if it is not of the size that it says: its checksum does
    not cover the format's number, and is the same in both formats if all that follows is zeros."""
    if len(content) < _COUNTS_2.size:
        return None
    log, position, ledgers, rows, rewritten_count = _COUNTS_2.unpack_from(content)
    sizes = (rewritten_count, *[ledgers] * 4, *[rows] * 3)
    if len(content) != _COUNTS_2.size + 8 * sum(sizes):
        return None
    values = content[_COUNTS_2.size :].cast("q")
    columns = [values[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    rewritten, ids, confirmed, replicated, counts = columns[:5]

    def blocks() -> Iterator[Block]:
        builder, start = BlockBuilder(), 0
        for ledger_id, lac, lafr, count in zip(ids, confirmed, replicated, counts, strict=True):
            builder.add(
                (ledger_id, lac, lafr, 0, count), b"".join(column[start : start + count] for column in columns[5:])
            )
            start += count
            if builder.is_full:
                yield builder.take()
        if len(builder):
            yield builder.take()

    return Checkpoint(damaged, log << 32 | position, rewritten.tolist(), None, blocks)
