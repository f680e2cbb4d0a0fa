"""``bookspark log …``: the logs that Spark queries and services write."""

from __future__ import annotations

import json
import sys
from collections import deque
from datetime import UTC, date, datetime, time
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookspark.cli.commands.ledger import AckQuorum, Copies, Digest, Ensemble, Type, WriteQuorum
from bookspark.cli.terminal.command_options import Json, Password, Yes, Zookeeper, client
from bookspark.cli.terminal.output import console, payload_document, table
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.logs.commits import START
from bookspark.protocol.logs.lanes import BATCH_WRITES, lane_name, lane_of, writer_of
from bookspark.protocol.logs.log_record import LOG_LABEL, Compression, LogOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookspark.logs import LogRow
    from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

_TIME = "ms since 1970, or ISO 8601 with an offset, like 2026-11-22T14:05:00+01:00"

app = typer.Typer(help="Create, look at, truncate and delete logs.", no_args_is_help=True, rich_markup_mode=None)

LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log.")]
LaneName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log, or of one of its lanes: orders@3.")]


@app.command()
def create(
    log: LogName,
    zookeeper: Zookeeper = "",
    ensemble_size: Ensemble = 3,
    write_quorum: WriteQuorum = 3,
    ack_quorum: AckQuorum = 2,
    digest_type: Digest = DigestType.CRC32C,
    ledger_type: Type = LedgerType.PD_JOURNAL,
    replication: Copies = Replication.BEST_EFFORT,
    compression: Annotated[
        Compression,
        typer.Option(case_sensitive=False, help="How payloads are compressed. zstd_dictionary is for small values."),
    ] = Compression.NONE,
    password: Password = "",
) -> None:
    """Make an empty log of values, so that readers can start before the first writer. Its options can't be changed later.

    The first write makes a log too, with its own options. A log that keeps all columns (rowFormat arrow) can only be made by its
    first write, which tells the columns."""
    from bookspark.logs import LogRegistry

    options = LogOptions(
        ensemble_size, write_quorum, ack_quorum, digest_type, ledger_type, replication, compression=compression
    )
    with client(zookeeper) as bookkeeper:
        LogRegistry(bookkeeper.metadata).create(log, options, password.encode())


@app.command("list")
def list_logs(zookeeper: Zookeeper = "") -> None:
    """Print the name of each log, one a line."""
    from bookspark.logs import LogRegistry

    with client(zookeeper) as bookkeeper:
        for name in LogRegistry(bookkeeper.metadata).names():
            typer.echo(name)


