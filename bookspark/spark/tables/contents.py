"""System tables of bookies' contents: indexes, entry logs, limbo, checksums. Each bookie has its own tasks.

Law: a registered bookie that does not answer fails the read: silence is not an empty index. The tables show the entries that a
bookie has, not those that it should have; the audits compare the two. An index is read in batches, so no task ever has a whole
index in memory.

``entry_checksums`` reads every copy of every entry, so its cost grows with the data; only it shows that two copies differ. The
bytes go through the network, which leaves the bookies' own time to their writers.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c
from pyspark.sql.pandas.types import to_arrow_schema

from bookspark.spark.tables.table import FLAG, LONG, LONGS, TEXT, Rows, SystemTable, each_bookie
from bookspark.store.client.inspection.bookie_questions import RANGE_COLUMNS, range_batches
from bookspark.store.client.inspection.copies import Unreadable, copies_on

if TYPE_CHECKING:
    import pyarrow

    from bookspark.store.client import BookKeeper

CHECKSUMS_PER_ROW = 1024
"""Entry ids in a row of ``entry_checksums``."""
PARTS_PER_BOOKIE = 4
"""Tasks that read the copies of one bookie."""
_LENGTH = struct.Struct("<q")
_SLICES_MAX = 48
"""For all bookies together: a snapshot has a file of each slice. A bookie has at least one slice."""
_LEDGERS_PER_SLICE = 100_000


class _Slice(NamedTuple):
    """The ledgers ``first`` to ``last`` (None: no end) in a bookie's index."""

    bookie_id: str
    first: int
    last: int | None


def _plan_slices(bookkeeper: BookKeeper) -> list[_Slice]:
    """Slices of each bookie's index, a task each: one slice per hundred thousand ledger ids, up to a limit."""
    bookies, ids = each_bookie(bookkeeper), bookkeeper.metadata.highest_ledger_id() + 1
    count = max(1, min(_SLICES_MAX // max(1, len(bookies)), 1 + ids // _LEDGERS_PER_SLICE))
    starts = [n * ids // count for n in range(count)]
    ends = [start - 1 for start in starts[1:]]
    return [
        _Slice(bookie_id, start, end) for bookie_id in bookies for start, end in zip(starts, [*ends, None], strict=True)
    ]


def _index_rows(bookkeeper: BookKeeper, part: _Slice, password: bytes) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    schema = to_arrow_schema(INDEX_RANGES.schema, timezone="UTC")
    for batch in range_batches(bookkeeper.context, part.bookie_id, part.first, part.last):
        columns = [pyarrow.repeat(part.bookie_id, batch.num_rows), *batch.columns]
        arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _whole_ledgers(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.Table]:
    """The same rows in tables with all rows of each of their ledgers."""
    import pyarrow

    left: pyarrow.Table | None = None
    for batch in batches:
        table = pyarrow.Table.from_batches([batch])
        if left is not None:
            table = pyarrow.concat_tables([left, table])
        ids = table["ledger_id"]
        cut = ids.index(ids[-1]).as_py()
        if cut:
            yield table.slice(0, cut)
        left = table.slice(cut)
    if left is not None:
        yield left


INDEX_RANGES = SystemTable(
    "index_ranges",
    "One row per run of consecutive entries in a bookie's index.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("ledger_id", LONG, "The ledger"),
        ("first_entry_id", LONG, "First entry"),
        ("last_entry_id", LONG, "Last entry"),
        ("entry_log", LONG, "Number of its entry log"),
        ("position", LONG, "Position of its batch; runs may share a batch"),
        ("bytes", LONG, "Bytes of that batch; count it once in sums"),
    ),
    _plan_slices,
    _index_rows,
)


def _entry_log_rows(bookkeeper: BookKeeper, bookie_id: str, password: bytes) -> Rows:
    # The logs are listed first. A log rewritten in between is listed without live bytes, which is true.
    logs = bookkeeper.list_entry_logs(bookie_id)
    uses = _uses(range_batches(bookkeeper.context, bookie_id))
    for log in logs:
        directory, _, name = log.path.rpartition("/")
        live, ledgers, entries = uses.get(log.number, (0, 0, 0))
        yield (
            bookie_id, log.number, name, directory, log.rewritten, log.sealed,
            log.size, log.synced, min(live, log.size), ledgers, entries,
        )  # fmt: skip


def _uses(batches: Iterable[pyarrow.RecordBatch]) -> dict[int, tuple[int, ...]]:
    """For each log: bytes of the indexed batches, ledgers, entries."""
    sums: dict[int, tuple[int, ...]] = {}
    for ranges in _whole_ledgers(batches):
        for log, uses in _uses_of(ranges).items():
            sums[log] = tuple(map(sum, zip(sums.get(log, (0, 0, 0)), uses, strict=True)))
    return sums


def _uses_of(ranges: pyarrow.Table) -> dict[int, tuple[int, ...]]:
    import pyarrow.compute as pc

    entries = pc.add(pc.subtract(ranges["last_entry_id"], ranges["first_entry_id"]), 1)
    batches = (
        ranges.append_column("entries", entries)
        .group_by(["log", "position"])
        # A batch is of one ledger.
        .aggregate([("bytes", "max"), ("entries", "sum"), ("ledger_id", "max")])
    )
    sums = batches.group_by("log").aggregate(
        [("bytes_max", "sum"), ("ledger_id_max", "count_distinct"), ("entries_sum", "sum")]
    )
    columns = ("bytes_max_sum", "ledger_id_max_count_distinct", "entries_sum_sum")
    return {row["log"]: tuple(row[name] for name in columns) for row in sums.to_pylist()}


ENTRY_LOGS = SystemTable(
    "entry_logs",
    "One row per entry log of a bookie, also rewritten ones.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("entry_log", LONG, "Number of the log"),
        ("name", TEXT, "Its file"),
        ("directory", TEXT, "Its directory"),
        (
            "rewritten",
            FLAG,
            "Is it a rewritten log?",
        ),
        ("sealed", FLAG, "Is it complete?"),
        ("bytes", LONG, "Length of the file"),
        ("synced_position", LONG, "Below it every byte is durable"),
        (
            "live_bytes",
            LONG,
            "Bytes of its batches with a live entry",
        ),
        ("ledgers", LONG, "Ledgers in it"),
        ("entries", LONG, "Indexed entries in it"),
    ),
    each_bookie,
    _entry_log_rows,
)


def _limbo_rows(bookkeeper: BookKeeper, bookie_id: str, password: bytes) -> Rows:
    for ledger_id, boot in sorted(bookkeeper.list_limbo(bookie_id).items()):
        yield bookie_id, ledger_id, boot


LIMBO = SystemTable(
    "limbo",
    "One row per ledger in limbo on a bookie.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("ledger_id", LONG, "The ledger"),
        ("lossy_boot", LONG, "Boot that may have lost its entries"),
    ),
    each_bookie,
    _limbo_rows,
)


