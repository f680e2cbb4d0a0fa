"""Runs the audit queries: each ``*.sql`` file here, over the tables of one snapshot.

Law: a query sees one snapshot and no live state (only ``questions/history`` sees several). The system tables and the files in
``views/`` are temporary views by their names; a view may use those before it. One more table has one row: ``listed`` with
``last_ledger_id``, up to which a ledger absent from ``ledgers`` was deleted.

The driver holds nothing that grows with ledgers. Spark builds broadcasts there, so only sides that a query names are broadcast
(``/*+ BROADCAST(d) */``), with a row for each bookie at most.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from bookspark.errors import ConfigurationError
from bookspark.spark import snapshots
from bookspark.spark.session import with_settings
from bookspark.spark.tables.system_tables import TABLES
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Name, check_names, checked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from rich.console import Console

VIEWS = ("copies", "entry_ranges", "not_judged", "readability")
"""The files in ``views/``, in the order in which they use each other."""
ROWS_MAX = 1000
"""Rows of a finding; its ``total`` counts all."""
_FOLDER = files(__package__)
NEEDS = {"divergence": "entry_checksums", "unreadable_copies": "entry_checksums"}
"""Queries over an optional table, and that table."""
_NO_BROADCASTS = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1"}
"""No automatic broadcasts: their limit, 10 MiB, counts compressed columns, which may take 512 MiB of the driver's heap."""
_RESTS_ON_READABILITY = "one_loss_from_unreadable"
"""This query is only as good as the knowledge of damaged copies."""
_EMPTY_IS_GOOD = frozenset(
    {
        "autorecovery_disabled",
        "bookies_down",
        "damaged_copies",
        "deleted_ledgers",
        "directories_out_of_use",
        "divergence",
        "missing_entries",
        "not_judged_ledgers",
        "one_loss_from_unreadable",
        "orphans",
        "over_replicated_ranges",
        "placement_violations",
        "safe_to_stop",
        "stuck_ledgers",
        "under_replicated_ranges",
        "unreadable_copies",
    }
)


Begins = Callable[[str, int, int], None]
"""Called with a query's name, the number of finished queries and of all."""


@dataclass(frozen=True)
class Finding:
    name: str
    title: str
    explanation: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """At most ROWS_MAX, each with a value for each column."""
    total: int
    """Rows of the whole answer."""
    note: str = ""
    """Grounds and gaps of the answer, for people; empty if none."""

    @property
    def good(self) -> bool | None:
        """True: no fault. False: faults. None: a query that only describes."""
        return not self.rows if self.name in _EMPTY_IS_GOOD else None


def names() -> list[str]:
    return sorted(entry.name.removesuffix(".sql") for entry in _FOLDER.iterdir() if entry.name.endswith(".sql"))


@checked
def run(
    spark: SparkSession,
    path: Name,
    version: BytesOrNone | None = None,
    queries: Iterable[str] | None = None,
    begins: Begins = lambda query, number, count: None,
) -> list[Finding]:
    """Run audit queries over a snapshot under ``path``. Returns a finding for each query, in order.

    ``spark``: a session with Delta. ``version``: that of the snapshot; None: the newest. ``queries``: their names; None: all for
    which the snapshot has the tables. ``begins(query, number, count)`` is called before each query with the number of finished
    queries and of all.

    Raises ConfigurationError if there is no such snapshot or query, or if the snapshot lacks the table of a named query;
    BookKeeperError if a table is missing; and Spark's errors.
    """
    chosen = list(queries) if queries is not None else names()
    check_names(chosen, names(), "audit query")
    tables = snapshots.tables(spark, path, version)
    without = [name for name, table in NEEDS.items() if table not in tables]
    for name in chosen if queries is not None else ():
        if name in without:
            raise ConfigurationError(
                f"audit {name} needs table {NEEDS[name]}, and this snapshot was taken without it, because it reads every copy of "
                "every entry: take a snapshot with --checksums"
            )
    return run_over(spark, tables, [name for name in chosen if name not in without], begins)


