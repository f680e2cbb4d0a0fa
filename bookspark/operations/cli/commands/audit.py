"""``bookspark snapshot``, ``audit`` and ``safe-to-stop``: the system tables as Delta tables, and SQL audits of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookspark.errors import ConfigurationError
from bookspark.operations.cli.terminal.command_options import Json, Zookeeper, client
from bookspark.operations.cli.terminal.output import console, print_json, progress, say
from bookspark.support.command_line import FOUND
from bookspark.support.password_option import Password
from bookspark.support.plain_text import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Checksums = Annotated[
    bool,
    typer.Option("--checksums", help="Read every copy, to find different or unreadable ones."),
]


@contextmanager
def quiet_session(name: str) -> Iterator[SparkSession]:
    """``spark.short_jobs.quiet_session``, imported late: loading Spark takes longer than most commands."""
    with ExitStack() as stack:
        with progress("starting Spark"):
            from bookspark.spark import short_jobs

            spark = stack.enter_context(short_jobs.quiet_session(name))
        yield spark


app = typer.Typer()


@app.command()
def snapshot(
    path: Annotated[str, typer.Option(help="Folder of the Delta tables, made if missing.")],
    checksums: Checksums = False,
    keep: Annotated[
        int | None,
        typer.Option(help="Keep this many newest snapshots. Default: all.", min=1),
    ] = None,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Write a snapshot of the system tables to Delta."""
    from bookspark.spark import snapshots
    from bookspark.spark.snapshots.retention import remove_files

    _check_cluster(zookeeper)
    with quiet_session("bookspark snapshot") as spark:
        with progress("writing a snapshot") as begins:
            taken = snapshots.write(spark, zookeeper, path, password, checksums=checksums, keep=keep, begins=begins)
        if keep is not None:
            remove_files(spark, path)
        say(f"snapshot {taken.snapshot_id} is version {taken.version} of the tables under {path}")


@app.command()
def audit(
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY…]", help="Names of audit queries. Default: all.")
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(help="Folder of the snapshots. Default: a new snapshot, not kept."),
    ] = None,
    version: Annotated[int | None, typer.Option(help="Version under --path. Default: the newest.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page with plots to this file.")] = None,
    checksums: Checksums = False,
    integrity_check: Annotated[
        bool,
        typer.Option("--integrity-check", help="Mark copies that running bookies lack, for autorecovery."),
    ] = False,
    zookeeper: Zookeeper = "",
    password: Password = "",
    as_json: Json = False,
) -> None:
    """Run audit queries over a snapshot. Exit status 1: findings. With --json: findings, queries that
    need --checksums, marks.
    """
    from bookspark.spark import audit
    from bookspark.spark.audit.integrity_check import mark_lacking
    from bookspark.support.arguments import check_names

    check_names(queries or (), audit.names(), "audit query")
    if integrity_check:
        _check_cluster(zookeeper)
    if checksums and path is not None:
        raise ConfigurationError(
            "--checksums is for a new snapshot: leave out --path, or take one with bookspark snapshot"
        )
    with _snapshot_at(path, zookeeper, password, checksums) as (spark, place):
        with progress("auditing") as begins:
            findings = audit.run(spark, place, version, queries or None, begins)
        if not as_json:
            audit.show(findings, console())
        if left_out := [] if queries else audit.left_out(findings):
            say(f"not audited: {', '.join(left_out)} (it takes a snapshot with --checksums)", err=True)
        if report is not None:
            audit.write_report(spark, place, version, findings, report)
        marked = mark_lacking(spark, place, zookeeper, version) if integrity_check else None
    if as_json:
        told = {"ledgers": marked.ledgers, "copies": marked.copies} if marked is not None else None
        print_json({"findings": audit.documents(findings), "not_audited": left_out, "marked": told})
    elif marked is not None:
        say(
            f"marked for repair: {counted(marked.ledgers, 'ledger')}, which lack {counted(marked.copies, 'copy')} of entries"
        )
    if any(finding.good is False for finding in findings) or (marked is not None and marked.ledgers):
        raise typer.Exit(FOUND)


@app.command()
def safe_to_stop(
    bookies: Annotated[list[str], typer.Argument(metavar="BOOKIE…", help="Ids of the bookies to stop.")],
    path: Annotated[
        str | None,
        typer.Option(help="Folder of the snapshots. Default: a new snapshot, not kept."),
    ] = None,
    zookeeper: Zookeeper = "",
    password: Password = "",
    as_json: Json = False,
) -> None:
    """Say whether bookies can be stopped: every confirmed entry keeps an ack quorum of copies, and every open ledger can be
    recovered. Exit status 1: no, or unknown. Known unreadable copies don't count; standard error says when copies were last
    read."""
    from bookspark.spark import audit

    with _snapshot_at(path, zookeeper, password) as (spark, place):
        finding = audit.safe_to_stop(spark, place, bookies)
    if as_json:
        print_json({"safe": bool(finding.good), "finding": audit.documents([finding])[0]})
    elif not finding.good:
        audit.show([finding], console())
    if not finding.good:
        raise typer.Exit(FOUND)
    if as_json:
        return
    if finding.note:
        say(finding.note, err=True)
    without = ", ".join(dict.fromkeys(bookies))
    say(
        f"safe: every confirmed entry keeps an ack quorum of copies, and every open ledger can be recovered, without {without}"
    )


def _check_cluster(zookeeper: str) -> None:
    """Raise MetadataStoreError if the cluster can't be reached, before the slow start of Spark."""
    with client(zookeeper) as bookkeeper:
        bookkeeper.metadata.bookies()


@contextmanager
def _snapshot_at(
    path: str | None, zookeeper: str, password: str, checksums: bool = False
) -> Iterator[tuple[SparkSession, str]]:
    """Yields a session and the folder of the snapshots: ``path``, or a temporary folder with a new snapshot."""
    from bookspark.spark import snapshots

    if path is None:
        _check_cluster(zookeeper)
    elif "://" not in path and not any(Path(path).glob("*/_delta_log")):
        raise ConfigurationError(f"there is no snapshot under {path}; take one with `bookspark snapshot --path {path}`")
    with ExitStack() as stack:
        place = path or stack.enter_context(tempfile.TemporaryDirectory(prefix="bookspark-audit-"))
        spark = stack.enter_context(quiet_session("bookspark audit"))
        if path is None:
            say(f"taking a snapshot of {zookeeper}", err=True)
            with progress("taking a snapshot") as begins:
                snapshots.write(spark, zookeeper, place, password, checksums=checksums, begins=begins)
        yield spark, place
