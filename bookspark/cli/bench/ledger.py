"""``bookspark bench ledger``: appends, reads, recovery and what they cost, over three bookies of this host.

Each workload prints one JSON line: its label and numbers (``cases``), then what was measured; times are milliseconds unless
their name says seconds, sizes bytes. Latencies are those that a caller sees: until the entry is acknowledged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bookspark.cli.bench.cases import WORKLOADS, Turn

SYSTEM = "bookspark"


def ledger(
    turn: Annotated[
        list[Turn] | None, typer.Option(help="Only these workloads, each turn on a fresh cluster; may be repeated.")
    ] = None,
    scale: Annotated[float, typer.Option(min=0.0, help="So many times the usual number of entries.")] = 1.0,
    directory: Annotated[
        Path | None, typer.Option(help="A folder on the disk to be measured; by default a temporary one.")
    ] = None,
) -> None:
    """Time one client and three bookies of this host, E 3, WQ 3, AQ 2, CRC32C, every append synced before its ack."""
    from bookspark.cli.bench.workloads import measure  # loads the client, which other commands need not wait for

    for each in turn or Turn:
        for workload, figures in measure(each, [workload.scaled(scale) for workload in WORKLOADS[each]], directory):
            line: dict[str, Any] = {"label": workload.label, "system": SYSTEM, **workload.numbers(), **figures}
            typer.echo(json.dumps(line))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(ledger)