@checked
def left_out(findings: Iterable[Finding]) -> list[str]:
    """Names of the audit queries without a finding here: not requested, or over a table that the snapshot lacks."""
    return sorted(set(names()) - {finding.name for finding in findings})


def run_over(
    spark: SparkSession,
    tables: Mapping[str, DataFrame],
    queries: Iterable[str],
    begins: Begins = lambda query, number, count: None,
) -> list[Finding]:
    """Run ``queries`` over these system tables. ``begins`` as in ``run``."""
    chosen = list(queries)
    listed = spark.createDataFrame([(snapshots.UNKNOWN,)], snapshots.LISTED)
    texts = [(_FOLDER / f"{name}.sql").read_text() for name in chosen]
    with _views(spark, {"listed": listed, **tables}, texts):
        note = _readability(spark, "entry_checksums" in tables) if _RESTS_ON_READABILITY in chosen else ""
        answers: list[Finding] = []
        for name, text in zip(chosen, texts, strict=True):
            begins(name, len(answers), len(chosen))
            answers.append(_answer(spark, name, text))
        return [replace(one, note=note) if one.name == _RESTS_ON_READABILITY else one for one in answers]


@checked
def safe_to_stop(spark: SparkSession, path: Name, bookies: Sequence[str]) -> Finding:
    """Damage by a loss of ``bookies`` (ids), by the newest snapshot under ``path``. No rows: it is safe to stop them.

    Rows are entries that would have fewer copies than their ack quorum, and ledgers that could not be recovered. Known unreadable
    copies do not count; ``note`` gives the age of that knowledge and the unchecked bookies. Raises ConfigurationError if there is
    no snapshot, or if it does not know a bookie; BookKeeperError if a table is missing; and Spark's errors.
    """
    tables = snapshots.tables(spark, path)
    check_names(bookies, [row.bookie_id for row in tables["bookies"].select("bookie_id").collect()], "bookie")
    stopped = spark.createDataFrame([(bookie,) for bookie in bookies], "bookie_id STRING")
    text = (_FOLDER / "questions" / "safe_to_stop.sql").read_text()
    # The age of the knowledge of damage is in view readability, which this query does not read itself.
    with _views(spark, {**tables, "stopped": stopped}, [text, "readability"]):
        answer = _answer(spark, "safe_to_stop", text)
        return replace(answer, note=_readability(spark, "entry_checksums" in tables, bookies))


@contextmanager
def question(spark: SparkSession, tables: Mapping[str, DataFrame], name: str) -> Iterator[DataFrame]:
    """The whole answer of the file ``name`` in ``questions/``, readable only inside the ``with`` block."""
    text = (_FOLDER / "questions" / f"{name}.sql").read_text()
    with _views(spark, tables, [text]):
        yield spark.sql(text)


@contextmanager
def _views(spark: SparkSession, tables: Mapping[str, DataFrame], queries: Iterable[str]) -> Iterator[None]:
    """Within: temporary views of the tables and files in ``views/`` that ``queries`` (texts) name. Absent system tables are
    empty."""
    # Only named views: Spark plans a cached view even if no query reads it, and that takes longer than a read of a small table.
    texts = {view: (_FOLDER / "views" / f"{view}.sql").read_text() for view in VIEWS}
    named = set().union(*map(_words, queries))
    for view in reversed(VIEWS):
        named |= _words(texts[view]) if view in named else set()
    cached: list[DataFrame] = []
    views: list[str] = []

    def add(name: str, content: DataFrame) -> None:
        views.append(name)
        content.createOrReplaceTempView(name)

    def add_cached(name: str, content: DataFrame) -> None:
        cached.append(content.cache())
        add(name, content)

    with with_settings(spark, _NO_BROADCASTS):
        try:
            # Each table is read once for all queries: Delta takes longer to plan a scan than Spark to read a small table.
            for table in tables.keys() & named:
                add_cached(table, tables[table])
            for table in (TABLES.keys() - tables.keys()) & named:
                add(table, _nothing(spark, TABLES[table].schema))
            for view in VIEWS:
                if view in named:
                    add_cached(view, spark.sql(texts[view]))
            yield
        finally:
            for name in reversed(views):
                spark.catalog.dropTempView(name)
            for content in reversed(cached):
                content.unpersist()


