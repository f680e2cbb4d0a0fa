"""System tables of ledgers: their metadata, and the places of their entries by that metadata.

Law: rows with the same ``metadata_version`` show the same state of a ledger, in all tables. A ledger whose record can't be
decoded is named in ``ledgers`` and has no rows in the others. Bookies of a ledger that is not closed report its last add
confirmed before its record is read, so confirmed entries are where the record says. The plan has ranges of ids instead of ids, so
neither it nor the tasks' arguments grow with the ledgers.

``ledger_records`` has all of it in one read, for snapshots: each of the three tables is a part of its columns (``parts_of``).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import ArrayType, StructType

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_ID_LABEL, LOG_LABEL, ROLE_LABEL
from bookspark.spark.tables.table import INT, LONG, TEXT, TEXTS, TIME, Rows, SystemTable, text, time
from bookspark.store.metadata.records.ledger_spans import IDS_PER_SPAN, ranges_of

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import DataFrame

    from bookspark.store.client import BookKeeper

log = logging.getLogger(__name__)

UNREADABLE = "UNREADABLE"
"""State of a ledger whose record can't be decoded."""
LEDGERS_PER_PARTITION = 2000
"""Approximate least number of ledgers of a task."""
PARTITIONS_MAX = 48
"""Approximate limit of tasks that read all ledgers: a snapshot has a file of each."""
_OPEN_AT_ONCE, _GROUP = 16, 500
"""Simultaneous questions about open ledgers, and ledgers in a group that is searched for them."""


class Ids(NamedTuple):
    """The ledgers that a task reads. It lists them itself: the driver's side never holds them."""

    first: int
    last: int

    def listed(self, bookkeeper: BookKeeper) -> Iterator[int]:
        return bookkeeper.metadata.list_ledgers_between(self.first, self.last)


def _plan_ledgers(bookkeeper: BookKeeper) -> list[Ids]:
    spans = bookkeeper.metadata.ledger_spans()
    each = max(LEDGERS_PER_PARTITION, math.ceil(sum(span.ledgers for span in spans) / PARTITIONS_MAX))
    return [Ids(*ids) for ids in ranges_of(spans, each)]


def _id_rows(bookkeeper: BookKeeper, ids: Ids, password: bytes) -> Rows:
    first = last = -1
    for ledger_id in ids.listed(bookkeeper):
        if first >= 0 and (ledger_id != last + 1 or ledger_id % IDS_PER_SPAN == 0):
            yield first, last
            first = -1
        first, last = first if first >= 0 else ledger_id, ledger_id
    if first >= 0:
        yield first, last


def _metadata(
    bookkeeper: BookKeeper, ledger_ids: Iterable[int], unreadable: list[int] | None = None
) -> Iterator[tuple[LedgerMetadata, int]]:
    """Each ledger's metadata and its version, without ledgers deleted since the listing. Ledgers whose record can't be decoded go
    to ``unreadable``."""
    reasons: dict[int, str] = {}
    yield from bookkeeper.metadata.read_ledgers(ledger_ids, reasons)
    for ledger_id, why in reasons.items():
        log.warning("ledger %d: %s", ledger_id, why)
    if unreadable is not None:
        unreadable += reasons


def _last_add_confirmed(bookkeeper: BookKeeper, metadata: LedgerMetadata, password: bytes) -> int | None:
    """The highest entry known to be confirmed (LAC, last add confirmed); None if no bookie reports it.

    Every entry before the last fragment is confirmed, whatever bookies report.
    """
    try:
        with bookkeeper.open_ledger_no_recovery(metadata.ledger_id, password=password) as reader:
            return max(metadata.last_fragment.first_entry_id - 1, reader.last_add_confirmed)
    except BookKeeperError:
        return None


