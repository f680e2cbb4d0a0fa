"""Reads of stored batches: from memory until they are written, then from the logs.

Law: bytes from a log are served only after the frame's own checks (header and body checksum), and only if they match the index.
Any other bytes are damage: that copy is lost (``Holdings.lose``). A failed disk read is first repeated once. An error of the
disk, a missing log or too few bytes say nothing of the copy: it can't be read now (``Holdings.set_aside``). The loop never waits
here for the disk or for decompression: bytes outside the page cache, and compressed blocks, are left to a thread. A log removed
after the planning of a read is no error: its entries were moved or collected, and the read is planned again.

Logs are read by ``preadv``, which has a mode without waiting, and not through a memory map (docs/decisions/no-mmap.md).
"""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, absence_proven, answer_absent
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.store.bookie.disk.disk_errors import is_of_process
from bookspark.store.bookie.disk.file_system import File
from bookspark.store.bookie.disk.index import LedgerRows, log_of, position_of
from bookspark.store.bookie.disk.rewritten_block import is_block, parse_block, plain_frame
from bookspark.store.decisions.seam import decided
from bookspark.store.wire.chunks import is_viewed, new_chunk
from bookspark.store.wire.entry_batch import Buffer
from bookspark.store.wire.logged_frames import parse_logged_frame

# -- Read memory: the buffer for log reads.


_CHUNK_BYTES = 1 << 20