def _words(text: str) -> set[str]:
    """The words of a query, among them the names of all its tables."""
    return set(re.findall(r"\w+", text))


def _nothing(spark: SparkSession, schema: StructType) -> DataFrame:
    """A table without rows that Spark leaves out of its plans, unlike a table of an empty list."""
    from pyspark.sql.functions import lit

    columns = [lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    return spark.range(1).where("FALSE").select(columns)


def _readability(spark: SparkSession, checksums: bool, without: Sequence[str] = ()) -> str:
    """Age of the reads of the counted copies, for people. ``checksums``: the snapshot read all of them. ``without``: bookies
    whose copies don't count."""
    if checksums:
        return "every copy was read when the snapshot was taken"
    rows = [row for row in spark.table("readability").where("NOT down").collect() if row.bookie_id not in without]
    unchecked = sorted(row.bookie_id for row in rows if row.read_at is None)
    read = [row.read_at.astimezone(UTC) for row in rows if row.read_at is not None]
    notes = []
    if read:
        hours = (datetime.now(UTC) - min(read)).total_seconds() / 3600
        when = f"{hours:,.1f} hours ago or later ({min(read):%Y-%m-%d %H:%M} UTC)"
        notes.append(f"all copies of a bookie were last read {when}; what came since then was not read again")
    if unchecked:
        notes.append(f"readability was not checked on {', '.join(unchecked)}: copies there may be damaged")
    return "; ".join(notes)


def _answer(spark: SparkSession, name: str, text: str) -> Finding:
    title, explanation = head_of(text)
    answer = spark.sql(text)
    rows = answer.limit(ROWS_MAX + 1).collect()
    total = len(rows) if len(rows) <= ROWS_MAX else answer.count()
    return Finding(name, title, explanation, tuple(answer.columns), tuple(map(tuple, rows[:ROWS_MAX])), total)


def head_of(query: str) -> tuple[str, str]:
    """Title and explanation of a query: the comment at its head, before and after the first colon."""
    head = takewhile(lambda line: line.startswith("--"), query.splitlines())
    title, _, explanation = " ".join(line[2:].strip() for line in head).partition(": ")
    return title, explanation


@checked
def show(findings: Iterable[Finding], console: Console, rows_max: AtLeastOne = 20) -> None:
    """Print each finding as a table with ``rows_max`` rows at most."""
    # Imported here: queries without a terminal don't need rich.
    from rich.text import Text

    from bookspark.support.printed_tables import PrintedTable

    for finding in findings:
        if finding.good:
            note = f" ({finding.note})" if finding.note else ""
            console.print(Text.assemble(("✓", "green"), f" {finding.title}: none{note}"))
            continue
        names = [column.replace("_", " ") for column in finding.columns]
        rows = [[_text(*each) for each in zip(finding.columns, row, strict=True)] for row in finding.rows[:rows_max]]
        caption = f"{rows_max} of {finding.total:,}" if finding.total > rows_max else ""
        style = "red" if finding.good is False else "bold"
        console.print(PrintedTable(names, rows, finding.title, caption=caption, style=style))
        if finding.note:
            console.print(Text(finding.note))


def _text(column: str, value: Any) -> str:
    # An id has no thousands: commands take it.
    return str(value) if column.endswith("_id") and isinstance(value, int) else cell(value)


@checked
def documents(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Each finding as a JSON object. ``rows`` are objects too, ROWS_MAX at most. Times and other values without a JSON type are
    texts."""
    names, documents = ("name", "title", "explanation", "good", "total", "note"), []
    for finding in findings:
        rows = [dict(zip(finding.columns, row, strict=True)) for row in finding.rows]
        documents.append({**{name: getattr(finding, name) for name in names}, "rows": rows})
    plain: list[dict[str, Any]] = json.loads(json.dumps(documents, default=str))
    return plain


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return (
            " ".join(map(str, value)) if not any(isinstance(v, list) for v in value) else " | ".join(map(cell, value))
        )
    return str(value)
