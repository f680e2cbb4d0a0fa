"""The main job's report: the input, the log, the speed, and where everything lies."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from bookspark.lab.demo.inputs import Content
from bookspark.lab.demo.run_folder import RunFolder
from bookspark.lab.demo.spark_side import LOG, Ingested, rate_text
from bookspark.protocol.logs.log_record import COMMIT_ROLE, DATA_ROLE, LOG_LABEL, ROLE_LABEL
from bookspark.support.plain_text import size_text

if TYPE_CHECKING:
    from rich.console import Console

    from bookspark.store.client import BookKeeper


@dataclass(frozen=True)
class Report:
    """Facts of a run that succeeded."""

    source: str
    """Where the input came from."""
    content: Content
    """Figures of the input."""
    ingested: Ingested
    """Figures of the query that wrote it."""
    read_seconds: float
    """Time of reading the log back."""
    ledgers: str
    """The log's ledgers."""
    bookies: Sequence[str]
    """A line for each bookie."""
    run: RunFolder
    """The run's folder."""
    seconds: float
    """Time of the whole run so far."""


def describe_ledgers(bookkeeper: BookKeeper) -> str:
    """The ledgers of the log by their roles."""
    roles: dict[str, list[int]] = {DATA_ROLE: [], COMMIT_ROLE: []}
    for metadata, _ in bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {}):
        ledger_id, labels = metadata.ledger_id, metadata.custom_metadata
        if labels.get(LOG_LABEL) == LOG.encode():
            roles.setdefault(labels.get(ROLE_LABEL, b"").decode(), []).append(ledger_id)
    return ", ".join(f"{len(ids)} {role} ({', '.join(map(str, ids))})" for role, ids in roles.items() if ids)


def describe_bookies(bookkeeper: BookKeeper, bookies: Sequence[dict[str, Any]], run: RunFolder) -> list[str]:
    """A line for each bookie: its id, how much it holds, and its directories."""
    lines = []
    for bookie in sorted(bookies, key=lambda bookie: str(bookie["home"])):
        status = bookkeeper.bookie_status(bookie["bookie_id"])
        places = ", ".join(_inside(run, Path(directory)) for directory in status.directories)
        held = f"{size_text(status.log_bytes)} of {status.ledgers} ledgers"
        lines.append(f"{bookie['bookie_id']}: {held} in {places}")
    return lines


def show(console: Console, report: Report) -> None:
    """Print the report."""
    content, ingested, run = report.content, report.ingested, report.run
    lines, size = content.lines, size_text(content.size)
    write_rate = rate_text(lines, content.size, ingested.seconds)
    read_rate = rate_text(lines, content.size, report.read_seconds)
    facts = [
        ("input", f"{lines:,} lines, {size} (longest {size_text(content.longest)}) from {report.source}"),
        ("log", f"{LOG}: {lines:,} entries, {size} in {ingested.batches} micro-batches, read back equal"),
        ("written", f"{write_rate} (micro-batches of {ingested.seconds:.1f} s in all)"),
        ("read", f"{read_rate} (and hashed by Spark, in {report.read_seconds:.1f} s)"),
        ("ledgers", report.ledgers),
        ("bookies", "\n".join(report.bookies)),
        ("all of it in", str(run.path)),
        ("Delta tables", _inside(run, run.snapshots)),
        ("ZooKeeper", _inside(run, run.zookeeper)),
        ("event logs", _inside(run, run.event_logs)),
        ("Spark checkpoint", _inside(run, run.checkpoint)),
        ("details", f"{_inside(run, run.log)}, {_inside(run, run.bookies_log)}"),
        ("took", f"{report.seconds:.0f} s"),
    ]
    table = Table(title="Main job", title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, escape(text))
    console.print(table)


def _inside(run: RunFolder, path: Path) -> str:
    return str(path.relative_to(run.path))


def pasteable_lines(zookeeper: str) -> list[tuple[str, str]]:
    """Pairs of a word (write, read, audit) and the line for a shell that does it."""
    command = shlex.quote(str(Path(sys.executable).with_name("bookspark")))
    cluster = f"--zookeeper {shlex.quote(zookeeper)}"
    return [
        ("write", f"ledger=$(printf 'hello\\nworld\\n' | {command} ledger append {cluster}); echo \"ledger $ledger\""),
        ("read", f'{command} ledger read {cluster} "$ledger"'),
        ("audit", f"{command} audit {cluster}"),
    ]