class _Part(NamedTuple):
    """The ledgers of a bookie with id modulo PARTS_PER_BOOKIE = ``remainder``."""

    bookie_id: str
    remainder: int


def _plan_checksums(bookkeeper: BookKeeper) -> list[_Part]:
    return [_Part(bookie_id, n) for bookie_id in each_bookie(bookkeeper) for n in range(PARTS_PER_BOOKIE)]


def _checksum_rows(bookkeeper: BookKeeper, part: _Part, password: bytes) -> Rows:
    for ledger_id, held in _held(range_batches(bookkeeper.context, part.bookie_id), part.remainder):
        sums: list[int | None] = []
        start, unreadable = 0, 0
        for entry_id, checksum in _checksums(bookkeeper, part.bookie_id, ledger_id, held):
            if entry_id >= start + CHECKSUMS_PER_ROW:
                if sums:
                    yield part.bookie_id, ledger_id, start, sums, unreadable
                sums, unreadable, start = [], 0, entry_id - entry_id % CHECKSUMS_PER_ROW
            sums += [None] * (entry_id - start - len(sums))
            sums.append(checksum)
            unreadable += checksum is None
        if sums:
            yield part.bookie_id, ledger_id, start, sums, unreadable


def _held(batches: Iterable[pyarrow.RecordBatch], remainder: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Id of each ledger in the part, with the first and the last entry of each range."""
    for ranges in _whole_ledgers(batches):
        rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for ledger_id, first, last in zip(*(ranges[name].to_pylist() for name in RANGE_COLUMNS[:3]), strict=True):
            if ledger_id % PARTS_PER_BOOKIE == remainder:
                rows[ledger_id].append((first, last))
        yield from rows.items()


def _checksums(
    bookkeeper: BookKeeper, bookie_id: str, ledger_id: int, held: list[tuple[int, int]]
) -> Iterator[tuple[int, int | None]]:
    """Each entry of the bookie with its checksum, over the bytes that make two copies equal; None if the copy is unreadable."""
    for copies in copies_on(bookkeeper.context, bookie_id, ledger_id, held):
        if isinstance(copies, Unreadable):
            yield from ((entry_id, None) for entry_id in range(copies.first, copies.last + 1))
        else:
            for entry_id, length, payload in copies.contents():
                yield entry_id, crc32c(payload, crc32c(_LENGTH.pack(length)))


ENTRY_CHECKSUMS = SystemTable(
    "entry_checksums",
    f"One row per {CHECKSUMS_PER_ROW} entry ids of a ledger on a bookie, with the checksum of each copy there.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("ledger_id", LONG, "The ledger"),
        ("first_entry_id", LONG, f"The entry of the first checksum: a multiple of {CHECKSUMS_PER_ROW}"),
        (
            "checksums",
            LONGS,
            "CRC32C of each entry's length and payload; null: no readable copy",
        ),
        ("unreadable", LONG, "Number of indexed, unreadable entries"),
    ),
    _plan_checksums,
    _checksum_rows,
)
