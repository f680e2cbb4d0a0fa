"""Reading stored batches: from memory until they are written, then from the logs.

Law: bytes from a log are served only after the frame's own checks (header and body checksum) and only as what the index says they
are; anything else is an I/O error for the entries it hits. Nothing here blocks the loop for the disk: what is not in the page
cache is left to a thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bookspark.bookie.entry_log import parse_logged_frame
from bookspark.bookie.file_system import File
from bookspark.bookie.index import LedgerRows, log_of, position_of
from bookspark.protocol.bookie_ledger import BookieLedger, answer_absent
from bookspark.protocol.responses import Negative, Unknown
from bookspark.wire.entry_batch import Buffer

_OPEN_FILES_MAX = 256
_EXTENT_BYTES_MAX = 1 << 20
READ_BYTES_MAX = 4 << 20
"""An answer is about this long at most, whatever the request's limit."""


class Piece(NamedTuple):
    """Entries ``first..last`` out of one stored batch frame; ``frame`` if it is still in memory."""

    ledger_id: int
    first: int
    last: int
    where: int
    size: int
    frame: Buffer | None


class ReadPlan(NamedTuple):
    """What a read will send. ``end`` is the last id that it accounts for, ``refusal`` the answer for the id after that (None
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
) -> ReadPlan:
    """Find entries ``first..last`` of ``request`` (first, last, limit in bytes). Where absence proves nothing, a sparse read
    stops at the first absent id like any other: skipping it would say that it is not held."""
    first, last, limit = request
    limit = min(limit or READ_BYTES_MAX, READ_BYTES_MAX)
    absent = answer_absent(ledger, storage_damaged)
    skipping = sparse and isinstance(absent, Negative) and ledger is not None
    pieces: list[Piece] = []
    wanted, total = first, 0
    for row in rows.covering(first, last) if rows is not None else ():
        if row.first > wanted and not skipping:
            return ReadPlan(pieces, wanted - 1, absent)
        if total >= limit:
            return ReadPlan(pieces, pieces[-1].last, None)
        start, stop = max(first, row.first), min(last, row.last)
        assert ledger is not None
        pieces.append(Piece(ledger.ledger_id, start, stop, row.where, row.size, recent.get(row.where)))
        total += row.size
        wanted = stop + 1
    if wanted > last:
        return ReadPlan(pieces, last, None)
    return ReadPlan(pieces, last, None) if skipping else ReadPlan(pieces, wanted - 1, absent)


class LogFiles:
    """The logs that are open for reading, the least recently used closed when there are too many. For any thread."""

    def __init__(self, open_log: Callable[[int], File]) -> None:
        """``open_log(number)`` opens a log; it may raise OSError or KeyError."""
        self._open_log = open_log
        self._files: OrderedDict[int, File] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> File:
        with self._lock:
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = self._open_log(number)
                if len(self._files) > _OPEN_FILES_MAX:
                    self._files.popitem(last=False)  # closed when the last reader drops it
            else:
                self._files.move_to_end(number)
            return file

    def clear(self) -> None:
        with self._lock:
            self._files.clear()

    def fetch(self, pieces: Sequence[Piece], *, cached_only: bool) -> list[Buffer] | None:
        """The whole, checked frames of ``pieces``: fewer than asked for if one is bad or can't be read (nothing is said of
        those after it). None if ``cached_only`` and some would have to wait for the disk."""
        frames: list[Buffer] = []
        index, together = 0, True
        while index < len(pieces):
            if (frame := pieces[index].frame) is not None:
                frames.append(frame)
                index += 1
                continue
            stop = _extent_end(pieces, index) if together else index + 1
            extent = pieces[index:stop]
            try:
                file = self.get(log_of(extent[0].where))
                read = file.read_cached if cached_only else file.read
                content = read(sum(piece.size for piece in extent), position_of(extent[0].where))
            except (OSError, KeyError):
                if not together or len(extent) == 1:
                    return frames
                together = False  # find out which frame it is
                continue
            if content is None:
                return None
            view = memoryview(content)
            at = 0
            for piece in extent:
                found = view[at : at + piece.size]
                if not _is_good(found, piece):
                    return frames
                frames.append(found)
                at += piece.size
            index = stop
        return frames


def _extent_end(pieces: Sequence[Piece], start: int) -> int:
    """The end of the run of pieces from ``start`` on that lie one after the other in one log."""
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


def _is_good(frame: memoryview, piece: Piece) -> bool:
    found = parse_logged_frame(frame, 0, 0)
    return (
        found is not None
        and found.size == piece.size
        and found.ledger_id == piece.ledger_id
        and found.first_entry_id <= piece.first
        and piece.last <= found.last_entry_id
    )