class ReadMemory:
    """The memory that one thread reads logs into.

    Law: lent memory keeps its content until its last view is gone, and is lent again only then. So the answers to a fast reader
    all use the same memory, which is in the processor's cache and need not be cleared first. Each answer to a slow reader gets
    its own memory."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._lent = 0
        """Lent bytes of the chunk, from its start."""

    def lend(self, size: int) -> memoryview:
        """``size`` bytes to read into, with undefined content."""
        if size > _CHUNK_BYTES:
            return memoryview(bytearray(size))
        if self._chunk is not None and not is_viewed(self._chunk):
            self._lent = 0
        if self._chunk is None or self._lent + size > _CHUNK_BYTES:
            self._chunk, self._lent = new_chunk(_CHUNK_BYTES), 0
        start, self._lent = self._lent, self._lent + size
        return memoryview(self._chunk)[start : self._lent]


# -- Planning and fetching


_OPEN_FILES_MAX = 256
_EXTENT_BYTES_MAX = 1 << 20
PART_BYTES = 256 << 10
"""An answer is read and sent in parts of about this size. A longer entry is a part by itself."""
READ_BYTES_MAX = 4 << 20
"""Approximate maximum of an answer, even with a higher limit."""


class Piece(NamedTuple):
    """Entries ``first..last`` of a stored batch frame of ``size`` bytes at ``where``; ``frame`` if it is still in memory."""

    ledger_id: int
    first: int
    last: int
    where: int
    size: int
    frame: Buffer | None


class ReadPlan(NamedTuple):
    """Content of a read's answer. ``end``: the last entry id that it accounts for. ``refusal``: the answer for the next id (None
    if the range or the limit ended there)."""

    pieces: list[Piece]
    end: int
    refusal: Negative | Unknown | None


def plan_read(
    ledger: BookieLedger | None,
    rows: LedgerRows | None,
    recent: dict[int, Buffer],
    request: tuple[int, int, int],
    *,
    sparse: bool,
    storage_damaged: bool,
    boot_unsure: bool,
) -> ReadPlan:
    """Plan the read of entries ``first..last`` of ``request`` (first, last, limit in bytes; limit 0: the maximum of an answer).
    Where absence proves nothing, a sparse read also stops at the first absent id: skipping the id would declare it not held."""
    first, last, limit = request
    limit = min(limit or READ_BYTES_MAX, READ_BYTES_MAX)
    pieces: list[Piece] = []
    wanted, total = first, 0

    def passed(gap_end: int) -> int:
        if not sparse or ledger is None:
            return wanted - 1
        return decided(
            absence_proven, ledger, wanted, gap_end, storage_damaged=storage_damaged, boot_unsure=boot_unsure
        )

    def refused(end: int) -> ReadPlan:
        absent = decided(answer_absent, ledger, end + 1, storage_damaged=storage_damaged, boot_unsure=boot_unsure)
        return ReadPlan(pieces, end, absent)

    for row in rows.covering(first, last) if rows is not None else ():
        if row.first > wanted and (end := passed(row.first - 1)) < row.first - 1:
            return refused(end)
        if total >= limit:
            return ReadPlan(pieces, pieces[-1].last, None)
        start, stop = max(first, row.first), min(last, row.last)
        assert ledger is not None
        pieces.append(Piece(ledger.ledger_id, start, stop, row.where, row.size, recent.get(row.where)))
        total += row.size
        wanted = stop + 1
    if wanted > last or (end := passed(last)) == last:
        return ReadPlan(pieces, last, None)
    return refused(end)


class Stop(Enum):
    """Why a fetch returned fewer frames than pieces."""

    DAMAGED = "the bytes of the next one were read, and are not what was written"
    UNREADABLE = "the disk can't read the next one now, which may be good"
    FAILED = "the process can't read the next one now, for a cause of its own"
    MOVED = "the next one's log is gone, so it lies elsewhere, if anywhere"
    LIMIT = "the answer is as long as it may be"


class Fetched(NamedTuple):
    """Plain batch frames of the first pieces, in their order. Each holds its piece's entries or more. ``stop``: why there are
    fewer frames than pieces."""

    frames: list[Buffer]
    stop: Stop | None = None


class LogFiles:
    """Logs that are open for reading. Above a maximum, the least recently used log is closed. For any thread."""

    def __init__(self, open_log: Callable[[int], File]) -> None:
        """``open_log(number)`` opens a log; it may raise OSError or KeyError."""
        self._open_log = open_log
        self._files: OrderedDict[int, File] = OrderedDict()
        self._removed = 0
        self._memory = ReadMemory()
        """Used by the loop only."""
        self._lock = threading.Lock()

    def get(self, number: int) -> File:
        """The log of this number, opened if needed. Raises KeyError if it is gone, and OSError."""
        file = self.get_open(number)
        if file is None:
            # Opened without the lock: the loop must not wait for a disk.
            removed = self._removed
            file = self._open_log(number)
            with self._lock:
                if removed != self._removed:
                    # The removed log may be this log.
                    return file
                file = self._files.setdefault(number, file)
                if len(self._files) > _OPEN_FILES_MAX:
                    # The log is closed when its last reader drops it.
                    self._files.popitem(last=False)
        return file

    def get_open(self, number: int) -> File | None:
        with self._lock:
            file = self._files.get(number)
            if file is not None:
                self._files.move_to_end(number)
            return file

    def is_open(self, number: int) -> bool:
        """Is the log of this number open? (It may be closed by the time of the return.)"""
        with self._lock:
            return number in self._files

    def forget(self, number: int) -> None:
        """Drop a removed log. Its present readers may go on."""
        with self._lock:
            self._removed += 1
            self._files.pop(number, None)

    def clear(self) -> None:
        """Close all logs, each after its last reader."""
        with self._lock:
            self._files.clear()

    def fetch(self, pieces: Sequence[Piece], *, cached_only: bool, bytes_max: int = READ_BYTES_MAX) -> Fetched | None:
        """The checked frames of ``pieces``, up to about ``bytes_max`` but at least one. ``cached_only``, for the loop: None if a
        frame is in a log that is not open, is not in the page cache, or is compressed."""
        frames: list[Buffer] = []
        index, together, total, failed = 0, True, 0, -1
        while index < len(pieces):
            if total >= bytes_max:
                return Fetched(frames, Stop.LIMIT)
            if (frame := pieces[index].frame) is not None:
                frames.append(frame)
                total += len(frame)
                index += 1
                continue
            stop = _extent_end(pieces, index) if together else index + 1
            extent = pieces[index:stop]
            try:
                number = log_of(extent[0].where)
                file = self.get_open(number) if cached_only else self.get(number)
                if file is None:
                    return None
            except KeyError:
                return Fetched(frames, Stop.MOVED)
            except OSError as error:
                if failed == index:
                    return Fetched(frames, _stop_of(error))
                failed = index
                continue
            size, position = sum(piece.size for piece in extent), position_of(extent[0].where)
            try:
                if not cached_only:
                    view = memoryview(file.read(size, position))
                elif not file.read_cached(view := self._memory.lend(size), position):
                    return None
            except OSError as error:
                if cached_only:
                    return None
                # The open file may be that of a disk that is gone.
                self.forget(number)
                if failed == index and not together:
                    return Fetched(frames, _stop_of(error))
                # Read again, frame by frame from here on: the repeat may succeed, and otherwise shows the unreadable frame.
                failed, together = index, False
                continue
            at = 0
            for piece in extent:
                stored = view[at : at + piece.size]
                if len(stored) < piece.size:
                    return Fetched(frames, Stop.UNREADABLE)
                if cached_only and is_block(stored):
                    return None
                if total >= bytes_max:
                    return Fetched(frames, Stop.LIMIT)
                found = _checked(stored, piece)
                if found is None:
                    return Fetched(frames, Stop.DAMAGED)
                frames.append(found)
                total += len(found)
                at += piece.size
            index = stop
        return Fetched(frames)


def _stop_of(error: OSError) -> Stop:
    return Stop.FAILED if is_of_process(error) else Stop.UNREADABLE


def _extent_end(pieces: Sequence[Piece], start: int) -> int:
    """End of the run of pieces from ``start`` on that are adjacent in one log."""
    end, total = start + 1, pieces[start].size
    while (
        end < len(pieces)
        and pieces[end].frame is None
        and pieces[end].where == pieces[end - 1].where + pieces[end - 1].size
        and total + pieces[end].size <= _EXTENT_BYTES_MAX
    ):
        total += pieces[end].size
        end += 1
    return end


def _checked(stored: memoryview, piece: Piece) -> Buffer | None:
    """The plain frame of stored bytes; None unless they are good and match the index."""
    if is_block(stored):
        block = parse_block(stored, 0)
        if block is None or block.size != piece.size or block.ledger_id != piece.ledger_id:
            return None
        return plain_frame(stored, block, piece.first, piece.last)
    found = parse_logged_frame(stored, 0, 0)
    good = (
        found is not None
        and found.size == piece.size
        and found.ledger_id == piece.ledger_id
        and found.first_entry_id <= piece.first
        and piece.last <= found.last_entry_id
    )
    return stored if good else None