@app.command()
def describe(log: LaneName, zookeeper: Zookeeper = "", password: Password = "", as_json: Json = False) -> None:
    """Print a log's options, its owner, its commits and the ledgers that hold its rows."""
    from bookspark.logs import LogRegistry, check_password, commits

    with client(zookeeper) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        record, lanes = registry.get(log), registry.lanes_of(log)
        check_password(record, password.encode())
        records = {lane: registry.get(lane) for lane in lanes}
        by_lane = {lane: list(commits(bookkeeper, lane, password.encode())) for lane in lanes}
    writers = {record.name: writer_of(record.owner_query) if record.owner_query else BATCH_WRITES}
    writers |= {lane_name(record.name, lane.number): lane.writers[-1] for lane in record.lanes}
    found = list(chain.from_iterable(by_lane.values()))
    ends = {lane: placed[-1].after if placed else START for lane, placed in by_lane.items()}
    ranges = list(chain.from_iterable(placed.commit.ranges for placed in found))
    facts: dict[str, Any] = {
        "log": log,
        "created": _time(record.ctime_ms),
        "epoch": record.epoch,
        "owner": record.owner,
        "ensemble_size": record.options.ensemble_size,
        "write_quorum": record.options.write_quorum,
        "ack_quorum": record.options.ack_quorum,
        "digest_type": record.options.digest_type.value,
        "ledger_type": record.options.ledger_type.value,
        "replication": record.options.replication.value,
        "row_format": record.options.row_format.value,
        "compression": record.options.compression.value,
        "commits": sum(end.batches for end in ends.values()),
        "last_commit": _time(max(placed.commit.time_ms for placed in found)) if found else None,
        "first_position": record.first_position,
        "offloaded_to": record.offload.table if record.offload is not None else None,
        "offloaded_rows": record.offload.position if record.offload is not None else None,
        "rows": sum(end.rows for end in ends.values()),
        "bytes": sum(end.size for end in ends.values()),
        "commit_ledgers": [link.ledger_id for one in records.values() for link in one.commit_ledgers],
        "data_ledgers": sorted({item.ledger_id for item in ranges}),
        "lanes": [f"{lane}: {end.rows:,} rows, {writers[lane]}" for lane, end in ends.items()],
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        console().print(table("", ("", log), [(name, _shown(value)) for name, value in list(facts.items())[1:]]))


@app.command()
def read(
    log: LaneName,
    from_row: Annotated[int | None, typer.Option(min=0, help="The first row to print. Of a log of one lane.")] = None,
    until_row: Annotated[int | None, typer.Option(min=0, help="The row to end before. Of a log of one lane.")] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Rows that were committed then or later. {_TIME}.")] = "",
    before: Annotated[str, typer.Option(metavar="TIME", help="Rows that were committed before this time.")] = "",
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Print the committed rows of a log, lane by lane, in their order, each followed by a line break. Rows of several columns are
    printed as JSON."""
    from bookspark.logs import LogRegistry, commits
    from bookspark.logs.chain.commit_times import row_at
    from bookspark.logs.rows.encodings import RowDecoder
    from bookspark.logs.rows.splits import SizedPiece, positioned, split
    from bookspark.spark.connector.source import VALUE_SCHEMA
    from bookspark.spark.offload.offloaded import rows_of
    from bookspark.spark.rows.row_format import columns_of
    from bookspark.spark.rows.rows import row_decoder

    out = sys.stdout.buffer
    secret = password.encode()
    times = [_time_ms("since", since), _time_ms("before", before)]
    with client(zookeeper) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        columns = columns_of(registry.get(log).options)
        lanes = registry.lanes_of(log)
        if len(lanes) > 1 and (from_row, until_row) != (None, None):
            raise typer.BadParameter(
                f"log {log} has {len(lanes)} lanes, and a row is a row of one of them: read one lane, for example {log}@0",
                param_hint="--from-row, --until-row",
            )

        def span(lane: str) -> tuple[int, int | None]:
            since_row, before_row = (None if ms is None else row_at(bookkeeper, lane, secret, ms) for ms in times)
            first = max(registry.get(lane).first_position, from_row or 0, since_row or 0)
            return first, min((row for row in (until_row, before_row) if row is not None), default=None)

        def decoder(metadata: LedgerMetadata) -> RowDecoder:
            lane = metadata.custom_metadata.get(LOG_LABEL, log.encode()).decode()
            return row_decoder(metadata, columns, lambda: registry.get(lane).dictionary)

        def pieces() -> Iterator[SizedPiece]:
            for lane in lanes:
                (first, end), number = span(lane), lane_of(lane)[1]
                for placed in commits(bookkeeper, lane, secret, first):
                    if end is not None and placed.before.rows >= end:
                        break
                    yield from positioned(placed.commit.ranges, placed.before.rows, first, end, lane=number)

        for part in map(deque, split(pieces(), 1)):
            while part:
                for rows in rows_of(bookkeeper, log, secret, part, columns or VALUE_SCHEMA, decoder):
                    lines = rows.column(0).to_pylist() if columns is None else map(_json, rows.to_pylist())
                    out.writelines(line + b"\n" for line in lines)
    out.flush()


@app.command()
def append(
    log: LogName,
    producer: Annotated[str, typer.Option(metavar="NAME", help="Whose lane the rows go to.")] = "command-line",
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Append each line of the standard input to a log, as a row. A row is there as soon as it was read and acknowledged; the
    command ends when all are. A second command with the same --producer ends this one."""
    from bookspark.logs import open_log

    with client(zookeeper) as bookkeeper, open_log(bookkeeper, log, password.encode()).producer(producer) as rows:
        future, count = None, 0
        for line in sys.stdin.buffer:
            future, count = rows.append_async(line.removesuffix(b"\n")), count + 1
        # Rows are acknowledged in their order, and an error is that of all rows after it.
        last = future.result() if future is not None else None
    end = f", the last one is row {last.position}" if last is not None else ""
    typer.echo(f"{count:,} rows appended to lane {rows.lane} of log {log}{end}")


@app.command()
def tail(
    log: LaneName,
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Begin with rows of this time. {_TIME}.")] = "",
    zookeeper: Zookeeper = "",
    password: Password = "",
    as_json: Json = False,
) -> None:
    """Print the rows that come to a log, until it is interrupted: each value and a line break, or with --json a JSON object that
    has the row's lane, position and time too."""
    from bookspark.logs import open_log

    time_ms, out = _time_ms("since", since), sys.stdout.buffer
    with client(zookeeper) as bookkeeper, open_log(bookkeeper, log, password.encode()).reader("latest") as reader:
        if time_ms is not None:
            reader.seek_to_time(datetime.fromtimestamp(time_ms / 1000, UTC))
        for row in reader.follow():
            out.write((_row_document(row) if as_json else row.value) + b"\n")
            out.flush()


@app.command()
def truncate(
    log: LaneName,
    row: Annotated[int, typer.Argument(metavar="ROW", min=0, help="Position of the first row that is kept.")],
    yes: Yes = False,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Remove the rows before ROW from a log. Ledgers that hold nothing else are deleted. Ledgers of a running query are deleted
    once it has ended."""
    from bookspark.logs import truncate_log

    if not yes:
        typer.confirm(f"Remove the rows before row {row} from log {log} for ever?", abort=True, err=True)
    with client(zookeeper) as bookkeeper:
        deleted = truncate_log(bookkeeper, log, row, password.encode())
    typer.echo(f"log {log} begins at row {row}; ledgers deleted: {', '.join(map(str, deleted)) or 'none'}")


@app.command()
def collect(log: LaneName, zookeeper: Zookeeper = "", password: Password = "") -> None:
    """Delete ledgers that killed tasks and queries left behind, and that can never become part of LOG. (The next query deletes
    recent ones by itself.)"""
    from bookspark.logs import collect_orphans

    with client(zookeeper) as bookkeeper:
        deleted = collect_orphans(bookkeeper, log, password.encode())
    typer.echo(f"log {log}: ledgers deleted: {', '.join(map(str, deleted)) or 'none'}")


@app.command()
def delete(
    log: LogName,
    yes: Yes = False,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Delete a log, its ledgers and all its rows. Stop the queries that write to it first: a running query makes the log anew."""
    from bookspark.logs import delete_log

    if not yes:
        typer.confirm(f"Delete log {log} and all its rows for ever?", abort=True, err=True)
    with client(zookeeper) as bookkeeper:
        deleted = delete_log(bookkeeper, log, password.encode())
    typer.echo(f"log {log} is deleted; ledgers deleted: {', '.join(map(str, deleted)) or 'none'}")


def _row_document(row: LogRow) -> bytes:
    moment = datetime.fromtimestamp(row.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return _json({"lane": row.lane, "position": row.position, "time": moment, **payload_document(row.value)})


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, default=_plain, ensure_ascii=False).encode()


def _plain(value: Any) -> object:
    """Values that JSON has no type for: bytes as ``ledger read --json`` prints them, times in ISO 8601, others as text."""
    if isinstance(value, bytes):
        return payload_document(value)
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _time_ms(option: str, text: str) -> int | None:
    """The time that an option says, in ms since 1970; None if it is empty."""
    from bookspark.logs.feeds.times import time_ms

    try:
        return time_ms(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} ({error}); give {_TIME}", param_hint=f"--{option}") from None


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