def _with_last_add_confirmed(
    bookkeeper: BookKeeper, ids: Ids, password: bytes, unreadable: list[int]
) -> Iterator[tuple[LedgerMetadata, int, int | None]]:
    """As ``_metadata``, with the LAC. Bookies are asked about several open ledgers at a time."""
    with ThreadPoolExecutor(_OPEN_AT_ONCE) as pool:
        records = _metadata(bookkeeper, ids.listed(bookkeeper), unreadable)
        while group := list(islice(records, _GROUP)):
            still_open = [ledger for ledger, _ in group if not ledger.closed]
            answers = pool.map(lambda ledger: _last_add_confirmed(bookkeeper, ledger, password), still_open)
            confirmed = {ledger.ledger_id: lac for ledger, lac in zip(still_open, answers, strict=True)}
            # After a change of ensemble meanwhile, the newer record has the places of entries up to this LAC.
            newer = {one.ledger_id: (one, version) for one, version in _metadata(bookkeeper, confirmed, unreadable)}
            for metadata, version in group:
                if metadata.ledger_id in confirmed:
                    if metadata.ledger_id not in newer:
                        continue
                    metadata, version = newer[metadata.ledger_id]
                lac = metadata.last_entry_id if metadata.closed else confirmed[metadata.ledger_id]
                yield metadata, version, lac


def _record_rows(parts: Sequence[SystemTable], bookkeeper: BookKeeper, ids: Ids, password: bytes) -> Rows:
    """Rows of ``LEDGERS``, each with the record's rows in ``parts``."""
    unreadable: list[int] = []
    for metadata, version, confirmed in _with_last_add_confirmed(bookkeeper, ids, password, unreadable):
        yield *_ledger_row(metadata, version, confirmed), *(_structs(table, metadata) for table in parts)
    for ledger_id in unreadable:
        yield ledger_id, None, UNREADABLE, *[None] * (len(LEDGERS.columns) - 3), *([] for _ in parts)


def _structs(table: SystemTable, metadata: LedgerMetadata) -> list[dict[str, Any]]:
    """The record's rows in ``table``, without the common columns of tables of ledgers."""
    rows = _fragments(metadata) if table is FRAGMENTS else _losses(metadata)
    names = [name for name, _, _ in table.columns[_IN_COMMON:]]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _ledger_row(metadata: LedgerMetadata, version: int, confirmed: int | None) -> tuple[Any, ...]:
    labels = metadata.custom_metadata
    return (
        metadata.ledger_id,
        version,
        metadata.state.value,
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        metadata.digest_type.value,
        metadata.ledger_type.value,
        metadata.replication.value,
        metadata.last_entry_id if metadata.closed else None,
        metadata.length if metadata.closed else None,
        confirmed,
        len(metadata.fragments),
        time(metadata.ctime_ms),
        text(labels.get(LOG_LABEL)),
        _number(labels.get(EPOCH_LABEL)),
        text(labels.get(ROLE_LABEL)),
        _number(labels.get(LOG_ID_LABEL)),
        json.dumps({name: text(value) for name, value in sorted(labels.items())}),
    )


def _number(label: bytes | None) -> int | None:
    return int(label) if label is not None and label.isdigit() and len(label) < 19 else None


def _rows_of(parts: Callable[[LedgerMetadata], Rows], bookkeeper: BookKeeper, ids: Ids, password: bytes) -> Rows:
    for metadata, version in _metadata(bookkeeper, ids.listed(bookkeeper)):
        for row in parts(metadata):
            yield metadata.ledger_id, version, *row


def _fragments(metadata: LedgerMetadata) -> Rows:
    for number, (fragment, last) in enumerate(metadata.fragment_ranges()):
        yield number, fragment.first_entry_id, last, list(fragment.ensemble)


def _losses(metadata: LedgerMetadata) -> Rows:
    accepted = metadata.accepted_loss
    if accepted is None:
        return
    for loss in accepted.losses:
        yield (
            loss.kind.value, loss.first, loss.last, list(loss.bookies),
            accepted.by, time(accepted.at_ms), list(accepted.named),
        )  # fmt: skip


LEDGER_IDS = SystemTable(
    "ledger_ids",
    "One row per run of consecutive ledger ids.",
    (
        ("first_ledger_id", LONG, "First id"),
        ("last_ledger_id", LONG, f"Last id of the run; a run ends before each multiple of {IDS_PER_SPAN:,}"),
    ),
    _plan_ledgers,
    _id_rows,
)

