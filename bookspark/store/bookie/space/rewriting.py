"""Rewriting of sealed logs: their live entries go into one new log, sorted and compressed.

Law: rewriting reads sealed logs and writes one file under a temporary name, nothing else; ``reclaiming`` handles the index and
the old logs. It reads only batches with rows in the index, so damage in dead bytes can't misplace live batches. Every copied
batch has passed its checks and matches its row; entries are copied verbatim. Rows with a bad batch are left out and reported. A
batch that can't be read now ends the job, so its log stays. The file is synced when ``rewrite`` returns.

Small slices are written and synced, with waits between them to keep the rate, so that appends get the disk too. The functions run
in a process of their own (``rewriting_process``), in tests in the bookie's process.

Source: docs/decisions/one-log.md; BookKeeper's ``EntryLogCompactor`` and ``TransactionalEntryLogCompactor``.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import msgspec

from bookspark.store.bookie.disk.file_system import File, FileSystem, create_rewritten, write_all
from bookspark.store.bookie.disk.rewritten_block import encode_block, is_block, parse_block, plain_frame
from bookspark.store.bookie.disk.rewritten_log import HEAD, footer, temporary_path
from bookspark.store.wire.entry_batch import Buffer, EntryBatch
from bookspark.store.wire.header import Header, Kind
from bookspark.store.wire.logged_frames import parse_logged_frame
from bookspark.store.wire.messages import Ranges

BLOCK_ENTRIES_MAX = 256
BLOCK_PAYLOAD_BYTES_MAX = 256 << 10
_SLICE_BYTES = 256 << 10
"""Bytes written and synced between two waits. A slice under way delays the syncs of appends."""
_POSITION_MAX = (1 << 32) - 1

_Row = tuple[int, int, int, int, int, int]
"""A row of ``Ranges``: ledger id, first and last entry id, log, position, size."""


class SealedLog(msgspec.Struct, frozen=True, array_like=True):
    """A log that takes no more writes."""

    number: int
    path: str


class LedgerFacts(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a ledger, repeated in its blocks for a boot without a checkpoint."""

    last_add_confirmed: int
    last_add_fully_replicated: int
    master_key: bytes

    def __repr__(self) -> str:
        return f"LedgerFacts({self.last_add_confirmed}, {self.last_add_fully_replicated})"


class NoRewriterError(OSError):
    """No rewriter is available now. The job itself is good."""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """Write the ``rows`` (``Ranges``, encoded) of ``sources`` into log ``number`` of ``directory``."""

    directory: str
    number: int
    sources: list[SealedLog]
    rows: bytes
    ledgers: dict[int, LedgerFacts]
    bytes_per_second: int
    """Limit of bytes read and written together; 0: no limit."""


class Rewritten(NamedTuple):
    """Result of a job."""

    rows: Ranges
    size: int
    damaged: Ranges
    """Rows with a bad batch. The new log holds all others."""


def rewrite(file_system: FileSystem, job: Job, wait: Callable[[float], None]) -> Rewritten:
    """Write the new log of a job. ``wait(seconds)`` is called to keep the rate. Raises OSError, and may leave the temporary
    file."""
    sources: dict[int, File] = {}
    target: _Target | None = None
    try:
        for source in job.sources:
            sources[source.number] = file_system.open(source.path)
        target = _Target(
            create_rewritten(file_system, job.directory, temporary_path(job.directory, job.number)), job, wait
        )
        living = sorted(zip(*Ranges.decode(memoryview(job.rows)), strict=True))
        for ledger_id, rows in groupby(living, key=lambda row: row[0]):
            block = _Block(ledger_id, job.ledgers[ledger_id])
            for row in rows:
                batch = _read(sources, row)
                if batch is None:
                    target.damaged.append(row)
                    continue
                _, first, last, _, _, size = row
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
        for file in (*sources.values(), *(() if target is None else (target.file,))):
            file.close()


def _read(sources: Mapping[int, File], row: _Row) -> EntryBatch | None:
    """The checked batch of a row; None if it is bad or differs from its row. Raises OSError."""
    ledger_id, first, last, log, position, size = row
    content = memoryview(sources[log].read(size, position))
    if len(content) != size:
        raise OSError(errno.EIO, f"log {log:08x} ends before byte {position + size}")
    if is_block(content):
        block = parse_block(content, position)
        if block is None or block.size != size or block.ledger_id != ledger_id:
            return None
        frame = plain_frame(content, block, first, last)
        return None if frame is None else EntryBatch(frame)
    found = parse_logged_frame(content, 0, position)
    good = (
        found is not None
        and found.size == size
        and found.ledger_id == ledger_id
        and found.first_entry_id <= first
        and last <= found.last_entry_id
    )
    return EntryBatch(content) if good else None


class _Block:
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
        """Take as many of the rows ``first..last`` as fit; returns their number. An empty block always takes a row."""
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
    def __init__(self, file: File, job: Job, wait: Callable[[float], None]) -> None:
        self.file = file
        self._job = job
        self._wait = wait
        self._rows = Ranges.empty()
        self.damaged = Ranges.empty()
        self._places: list[tuple[int, int]] = []
        self._pending: list[Buffer] = [HEAD]
        self._pending_bytes = self._end = len(HEAD)
        self._written = 0
        self.read_bytes = 0
        """Bytes read since the last slice."""

    def write(self, block: _Block) -> None:
        """Append a block, unless it is empty."""
        if not block.count:
            return
        content = block.encode()
        for first, last in _joined(block.runs):
            self._rows.append((block.ledger_id, first, last, self._job.number, self._end, len(content)))
        self._places.append((self._end, len(content)))
        self._append(content)

    def finish(self) -> Rewritten:
        self._append(footer(self._places))
        self._flush()
        return Rewritten(self._rows, self._end, self.damaged)

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
    """Runs of ids (first, last), with adjacent runs merged."""
    start, end = found[0]
    for first, last in found[1:]:
        if first != end + 1:
            yield start, end
            start = first
        end = last
    yield start, end
