"""``bookspark snapshot`` and ``bookspark audit``: the system tables as Delta, and what SQL finds in them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookspark.cli.command_options import Password, Zookeeper, client
from bookspark.cli.output import console
from bookspark.cli.spark import quiet_session
from bookspark.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOUND = 1
Checksums = Annotated[
    bool,
    typer.Option("--checksums", help="Read every copy of every entry, to find those that differ or can't be read."),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(snapshot)
    app.command()(audit)
    app.command()(safe_to_stop)


def snapshot(
    path: Annotated[str, typer.Option(help="Where the Delta tables are, or shall be.")],
    checksums: Checksums = False,
    keep: Annotated[int | None, typer.Option(help="Give up all but the newest so many snapshots.", min=1)] = None,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Write one snapshot of the system tables to Delta: what the metadata says, and what the bookies hold."""
    from bookspark.spark import snapshots
    from bookspark.spark.snapshots.retention import remove_files

    _check_cluster(zookeeper)
    with quiet_session("bookspark snapshot") as spark:
        taken = snapshots.write(spark, zookeeper, path, password, checksums=checksums, keep=keep)
        if keep is not None:
            remove_files(spark, path)
        typer.echo(f"snapshot {taken.snapshot_id} is version {taken.version} of the tables under {path}")


def audit(
    queries: Annotated[list[str] | None, typer.Argument(metavar="[QUERY…]", help="Which; all by default.")] = None,
    path: Annotated[
        str | None, typer.Option(help="Audit the newest snapshot there; by default a new one, which is not kept.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Audit this version of the snapshots under --path.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with plots there as well.")] = None,
    checksums: Checksums = False,
    integrity_check: Annotated[
        bool, typer.Option("--integrity-check", help="Have autorecovery copy to each bookie that is up what it lacks.")
    ] = False,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Run audit queries over a snapshot. Ends with status 1 if they find something that should not be."""
    from bookspark.protocol.ledger.option_checks import check_names
    from bookspark.spark import audit
    from bookspark.spark.audit.integrity_check import mark_lacking

    check_names(queries or (), audit.names(), "audit query")
    if integrity_check:
        _check_cluster(zookeeper)
    if checksums and path is not None:
        raise ConfigurationError(
            "--checksums is for a new snapshot: leave out --path, or take one with bookspark snapshot"
        )
    with _snapshot_at(path, zookeeper, password, checksums) as (spark, place):
        findings = audit.run(spark, place, version, queries or None)
        audit.show(findings, console())
        if left_out := [] if queries else audit.left_out(findings):
            typer.echo(f"not audited: {', '.join(left_out)} (it takes a snapshot with --checksums)", err=True)
        if report is not None:
            audit.write_report(spark, place, version, findings, report)
        if integrity_check:
            marked = mark_lacking(spark, place, zookeeper, version)
            typer.echo(
                f"{marked.ledgers} ledgers are marked for repair: bookies lack {marked.copies} copies of entries"
            )
    if any(finding.good is False for finding in findings):
        raise typer.Exit(_FOUND)


def safe_to_stop(
    bookies: Annotated[list[str], typer.Argument(metavar="BOOKIE…", help="Ids of the bookies to be stopped.")],
    path: Annotated[
        str | None, typer.Option(help="Go by the newest snapshot there; by default by a new one, which is not kept.")
    ] = None,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Say whether each confirmed entry keeps an ack quorum of copies without these bookies, and each open ledger could be
    recovered. Ends with status 1 if not, or if that can't be known of a ledger."""
    from bookspark.spark import audit

    with _snapshot_at(path, zookeeper, password) as (spark, place):
        finding = audit.safe_to_stop(spark, place, bookies)
    if not finding.good:
        audit.show([finding], console())
        raise typer.Exit(_FOUND)
    without = ", ".join(bookies)
    typer.echo(
        f"safe: every confirmed entry keeps an ack quorum of copies, and every open ledger can be recovered, without {without}"
    )


def _check_cluster(zookeeper: str) -> None:
    """Raise MetadataStoreError if the cluster can't be reached: Spark takes long to start, only to say so."""
    with client(zookeeper) as bookkeeper:
        bookkeeper.metadata.bookies()


@contextmanager
def _snapshot_at(
    path: str | None, zookeeper: str, password: str, checksums: bool = False
) -> Iterator[tuple[SparkSession, str]]:
    """A session, and where the snapshots are: ``path``, or a new one that is gone afterwards."""
    from bookspark.spark import snapshots

    if path is None:
        _check_cluster(zookeeper)
    elif "://" not in path and not any(Path(path).glob("*/_delta_log")):
        raise ConfigurationError(f"there is no snapshot under {path}; take one with `bookspark snapshot --path {path}`")
    with ExitStack() as stack:
        place = path or stack.enter_context(tempfile.TemporaryDirectory(prefix="bookspark-audit-"))
        spark = stack.enter_context(quiet_session("bookspark audit"))
        if path is None:
            typer.echo(f"taking a snapshot of {zookeeper}", err=True)
            snapshots.write(spark, zookeeper, place, password, checksums=checksums)
        yield spark, place