ACCEPTED_LOSSES = SystemTable(
    "accepted_losses",
    "One row per loss that an operator accepted to close a ledger.",
    (
        ("ledger_id", LONG, "The ledger"),
        ("metadata_version", INT, "Version of the ledger's record"),
        (
            "kind",
            TEXT,
            "Unknown: confirmed entries (entries), a next entry (end), bookies' fences (fence)",
        ),
        ("first_entry_id", LONG, "First entry; -1: fence"),
        ("last_entry_id", LONG, "Last entry; -1: fence"),
        ("bookies", TEXTS, "Its bookies, to which repair copies no lost entries"),
        ("accepted_by", TEXT, "Who accepted it"),
        ("accepted_at", TIME, "Time"),
        ("named", TEXTS, "Bookies declared lost for good"),
    ),
    _plan_ledgers,
    partial(_rows_of, _losses),
)

LEDGERS = SystemTable(
    "ledgers",
    "One row per ledger: its metadata.",
    (
        ("ledger_id", LONG, "The ledger"),
        ("metadata_version", INT, "Version of the ledger's record"),
        ("state", TEXT, "OPEN, IN_RECOVERY, CLOSED or UNREADABLE (undecodable record)"),
        ("ensemble_size", INT, "Ensemble size"),
        ("write_quorum", INT, "Copies of each entry"),
        ("ack_quorum", INT, "Copies that acknowledge an entry"),
        ("digest_type", TEXT, "Digest type"),
        ("ledger_type", TEXT, "PD_JOURNAL or VD_JOURNAL"),
        ("replication", TEXT, "best_effort or guaranteed"),
        ("last_entry_id", LONG, "Last entry (-1: none); null while not closed"),
        ("length", LONG, "Bytes of payload; null while not closed"),
        (
            "last_add_confirmed",
            LONG,
            "Highest known confirmed entry; -1: none; null: unknown",
        ),
        ("fragments", INT, "Number of fragments"),
        ("created_at", TIME, "Time of creation"),
        ("log", TEXT, "Its log; null if none"),
        ("log_epoch", LONG, "Epoch of the log at creation"),
        ("log_role", TEXT, "commit or data"),
        ("log_id", LONG, "Id of its log"),
        ("custom_metadata", TEXT, "Custom metadata, a JSON object; bytes are escaped"),
    ),
    _plan_ledgers,
    partial(_record_rows, ()),
)

FRAGMENTS = SystemTable(
    "fragments",
    "One row per fragment of each ledger: which bookies hold which entries.",
    (
        ("ledger_id", LONG, "The ledger"),
        ("metadata_version", INT, "Version of the ledger's record"),
        ("fragment", INT, "Number in the ledger, from 0"),
        ("first_entry_id", LONG, "First entry"),
        (
            "last_entry_id",
            LONG,
            "Last entry; null at the open end of a ledger",
        ),
        ("ensemble", TEXTS, "Bookie ids: entry e is on place e mod size and the next ones"),
    ),
    _plan_ledgers,
    partial(_rows_of, _fragments),
)

_IN_COMMON = 2
"""Common first columns of all tables of ledgers: ledger and version."""


def _array_of(table: SystemTable) -> ArrayType:
    return ArrayType(StructType(table.schema.fields[_IN_COMMON:]))


LEDGER_RECORDS = SystemTable(
    "ledger_records",
    "One row per ledger: its rows in ledgers, fragments and accepted_losses, from one read.",
    (
        *LEDGERS.columns,
        ("fragment_rows", _array_of(FRAGMENTS), "Its rows in fragments"),
        ("loss_rows", _array_of(ACCEPTED_LOSSES), "Its rows in accepted_losses"),
    ),
    _plan_ledgers,
    partial(_record_rows, (FRAGMENTS, ACCEPTED_LOSSES)),
)


def parts_of(records: DataFrame) -> dict[str, DataFrame]:
    """The tables that are parts of ``ledger_records``, by name."""
    common = [name for name, _, _ in LEDGERS.columns[:_IN_COMMON]]
    return {
        LEDGERS.name: records.select(LEDGERS.schema.names),
        FRAGMENTS.name: records.selectExpr(*common, "inline(fragment_rows)").to(FRAGMENTS.schema),
        ACCEPTED_LOSSES.name: records.selectExpr(*common, "inline(loss_rows)").to(ACCEPTED_LOSSES.schema),
    }
