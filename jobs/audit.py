"""spark-submit entry point: run the audit queries over a snapshot and print what they find.

spark-submit jobs/audit.py --path DIRECTORY [--version N] [--report PAGE.html] [QUERY…]
spark-submit jobs/audit.py --path DIRECTORY --integrity-check HOST:PORT

The second one also has autorecovery copy to each bookie that is up what it lacks (``bookspark.spark.audit.integrity_check``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bookspark.cli.spark import plain_reason
from bookspark.errors import BookKeeperError
from bookspark.spark import audit
from bookspark.spark.audit.integrity_check import mark_lacking
from bookspark.spark.session import SPARK_ERRORS, delta_session


def main(
    path: Annotated[str, typer.Option(help="where the Delta tables of the snapshots are")],
    version: Annotated[int | None, typer.Option(help="audit this snapshot instead of the newest")] = None,
    report: Annotated[Path | None, typer.Option(help="write an HTML page with plots there as well")] = None,
    integrity_check: Annotated[
        str | None, typer.Option(help="host:port[,host:port…][/chroot] of the cluster where to mark what bookies lack")
    ] = None,
    queries: Annotated[list[str] | None, typer.Argument(help="names of audit queries; all, if none is given")] = None,
) -> None:
    """Run the audits."""
    try:
        spark = delta_session("bookspark audit")
        findings = audit.run(spark, path, version, queries or None)
        audit.show(findings, Console())
        if report is not None:
            audit.write_report(spark, path, version, findings, report)
        if integrity_check is not None:
            marked = mark_lacking(spark, path, integrity_check, version)
            print(f"{marked.ledgers} ledgers are marked for repair: bookies lack {marked.copies} copies of entries")
        spark.stop()
    except (BookKeeperError, *SPARK_ERRORS) as error:
        sys.exit(f"bookspark audit: {plain_reason(error)}")


if __name__ == "__main__":
    typer.run(main)
