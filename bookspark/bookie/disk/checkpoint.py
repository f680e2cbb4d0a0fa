"""The index checkpoint: a copy of the index, so that a boot need not scan all logs again.

Law: a checkpoint holds exactly the rows of its directory's logs below the location it covers, and that location is synced when
the checkpoint is made; so the index on disk is never ahead of the data. It is replaced atomically; one that is missing or fails
its checksum costs a full scan and nothing else. One file, in native (little-endian) integers::

    <directory>/checkpoint    "BSPKCKP2" │ u32 CRC32C of all that follows │ u32 flags (1: damage was found in this directory)
                              i64 covered log number │ i64 covered position in it │ i64 ledgers n │ i64 rows m
                              i64 rewritten logs r │ r × i64 number
                              n × i64 ledger id │ n × LAC │ n × LAFR │ n × row count │ m × first │ m × where │ m × extent

Entry logs of lower numbers than the covered one are covered whole. The rewritten logs that are named are in use, and no others:
a crash may leave one that no checkpoint names yet. LAC: last add confirmed; LAFR: last add fully replicated.

Source: docs/decisions/one-log.md; the counterpart of BookKeeper's ``LastLogMark`` together with its ledger index.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import NamedTuple

from crc32c import crc32c

from bookspark.bookie.disk.file_system import FileSystem, read_all, replace_file
from bookspark.bookie.disk.index import Index, LedgerRows, log_of
from bookspark.bookie.disk.steps import Steps
from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.wire.entry_batch import Buffer

NAME = "checkpoint"

_MAGIC = b"BSPKCKP2"
_HEAD = struct.Struct("<8sII")
_COUNTS = struct.Struct("<qqqqq")
_DAMAGED = 1
_WEIGHT_A_STEP = 1 << 15
"""How much one step takes, counted in rows."""
_LEDGER_WEIGHT = 20
"""A ledger counts as this number of rows."""


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
    ledgers: list[KeptLedger]


class Snapshot:
    """A checkpoint in the making, for one directory."""

    def __init__(self, logs: frozenset[int] | None, covered: int, damaged: bool, rewritten: frozenset[int]) -> None:
        """``logs``: the numbers of the directory's entry logs, or None if the bookie has no other directory; ``rewritten``:
        those of its rewritten logs."""
        self._logs = logs
        self._covered = covered
        self._rewritten = rewritten
        self._damaged = damaged
        self._columns = [array("q") for _ in range(7)]

    def take(self, rows: LedgerRows) -> int:
        """Take the ``rows`` that belong into this checkpoint, some of one ledger's; returns how many. More of them may follow."""
        columns = self._columns[4:]
        if self._logs is None and len(rows) and max(rows.where) < self._covered:
            count = len(rows)
            for column, values in zip(columns, (rows.first, rows.where, rows.extent), strict=True):
                column.extend(values)
        else:
            kept = [i for i, where in enumerate(rows.where) if self._belongs(where)]
            count = len(kept)
            for column, values in zip(columns, (rows.first, rows.where, rows.extent), strict=True):
                column.extend(values[i] for i in kept)
        return count

    def end_ledger(self, ledger: BookieLedger, count: int) -> None:
        """The last ``count`` rows that were taken are all that this ledger has."""
        facts = (ledger.ledger_id, ledger.last_add_confirmed, ledger.last_add_fully_replicated, count)
        for column, value in zip(self._columns, facts, strict=False):
            column.append(value)

    def _belongs(self, where: int) -> bool:
        log = log_of(where)
        return log in self._rewritten or (where < self._covered and (self._logs is None or log in self._logs))

    def encode(self) -> list[Buffer]:
        """The bytes of the file, in pieces."""
        rewritten = array("q", sorted(self._rewritten))
        counts = _COUNTS.pack(
            self._covered >> 32,
            self._covered & 0xFFFFFFFF,
            len(self._columns[0]),
            len(self._columns[4]),
            len(rewritten),
        )
        columns = (rewritten, *self._columns)
        body: list[Buffer] = [counts, *(memoryview(column).cast("B") for column in columns if column)]
        checksum = 0
        for piece in body:
            checksum = crc32c(piece, checksum)
        flags = _DAMAGED if self._damaged else 0
        return [_HEAD.pack(_MAGIC, crc32c(struct.pack("<I", flags), checksum), flags), *body]


def fill(snapshots: list[Snapshot], ledgers: dict[int, BookieLedger], index: Index) -> Steps[None]:
    """Let every snapshot take what belongs to it, in steps of some milliseconds at most. Ledgers and rows may be added between
    two steps: they are above the covered locations. Nothing may be removed or moved meanwhile."""
    weight = 0
    for ledger_id in index.ledger_ids():
        counts = [0] * len(snapshots)
        for rows in index.of(ledger_id).parts(_WEIGHT_A_STEP):
            for number, snapshot in enumerate(snapshots):
                counts[number] += snapshot.take(rows)
            weight += len(snapshots) * (_LEDGER_WEIGHT + len(rows))
            if weight >= _WEIGHT_A_STEP:
                weight = 0
                yield None
        for snapshot, count in zip(snapshots, counts, strict=True):
            if count:
                snapshot.end_ledger(ledgers[ledger_id], count)


def write_checkpoint(file_system: FileSystem, directory: str, snapshot: Snapshot) -> None:
    """Replace the directory's checkpoint, durably. Raises OSError, with the old one in place."""
    replace_file(file_system, f"{directory}/{NAME}", snapshot.encode())


def read_checkpoint(file_system: FileSystem, directory: str) -> Checkpoint | None:
    """The directory's checkpoint, or None if there is none that can be trusted."""
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
    if magic != _MAGIC or crc32c(struct.pack("<I", flags), crc32c(content[_HEAD.size :])) != checksum:
        return None
    log, position, ledger_count, row_count, rewritten_count = _COUNTS.unpack_from(content, _HEAD.size)
    values = array("q")
    values.frombytes(content[_HEAD.size + _COUNTS.size :])
    sizes = (rewritten_count, *[ledger_count] * 4, *[row_count] * 3)
    rewritten, ids, confirmed, replicated, counts, first, where, extent = (
        values[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)
    )
    # Free this memory now: a big checkpoint would be held three times.
    del content, values
    ledgers = [
        KeptLedger(
            ledger_id,
            lac,
            lafr,
            LedgerRows(first[end - count : end], where[end - count : end], extent[end - count : end]),
        )
        for ledger_id, lac, lafr, count, end in zip(ids, confirmed, replicated, counts, accumulate(counts), strict=True)
    ]
    return Checkpoint(bool(flags & _DAMAGED), log << 32 | position, rewritten.tolist(), ledgers)
