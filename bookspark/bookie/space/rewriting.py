"""Rewriting sealed logs: what is live in them goes into one new log, sorted and compressed.

Law: rewriting reads sealed logs and writes one file under a temporary name, and nothing else; the index and the old logs are left
to ``reclaiming``. Every batch that is copied has passed its checks, and rows are copied verbatim. One bad batch ends the job with
``DamagedLogError``, and the log that holds it stays as it is. The file is synced when ``rewrite`` returns.

It is written and synced in small slices, with waits between them to keep the rate, so that appends get the disk too. The
functions run in a process of their own (``rewriting_process``), and in tests in the bookie's process.

Source: docs/decisions/one-log.md; BookKeeper's ``EntryLogCompactor`` and ``TransactionalEntryLogCompactor``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import msgspec

from bookspark.bookie.disk.file_system import File, FileSystem, write_all
from bookspark.bookie.disk.log_scan import SCHEMA, parse_logged_frame
from bookspark.bookie.disk.rewritten_block import (
    BLOCK_PREFIX_BYTES,
    BLOCK_START,
    encode_block,
    parse_block,
    parse_block_prefix,
    plain_frame,
)
from bookspark.bookie.disk.rewritten_log import END_OF_BLOCKS, HEAD, REWRITTEN_SUFFIX, footer, temporary_path
from bookspark.wire.batch_prefix import HEADER_OFFSET, PREFIX_BYTES
from bookspark.wire.entry_batch import Buffer, EntryBatch
from bookspark.wire.frames import frame_size
from bookspark.wire.header import Header, Kind, WireError, decode
from bookspark.wire.messages import Ranges

BLOCK_ENTRIES_MAX = 256
BLOCK_PAYLOAD_BYTES_MAX = 256 << 10
_READ_BYTES = 1 << 20
_SLICE_BYTES = 1 << 20
"""How much is written and synced before the next wait."""
_POSITION_MAX = (1 << 32) - 1


class DamagedLogError(Exception):
    """A batch of ``log`` can't be read or fails its checks."""

    def __init__(self, log: int, position: int) -> None:
        super().__init__(log, position)
        self.log = log
        self.position = position


class SealedLog(msgspec.Struct, frozen=True, array_like=True):
    """A log that nothing is written to any more. ``end``: its length in bytes."""

    number: int
    path: str
    end: int


class LedgerFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a block says of its ledger. If the checkpoint is lost, only the logs tell it."""

    last_add_confirmed: int
    last_add_fully_replicated: int
    master_key: bytes


class Job(msgspec.Struct, frozen=True, array_like=True):
    """Write the ``rows`` (``Ranges``, encoded) of ``sources`` into log ``number`` of ``directory``."""

    directory: str
    number: int
    sources: list[SealedLog]
    rows: bytes
    ledgers: dict[int, LedgerFacts]
    bytes_per_second: int
    """How much may be read and written together; 0: no limit."""


class Rewritten(NamedTuple):
    """The index ``rows`` of the new log, and its ``size`` in bytes."""

    rows: Ranges
    size: int


def batches_of(file_system: FileSystem, source: SealedLog) -> Ranges:
    """Every batch of a sealed log, one row each. Only headers are read. Raises DamagedLogError, OSError."""
    found = Ranges.empty()
    batches = (
        _blocks_of(file_system, source) if source.path.endswith(REWRITTEN_SUFFIX) else _frames_of(file_system, source)
    )
    for row in batches:
        for column, value in zip(found, row, strict=True):
            column.append(value)
    return found


_Row = tuple[int, int, int, int, int, int]
"""A row of ``Ranges``: ledger id, first and last entry id, log, position, size."""


def _blocks_of(file_system: FileSystem, source: SealedLog) -> Iterator[_Row]:
    file = file_system.open(source.path)
    try:
        position = len(HEAD)
        while (prefix := file.read(BLOCK_PREFIX_BYTES, position))[: len(END_OF_BLOCKS)] != END_OF_BLOCKS:
            found = parse_block_prefix(prefix, position)
            if found is None:
                raise DamagedLogError(source.number, position)
            block, _ = found
            yield block.ledger_id, block.first_entry_id, block.last_entry_id, source.number, position, block.size
            position += block.size
    finally:
        file.close()


def _frames_of(file_system: FileSystem, source: SealedLog) -> Iterator[_Row]:
    file = file_system.open(source.path)
    position, start, content = len(SCHEMA), 0, memoryview(b"")
    try:
        while position < source.end:
            at = position - start
            if at + PREFIX_BYTES > len(content):
                start, at = position, 0
                content = memoryview(file.read(min(_READ_BYTES, source.end - position), position))
            try:
                size = frame_size(content, at)
                header, _ = decode(content[at : at + PREFIX_BYTES], HEADER_OFFSET)
            except (WireError, IndexError, ValueError) as error:
                raise DamagedLogError(source.number, position) from error
            if size is None:
                raise DamagedLogError(source.number, position)
            yield header.ledger_id, header.first_entry_id, header.last_entry_id, source.number, position, size
            position += size
    finally:
        file.close()


def rewrite(file_system: FileSystem, job: Job, wait: Callable[[float], None]) -> Rewritten:
    """Write the new log of a job. ``wait(seconds)`` is called to keep the rate. Raises DamagedLogError or OSError; the temporary
    file may be left then."""
    sources = {source.number: file_system.open(source.path) for source in job.sources}
    path = temporary_path(job.directory, job.number)
    target = _Target(file_system.open(path, create=True), job, wait)
    try:
        living = sorted(zip(*Ranges.decode(memoryview(job.rows)), strict=True))
        for ledger_id, rows in groupby(living, key=lambda row: row[0]):
            block = _Block(ledger_id, job.ledgers[ledger_id])
            for _, first, last, log, position, size in rows:
                batch = _read(sources[log], log, position, size, first, last)
                target.read_bytes += size
                while first <= last:
                    taken = block.take(batch, first, last)
                    if taken == 0 or block.full:
                        target.write(block)
                        block = _Block(ledger_id, job.ledgers[ledger_id])
                    first += taken
            target.write(block)
        return target.finish()
    finally:
        target.file.close()
        for file in sources.values():
            file.close()


def _read(file: File, log: int, position: int, size: int, first: int, last: int) -> EntryBatch:
    """The checked batch at a location, which holds at least the entries ``first..last``."""
    content = memoryview(file.read(size, position))
    if content[:8] == BLOCK_START:
        block = parse_block(content, position)
        frame = None if block is None else plain_frame(content, block, first, last)
        if frame is not None:
            return EntryBatch(frame)
    else:
        found = parse_logged_frame(content, 0, position)
        if found is not None and found.first_entry_id <= first and last <= found.last_entry_id:
            return EntryBatch(content)
    raise DamagedLogError(log, position)


class _Block:
    """A block in the making."""

    def __init__(self, ledger_id: int, facts: LedgerFacts) -> None:
        self.ledger_id = ledger_id
        self._facts = facts
        self._columns: list[list[Buffer]] = [[] for _ in range(4)]
        self._offsets = (array("i", [0]), array("i", [0]))
        self._values: tuple[list[Buffer], list[Buffer]] = ([], [])
        self.runs: list[tuple[int, int]] = []
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= BLOCK_ENTRIES_MAX or self._offsets[0][-1] >= BLOCK_PAYLOAD_BYTES_MAX

    def take(self, batch: EntryBatch, first: int, last: int) -> int:
        """Take as many of the rows ``first..last`` as there is room for; returns how many. A first entry always has room."""
        last = min(last, first + BLOCK_ENTRIES_MAX - self.count - 1)
        columns, payload, digest = batch.columns(first, last)
        offsets = memoryview(columns[4]).cast("i")
        room = BLOCK_PAYLOAD_BYTES_MAX - self._offsets[0][-1]
        count = min(last - first + 1, bisect_right(offsets, room) - 1)
        if count <= 0 and self.count:
            return 0
        count = max(count, 1)
        for pieces, column in zip(self._columns, columns, strict=False):
            pieces.append(memoryview(column)[: 8 * count])
        for gathered, values, column, value in zip(
            self._offsets, self._values, columns[4:], (payload, digest), strict=True
        ):
            ends = memoryview(column).cast("i")[1 : count + 1].tolist()
            base = gathered[-1]
            values.append(value[: ends[-1]])
            gathered.extend([base + end for end in ends])
        self.runs.append((first, first + count - 1))
        self.count += count
        return count

    def encode(self) -> bytes:
        facts = self._facts
        header = Header(
            Kind.ADD,
            0,
            self.ledger_id,
            last_add_confirmed=facts.last_add_confirmed,
            last_add_fully_replicated=facts.last_add_fully_replicated,
            master_key=facts.master_key,
        )
        columns: list[Buffer] = [b"".join(pieces) for pieces in self._columns]
        columns += [offsets.tobytes() for offsets in self._offsets]
        return encode_block(header, columns, b"".join(self._values[0]), b"".join(self._values[1]))


class _Target:
    """The new log while it is being written."""

    def __init__(self, file: File, job: Job, wait: Callable[[float], None]) -> None:
        self.file = file
        self._job = job
        self._wait = wait
        self._rows = Ranges.empty()
        self._places: list[tuple[int, int]] = []
        self._pending: list[Buffer] = [HEAD]
        self._pending_bytes = self._end = len(HEAD)
        self._written = 0
        self.read_bytes = 0
        """How many bytes were read since the last slice."""

    def write(self, block: _Block) -> None:
        """Append a block, unless it is empty."""
        if not block.count:
            return
        content = block.encode()
        for first, last in _joined(block.runs):
            row = (block.ledger_id, first, last, self._job.number, self._end, len(content))
            for column, value in zip(self._rows, row, strict=True):
                column.append(value)
        self._places.append((self._end, len(content)))
        self._append(content)

    def finish(self) -> Rewritten:
        self._append(footer(self._places))
        self._flush()
        return Rewritten(self._rows, self._end)

    def _append(self, content: bytes) -> None:
        self._pending.append(content)
        self._pending_bytes += len(content)
        self._end += len(content)
        if self._end > _POSITION_MAX:
            raise ValueError(f"{self._job.number:08x}: more than {_POSITION_MAX} bytes for one log")
        if self._pending_bytes >= _SLICE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._written = write_all(self.file, self._pending, self._written)
        self.file.sync()
        if self._job.bytes_per_second:
            self._wait((self.read_bytes + self._pending_bytes) / self._job.bytes_per_second)
        self._pending, self._pending_bytes, self.read_bytes = [], 0, 0


def _joined(found: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The runs of ids (first, last), with those that follow each other made one."""
    start, end = found[0]
    for first, last in found[1:]:
        if first != end + 1:
            yield start, end
            start = first
        end = last
    yield start, end
