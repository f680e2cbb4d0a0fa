"""Run audit queries over a snapshot and print what they find.

    spark-submit $(bookspark job audit) --path DIRECTORY [--version N] [--report PAGE.html] [QUERY…]
    spark-submit $(bookspark job audit) --path DIRECTORY --integrity-check HOST:PORT

``--integrity-check`` marks ledgers with lacking copies on live bookies, so autorecovery copies them
(``bookspark.spark.audit.integrity_check``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bookspark.spark import audit
from bookspark.spark.audit.integrity_check import mark_lacking
from bookspark.spark.session import delta_session
from bookspark.spark.short_jobs import run_job
from bookspark.support.command_line import FOUND
from bookspark.support.plain_text import counted
from bookspark.support.printed_tables import width_of


def main(
    path: Annotated[str, typer.Option(help="Folder of the snapshots' Delta tables.")],
    version: Annotated[int | None, typer.Option(help="Version of the snapshots. Default: the newest.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page with plots to this file.")] = None,
    integrity_check: Annotated[
        str | None, typer.Option(help="Mark what bookies lack in this cluster: host:port[,host:port…][/chroot].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    queries: Annotated[list[str] | None, typer.Argument(help="Names of audit queries. Default: all.")] = None,
) -> None:
    """Run audit queries over a snapshot and print the findings. Exit status 1: findings."""
    spark = delta_session("bookspark audit")
    findings = audit.run(spark, path, version, queries or None)
    if report is not None:
        audit.write_report(spark, path, version, findings, report)
    marked = mark_lacking(spark, path, integrity_check, version) if integrity_check is not None else None
    spark.stop()
    if as_json:
        told = {"ledgers": marked.ledgers, "copies": marked.copies} if marked is not None else None
        print(json.dumps({"findings": audit.documents(findings), "marked": told}, indent=2))
    else:
        audit.show(findings, Console(width=width_of(sys.stdout)))
        if marked is not None:
            print(
                f"marked for repair: {counted(marked.ledgers, 'ledger')}, which lack {counted(marked.copies, 'copy')} of entries"
            )
    if any(finding.good is False for finding in findings) or (marked is not None and marked.ledgers):
        raise typer.Exit(FOUND)


if __name__ == "__main__":
    run_job("audit", main)
