"""The index checkpoint: a copy of the index, so that a boot need not scan all logs again.

Law: a checkpoint holds exactly the rows of its directory's logs below its covered location, which is synced when the checkpoint
is made. So the index on disk is never ahead of the data. A checkpoint consists of *parts*, each with the ledgers that changed
while it was the newest, and of a short file that names them; so it costs as much as changed. A new part absorbs the preceding
parts while each is at most twice as long. So there are few parts, and a ledger's total cost grows with the logarithm of the
number of ledgers::

    <directory>/checkpoint                  "BSPKCKP4" │ u32 CRC32C of all that follows │ u32 0
                                            i64 covered log number │ i64 position in it │ i64 parts p │ i64 rewritten logs r
                                            i64 decisions between master keys before it
                                            p × (i64 number, i64 size, i64 CRC32C) │ r × i64 number
    <directory>/checkpoint.<number, 8 hex>  "BSPKPART" │ block │ block │ …     (``Block``)

Parts are durable before an atomic rename replaces ``checkpoint``, which names them, the oldest first. Unnamed parts are removed.
A missing or bad checkpoint or part costs a full scan and nothing else.

Entry logs below the covered log are covered whole. Only the named rewritten logs are in use: a crash may leave others.

Source: docs/decisions/one-log.md; the counterpart of BookKeeper's ``LastLogMark`` and its ledger index. The parts are those of
O'Neil and others, "The Log-Structured Merge-Tree" (1996).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import reduce
from itertools import accumulate
from typing import NamedTuple

from crc32c import crc32c

from bookspark.store.bookie.disk.disk_errors import is_of_process, unless_refused
from bookspark.store.bookie.disk.file_system import (
    File,
    FileSystem,
    create_anyway,
    needing_space,
    read_all,
    replace_file,
    write_all,
)
from bookspark.store.bookie.disk.index import ROW_BYTES, ChangingRows, LedgerRows, log_of
from bookspark.store.wire.entry_batch import Buffer

# -- Blocks: the content of checkpoint parts, and the laying of newer blocks over older blocks


HEAD = struct.Struct("<qq")
LEDGER_BYTES = 5 * 8
_LEDGERS_MAX = 1 << 13
_BYTES_MAX = 1 << 20
"""A block of this length takes no more ledgers. A single ledger may be longer."""


class Block(NamedTuple):
    """Ledgers with their rows, ascending. Each column has a value for each ledger.

    Law: an entry says of a ledger: "these are its rows from entry id ``since`` on; for lower ids an older block holds". So a
    change is recorded without the unchanged rest. With ``since`` 0 nothing older holds; with no rows either, the ledger is
    forgotten. In native (little-endian) integers::

        i64 ledgers n │ i64 rows m
        n × ledger id │ n × LAC │ n × LAFR │ n × since │ n × row count │ for each ledger: its firsts, its wheres, its extents

    LAC: last add confirmed; LAFR: last add fully replicated; rows as in ``index``. Ids ascend within a block and from block to
    block."""

    ids: array[int]
    confirmed: array[int]
    replicated: array[int]
    since: array[int]
    counts: array[int]
    rows: memoryview

    @property
    def size(self) -> int:
        return HEAD.size + len(self.ids) * LEDGER_BYTES + len(self.rows)

    @property
    def starts(self) -> list[int]:
        """Start in ``rows`` of each ledger's rows, in bytes, and the end of the last."""
        return list(accumulate((ROW_BYTES * count for count in self.counts), initial=0))

    def logs(self) -> set[int]:
        halves = self.rows.cast("I")
        if len(self.rows) == ROW_BYTES * len(self.counts) and max(self.counts, default=1) == 1:
            return set(halves[3::6])
        starts = zip(self.starts, self.counts, strict=False)
        return {
            log for start, count in starts for log in halves[start // 4 + 2 * count + 1 : start // 4 + 4 * count : 2]
        }

    def part(self, start: int, stop: int) -> Block:
        begin = ROW_BYTES * sum(self.counts[:start])
        end = begin + ROW_BYTES * sum(self.counts[start:stop])
        return _block([column[start:stop] for column in self[:5]], self.rows[begin:end])

    def encode(self) -> list[Buffer]:
        head = HEAD.pack(len(self.ids), len(self.rows) // ROW_BYTES)
        return [head, *(memoryview(column).cast("B") for column in self[:5]), self.rows]


def _block(columns: Sequence[array[int]], rows: memoryview) -> Block:
    ids, confirmed, replicated, since, counts = columns
    return Block(ids, confirmed, replicated, since, counts, rows)


def decode_block(ledgers: int, content: memoryview) -> Block:
    """Decode a block of ``ledgers`` ledgers. ``content``: its bytes after the head."""
    columns = []
    for number in range(5):
        column = array("q")
        column.frombytes(content[number * 8 * ledgers : (number + 1) * 8 * ledgers])
        columns.append(column)
    return _block(columns, content[LEDGER_BYTES * ledgers :])


class BlockBuilder:
    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._columns = [array("q") for _ in range(5)]
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def is_full(self) -> bool:
        return len(self) >= _LEDGERS_MAX or len(self._rows) >= _BYTES_MAX

    def add(self, facts: Iterable[int], rows: Buffer) -> None:
        """Add a ledger. ``facts``: id, LAC, LAFR, since, row count."""
        for column, value in zip(self._columns, facts, strict=True):
            column.append(value)
        self._rows += rows

    def copy(self, block: Block, start: int, stop: int, starts: list[int]) -> None:
        """Add the ledgers number ``start`` to ``stop`` (exclusive) of a block. ``starts``: the block's."""
        for column, values in zip(self._columns, block[:5], strict=True):
            column.extend(values[start:stop])
        self._rows += block.rows[starts[start] : starts[stop]]

    def take(self) -> Block:
        block = _block(self._columns, memoryview(bytes(self._rows)))
        self._begin()
        return block


def overlaid(older: Iterable[Block], newer: Iterable[Block]) -> Iterator[Block]:
    """Merge two sequences of blocks into one, ``newer`` over ``older``. Blocks with disjoint id ranges pass unchanged."""
    olds, news = iter(older), iter(newer)
    old, new = next(olds, None), next(news, None)
    while old is not None and new is not None:
        if old.ids[-1] < new.ids[0]:
            yield old
            old = next(olds, None)
        elif new.ids[-1] < old.ids[0]:
            yield new
            new = next(news, None)
        else:
            limit = min(old.ids[-1], new.ids[-1])
            old_end, new_end = bisect_right(old.ids, limit), bisect_right(new.ids, limit)
            yield _joined(old.part(0, old_end), new.part(0, new_end))
            old = old.part(old_end, len(old.ids)) if old_end < len(old.ids) else next(olds, None)
            new = new.part(new_end, len(new.ids)) if new_end < len(new.ids) else next(news, None)
    if old is not None:
        yield old
        yield from olds
    if new is not None:
        yield new
        yield from news


def _joined(old: Block, new: Block) -> Block:
    builder = BlockBuilder()
    old_starts, new_starts = old.starts, new.starts
    at = 0
    for number, ledger_id in enumerate(new.ids):
        to = bisect_left(old.ids, ledger_id, at)
        if to > at:
            builder.copy(old, at, to, old_starts)
        at = to
        if at < len(old.ids) and old.ids[at] == ledger_id:
            _join_ledger(builder, old, at, old_starts, new, number, new_starts)
            at += 1
        else:
            builder.copy(new, number, number + 1, new_starts)
    builder.copy(old, at, len(old.ids), old_starts)
    return builder.take()


def _join_ledger(
    builder: BlockBuilder, old: Block, at: int, old_starts: list[int], new: Block, number: int, new_starts: list[int]
) -> None:
    since = new.since[number]
    if since == 0:
        builder.copy(new, number, number + 1, new_starts)
        return
    count, more = old.counts[at], new.counts[number]
    rows, added = old.rows[old_starts[at] : old_starts[at + 1]], new.rows[new_starts[number] : new_starts[number + 1]]
    first = array("q")
    first.frombytes(rows[: 8 * count])
    kept = bisect_left(first, since)
    pieces = []
    for column in range(3):
        pieces.append(rows[8 * column * count : 8 * (column * count + kept)])
        pieces.append(added[8 * column * more : 8 * (column + 1) * more])
    confirmed = max(old.confirmed[at], new.confirmed[number])
    replicated = max(old.replicated[at], new.replicated[number])
    facts = (new.ids[number], confirmed, replicated, min(old.since[at], since), kept + more)
    builder.add(facts, b"".join(pieces))


def gathered(blocks: Iterable[Block], *, complete: bool) -> Iterator[Block]:
    """Join small blocks. ``complete``: nothing older lies below, so ledgers without rows are left out."""
    builder = BlockBuilder()
    for block in blocks:
        found = _with_rows(block) if complete and 0 in block.counts else block
        if not len(builder) and len(found.ids) >= _LEDGERS_MAX // 2:
            yield found
            continue
        if found.ids:
            builder.copy(found, 0, len(found.ids), [0] + [len(found.rows)] * len(found.ids))
        if builder.is_full:
            yield builder.take()
    if len(builder):
        yield builder.take()


def _with_rows(block: Block) -> Block:
    kept = [number for number, count in enumerate(block.counts) if count]
    return _block([array("q", (column[number] for number in kept)) for column in block[:5]], block.rows)


# -- The checkpoint


NAME = "checkpoint"

_MAGIC = b"BSPKCKP4"
_PART_MAGIC = b"BSPKPART"
_HEAD = struct.Struct("<8sII")
_COUNTS = struct.Struct("<qqqqq")
_READ_BYTES = 4 << 20
_TIMES_MAX = 2
"""A part up to this multiple of all newer parts together is merged with them."""


class Part(NamedTuple):
    """A part as named in the checkpoint; its size in bytes."""

    number: int
    size: int
    checksum: int


class DamagedPartError(OSError):
    """A part can't be read, or differs from the checkpoint's record of it."""


class KeptLedger(NamedTuple):
    """A ledger's share of a checkpoint. The control log holds the rest."""

    ledger_id: int
    last_add_confirmed: int
    last_add_fully_replicated: int
    rows: LedgerRows


class Checkpoint(NamedTuple):
    covered: int
    """Location (log << 32 | position). Nothing below it has to be scanned."""
    rewritten: list[int]
    parts: list[Part]
    decisions: int
    """Number of the last decision between two master keys before the checkpoint was taken. What it holds of a ledger with a later
    decision (``bookie_ledger.KeyDecided``) is void."""
    blocks: Callable[[], Iterator[Block]]
    """Reads the content, with one entry a ledger. Raises OSError."""

    @property
    def ledgers(self) -> Iterator[KeptLedger]:
        """The ledgers, ascending. Raises OSError."""
        for block in self.blocks():
            starts = block.starts
            for number, (ledger_id, confirmed, replicated) in enumerate(zip(*block[:3], strict=True)):
                rows = ChangingRows.of_bytes(block.rows[starts[number] : starts[number + 1]])
                yield KeptLedger(ledger_id, confirmed, replicated, rows)


class Snapshot:
    """Changes in one directory since the last checkpoint was taken, or its whole content."""

    def __init__(
        self, logs: frozenset[int] | None, covered: int, rewritten: frozenset[int], *, whole: bool, decisions: int = 0
    ) -> None:
        """``logs``: numbers of the directory's entry logs, or None if the bookie has no other directory. ``rewritten``: numbers
        of its rewritten logs. ``whole``: this snapshot replaces all earlier checkpoints. ``decisions``: as in ``Checkpoint``."""
        self.logs = logs
        self.covered = covered
        self.rewritten = rewritten
        self.whole = whole
        self.decisions = decisions
        self._newest = max(logs or (), default=0)
        self.blocks: list[Block] = []
        self._builder = BlockBuilder()

    def holds_all(self, rows: LedgerRows) -> bool:
        """Do all ``rows`` belong to this checkpoint? (May be False for rows that are costly to check.)"""
        if self.logs is None and max(rows.where, default=-1) < self.covered:
            return True
        return all(
            log in self.rewritten or (log < log_of(self.covered) and (self.logs is None or log in self.logs))
            for log in set(map(log_of, rows.where))
        )

    def holds(self, where: int) -> bool:
        """Does a row with this ``where`` belong to this checkpoint?"""
        log = log_of(where)
        return log in self.rewritten or (where < self.covered and (self.logs is None or log in self.logs))

    def may_hold_later(self, where: int) -> bool:
        """Does a row with this ``where`` lie in a log of the directory, or in a log newer than this checkpoint?"""
        log = log_of(where)
        return self.logs is None or log in self.logs or log > self._newest

    def add(self, ledger_id: int, confirmed: int, replicated: int, since: int, rows: LedgerRows) -> None:
        """Add a ledger: its rows from entry id ``since`` on are ``rows``. Ledgers come in ascending order."""
        self._builder.add((ledger_id, confirmed, replicated, since, len(rows)), rows.to_bytes())
        if self._builder.is_full:
            self.blocks.append(self._builder.take())

    def end(self) -> None:
        if len(self._builder):
            self.blocks.append(self._builder.take())

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    def encode(self, parts: Sequence[Part]) -> bytes:
        log, position = self.covered >> 32, self.covered & 0xFFFFFFFF
        counts = _COUNTS.pack(log, position, len(parts), len(self.rewritten), self.decisions)
        numbers = array("q", (value for part in parts for value in part))
        numbers.extend(sorted(self.rewritten))
        body = struct.pack("<I", 0) + counts + numbers.tobytes()
        return _HEAD.pack(_MAGIC, crc32c(body), 0) + body[4:]


# -- writing


def write_checkpoint(
    file_system: FileSystem, directory: str, parts: Sequence[Part], taken: Sequence[Snapshot]
) -> list[Part]:
    """Replace the directory's checkpoint with its ``parts`` durably by a checkpoint that adds the snapshots ``taken`` since, the
    oldest first. Returns the new parts. Raises DamagedPartError, OSError, with the old checkpoint in place."""
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
        # The next boot removes any that stay.
        with suppress(OSError):
            file_system.unlink(part_path(directory, part.number))
    return kept


def _write_part(file_system: FileSystem, path: str, blocks: Iterable[Block]) -> tuple[int, int]:
    """Write a part, synced; return its size and checksum. Raises NoSpaceError, OSError."""
    if file_system.exists(path):
        file_system.unlink(path)
    with needing_space(), closing(create_anyway(file_system, path)) as file:
        end, checksum = write_all(file, [_PART_MAGIC], 0), crc32c(_PART_MAGIC)
        for block in blocks:
            pieces = [piece for piece in block.encode() if len(piece)]
            end = write_all(file, pieces, end)
            for piece in pieces:
                checksum = crc32c(piece, checksum)
        file.sync()
    return end, checksum


# -- reading


def _together(sequences: Sequence[Iterable[Block]]) -> Iterable[Block]:
    return reduce(lambda newer, older: overlaid(older, newer), reversed(sequences)) if sequences else ()


def part_path(directory: str, number: int) -> str:
    return f"{directory}/{NAME}.{number:08x}"


def remove_parts(file_system: FileSystem, directory: str, named: Iterable[Part]) -> None:
    """Remove the unnamed parts that a crash left. Raises OSError."""
    kept = {part_path(directory, part.number) for part in named}
    for name in file_system.list(directory):
        if name.startswith(f"{NAME}.") and f"{directory}/{name}" not in kept:
            with unless_refused():
                file_system.unlink(f"{directory}/{name}")


def read_checkpoint(file_system: FileSystem, directory: str) -> Checkpoint | None:
    """The directory's checkpoint, or None without a trustworthy checkpoint: the entry logs have all that it has. Each part's
    checksum is verified here. Raises OSError if the process has too many open files."""
    path = f"{directory}/{NAME}"
    if not file_system.exists(path):
        return None
    try:
        file = file_system.open(path)
    except OSError as error:
        if is_of_process(error):
            raise
        return None
    try:
        content = memoryview(read_all(file))
    except OSError:
        return None
    finally:
        file.close()
    if len(content) < _HEAD.size + _COUNTS.size:
        return None
    magic, checksum, _ = _HEAD.unpack_from(content)
    if magic != _MAGIC or crc32c(content[12:]) != checksum:
        return None
    log, position, part_count, rewritten_count, decisions = _COUNTS.unpack_from(content, _HEAD.size)
    numbers = array("q")
    numbers.frombytes(content[_HEAD.size + _COUNTS.size :])
    parts = [Part(*numbers[3 * i : 3 * i + 3]) for i in range(part_count)]
    rewritten = numbers[3 * part_count : 3 * part_count + rewritten_count]
    if not all(_is_whole(file_system, directory, part) for part in parts):
        return None

    def blocks() -> Iterator[Block]:
        sequences = [_read_part(file_system, directory, part) for part in parts]
        return gathered(_together(sequences), complete=True)

    return Checkpoint(log << 32 | position, rewritten.tolist(), parts, decisions, blocks)


def _is_whole(file_system: FileSystem, directory: str, part: Part) -> bool:
    path = part_path(directory, part.number)
    try:
        file = file_system.open(path)
    except OSError as error:
        if is_of_process(error):
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
    """The blocks of a part. The part is verified first, so changed bytes make no block. Raises DamagedPartError, at its end at
    the latest."""
    path = part_path(directory, part.number)
    if not _is_whole(file_system, directory, part):
        raise DamagedPartError(f"{path}: a part of the checkpoint has changed since it was written, or can't be read")
    try:
        file = file_system.open(path)
    except OSError as error:
        raise DamagedPartError(f"{path}: a part of the checkpoint can't be opened: {error}") from error
    with closing(file):
        position, checksum = len(_PART_MAGIC), crc32c(_PART_MAGIC)
        while position < part.size:
            head = _read(file, path, position, HEAD.size, part)
            ledgers, rows = HEAD.unpack(head)
            content = _read(file, path, position + len(head), ledgers * LEDGER_BYTES + rows * ROW_BYTES, part)
            checksum = crc32c(content, crc32c(head, checksum))
            position += len(head) + len(content)
            if position == part.size and checksum != part.checksum:
                break
            yield decode_block(ledgers, memoryview(content))
        if checksum != part.checksum:
            raise DamagedPartError(f"{path}: a part of the checkpoint has changed since it was written")


def _read(file: File, path: str, position: int, size: int, part: Part) -> bytes:
    try:
        content = file.read(size, position) if 0 <= size <= part.size - position else b""
    except OSError as error:
        raise DamagedPartError(f"{path}: a part of the checkpoint can't be read: {error}") from error
    if len(content) < size or size < 0:
        raise DamagedPartError(f"{path}: a part of the checkpoint is cut at byte {position}")
    return content
