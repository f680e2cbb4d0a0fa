"""``bookspark log …``: logs written by Spark queries and services."""

from __future__ import annotations

import sys
from collections import deque
from datetime import UTC, datetime
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookspark.operations.cli.commands.ledger import Shape
from bookspark.operations.cli.terminal.command_options import Json, Yes, Zookeeper, client, group, grouped
from bookspark.operations.cli.terminal.output import (
    json_line,
    payload_document,
    payload_writer,
    print_facts,
    print_json,
    print_names,
    print_table,
    problem,
    say,
)
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.lanes import MARK, LaneId, lane_id, lane_of, writers_of_lanes
from bookspark.protocol.logs.log_options import ALTERABLE, Compression, LogOptions
from bookspark.protocol.logs.log_record import LOG_LABEL
from bookspark.support.password_option import Password
from bookspark.support.plain_text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bookspark.logs.readers.lag import ReaderLag
    from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
    from bookspark.protocol.logs.retention import Retention
    from bookspark.store.client import BookKeeper


# -- Output: readers, rows and retentions as values for JSON and tables.


TIME = "ms since 1970, or ISO 8601 with an offset, like 2026-11-22T14:05:00+01:00"
LOG_SIZES = ("log", "ledgers", "open", "bytes", "bytes_of_copies")


def iso_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def retention_document(kept: Retention) -> dict[str, float | int | None]:
    """A log's retention in hours and bytes; None: no limit."""
    return {
        "retention_hours": kept.retention_ms / 3_600_000 if kept.retention_ms else None,
        "retention_bytes": kept.retention_bytes or None,
    }


def reader_document(one: ReaderLag) -> dict[str, Any]:
    """A reader of a log with its position and lag."""
    return {
        "reader": one.title,
        "kind": one.kind.value,
        "id": one.reader,
        "process": one.process,
        "log": one.log,
        "state": one.state.value,
        "lanes": {str(lane): row for lane, row in one.lanes.items()},
        "lag_rows": one.lag_rows,
        "lag_seconds": None if one.lag_seconds is None else round(one.lag_seconds, 1),
        "heard": iso_time(one.heard_ms),
        "since": iso_time(one.since_ms),
        "problem": one.problem,
    }


def log_sizes(names: Iterable[str], ledgers: Iterable[LedgerMetadata]) -> list[dict[str, Any]]:
    """Sizes of each log, the largest first; log None: ledgers without a log. ``bytes``: of closed ledgers. ``bytes_of_copies``:
    bytes times write quorum."""
    empty = dict.fromkeys(LOG_SIZES[1:], 0)
    found: dict[str | None, dict[str, Any]] = {name: {"log": name, **empty} for name in names}
    for one in ledgers:
        label = one.custom_metadata.get(LOG_LABEL)
        log = None if label is None else lane_of(label.decode(errors="backslashreplace"))[0]
        row = found.setdefault(log, {"log": log, **empty})
        row["ledgers"] += 1
        row["open"] += not one.closed
        length = one.length or 0
        row["bytes"] += length
        row["bytes_of_copies"] += length * one.write_quorum
    return sorted(found.values(), key=lambda row: (-row["bytes_of_copies"], row["log"] or ""))


def truncation_text(log: str, row: int, deleted: list[int]) -> str:
    """Report of a truncation, with the reason if it freed no space."""
    text = f"log {log} begins at row {row}; {deletion_text(deleted)}"
    if deleted or not row:
        return text
    return (
        f"{text}: a ledger goes when all of its rows are removed, and one of the lane's last writer when that writes on, or when "
        f"the lane is ended, if that writer is gone: bookspark log end {log}, and bookspark log collect {log}"
    )


def deletion_text(deleted: Sequence[int]) -> str:
    """``deleted: ledgers 16, 17``."""
    numbers = ", ".join(map(str, deleted))
    return f"deleted: ledger{'' if len(deleted) == 1 else 's'} {numbers}" if deleted else "deleted: no ledger"


def warn_of_too_few_bookies(bookkeeper: BookKeeper, log: str, options: LogOptions) -> None:
    """Say so if the cluster has fewer bookies, whether they run or not, than a ledger of the log needs."""
    known = len(bookkeeper.metadata.list_cookies())
    if known >= options.ensemble_size:
        return
    if known >= options.bookies_min:
        effect = f"its ledgers get {counted(known, 'copy')} at most until there are more"
    else:
        effect = f"nothing can be written until there are {options.bookies_min}"
    problem(
        f"warning: a ledger of log {log} needs {counted(options.ensemble_size, 'bookie')} (ensemble size), and the cluster has "
        f"{known}: {effect}; start more bookies, or choose less: bookspark log alter {log} --ensemble-size N --write-quorum N"
    )


def row_document(lane: int, position: int, time: datetime, row: bytes | dict[str, Any]) -> bytes:
    """A row with lane, position and time as one line of JSON. ``row``: its value, or its columns, which have names of their
    own."""
    document = payload_document(row) if isinstance(row, bytes) else {"row": row}
    moment = time.astimezone(UTC).isoformat(timespec="milliseconds")
    return json_line({"lane": lane, "position": position, "time": moment, **document})


def shown(value: Any) -> Any:
    """A value for a table."""
    # Semicolons: numbers and a lane's text have commas.
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {one:,}" for key, one in value.items())
    return value


def chosen_time_ms(option: str, text: str) -> int | None:
    """An option's time in ms since 1970; None if the text is empty. Raises BadParameter."""
    from bookspark.logs.feeds.times import time_ms

    try:
        return time_ms(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} ({error}); give {TIME}", param_hint=f"--{option}") from None


# -- Commands


Idle = Annotated[float, typer.Option(min=0, help="For a log: age of a lane's newest row and claim. For a lane: any.")]
_COMPRESSION = "Compression of payloads. zstd_dictionary is for small values."
_FEWER = "While bookies are missing, make ledgers with fewer copies."
Fewer = Annotated[bool, typer.Option(help=_FEWER)]
Hours = Annotated[float | None, typer.Option(min=0, max=1e6, help="Remove older rows, some later. 0: no limit.")]
Bytes = Annotated[
    int | None,
    typer.Option(min=0, max=1 << 62, help="Remove rows of a lane while more bytes follow. 0: no limit."),
]

app = group("log", "Create, look at, truncate and delete logs.")


LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log.")]
LaneName = Annotated[str, typer.Argument(metavar="LOG", help="Name of a log or lane: orders@3.")]


@app.command()
@grouped
def create(
    log: LogName,
    zookeeper: Zookeeper = "",
    shape: Shape = Shape(),  # noqa: B008 -- frozen
    compression: Annotated[
        Compression,
        typer.Option(case_sensitive=False, help=_COMPRESSION),
    ] = Compression.NONE,
    fewer_copies: Fewer = True,
    retention_hours: Hours = None,
    retention_bytes: Bytes = None,
    password: Password = "",
) -> None:
    """Create an empty log of values, for readers that start before the first writer.

    A first write also creates a log; only it makes one of all columns (rowFormat arrow).
    """
    from bookspark.logs import LogRegistry

    options = LogOptions(**vars(shape), compression=compression, fewer_copies=fewer_copies)
    with client(zookeeper) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        made = lane_id(registry.create(log, options, password.encode()))
        registry.alter(made, retention_ms=_milliseconds(retention_hours), retention_bytes=retention_bytes)
        warn_of_too_few_bookies(bookkeeper, log, options)


@app.command()
def alter(
    log: LogName,
    zookeeper: Zookeeper = "",
    ensemble_size: Annotated[int | None, typer.Option(min=1, help="Bookies that hold the entries.")] = None,
    write_quorum: Annotated[int | None, typer.Option(min=1, help="Copies of each entry.")] = None,
    ack_quorum: Annotated[int | None, typer.Option(min=1, help="Copies that acknowledge an entry.")] = None,
    digest_type: Annotated[DigestType | None, typer.Option(case_sensitive=False, help="Digest against damage.")] = None,
    compression: Annotated[Compression | None, typer.Option(case_sensitive=False, help=_COMPRESSION)] = None,
    fewer_copies: Annotated[bool | None, typer.Option(help=_FEWER)] = None,
    retention_hours: Hours = None,
    retention_bytes: Bytes = None,
    password: Password = "",
    as_json: Json = False,
) -> None:
    """Change options of a log. Writers go on; new ledgers have the options.

    Writers and `bookspark log collect` remove rows beyond a retention. Row format, ledger type and replication stay.
    """
    from bookspark.logs import LogRegistry, check_password

    with client(zookeeper) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        record = registry.get(log)
        check_password(record, password.encode())
        options = registry.alter(
            lane_id(record),
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            compression=compression,
            fewer_copies=fewer_copies,
            retention_ms=_milliseconds(retention_hours),
            retention_bytes=retention_bytes,
        )
        kept = retention_document(registry.retention(record))
        if ensemble_size is not None:
            warn_of_too_few_bookies(bookkeeper, log, options)
    facts = {name: getattr(value := getattr(options, name), "value", value) for name in ALTERABLE} | kept
    if as_json:
        print_json(facts)
    else:
        print_facts(facts.items())


@app.command("list")
def list_logs(
    zookeeper: Zookeeper = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Also sizes, the largest first.")] = False,
    as_json: Json = False,
) -> None:
    """Print the name of each log, one a line.

    With --long: ledgers, open ledgers, bytes of the closed ones and of their copies; also of ledgers without a log.
    """
    from bookspark.logs import LogRegistry

    with client(zookeeper) as bookkeeper:
        names = LogRegistry(bookkeeper.metadata).names()
        if not long:
            print_names(names, as_json)
            return
        unreadable: dict[int, str] = {}
        ledgers = bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), unreadable)
        found = log_sizes(names, (one.value for one in ledgers))
    for why in unreadable.values():
        problem(why)
    if as_json:
        print_json(found)
    else:
        rows = [["(no log)" if one["log"] is None else one["log"], *list(one.values())[1:]] for one in found]
        print_table([name.replace("_", " ") for name in LOG_SIZES], rows, spare=("bytes", "open"))


@app.command()
def describe(log: LaneName, zookeeper: Zookeeper = "", password: Password = "", as_json: Json = False) -> None:
    """Print a log's options, owner, commits and ledgers."""
    from bookspark.logs import LogReader, LogRegistry, check_password

    with client(zookeeper) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        lanes = registry.lanes_of(log)
        record = registry.get(lanes[0])
        check_password(record, password.encode())
        records = {lane: registry.get(lane) for lane in lanes}
        readers = {lane: LogReader(bookkeeper, lane, password.encode()) for lane in lanes}
        by_lane = {lane: list(reader.commits()) for lane, reader in readers.items()}
        ends = {lane: reader.end() for lane, reader in readers.items()}
        retention = retention_document(registry.retention(record))
        opened = [rows.ledger_id for reader in readers.values() if (rows := reader.open_rows) is not None]
    writers = writers_of_lanes(record, records.values())
    found = list(chain.from_iterable(by_lane.values()))
    ranges = list(chain.from_iterable(placed.commit.ranges for placed in found))
    facts: dict[str, Any] = {
        "log": log,
        "id": record.log_id,
        "created": iso_time(record.ctime_ms),
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
        "fewer_copies": record.options.fewer_copies,
        **retention,
        "commits": sum(end.batches for end in ends.values()),
        "last_commit": iso_time(max(placed.commit.time_ms for placed in found)) if found else None,
        "first_position": record.first_position,
        "offloaded_to": record.offload.table if record.offload is not None else None,
        "offloaded_rows": record.offload.position if record.offload is not None else None,
        "rows": sum(end.rows for end in ends.values()),
        "bytes": sum(end.size for end in ends.values()),
        "commit_ledgers": [link.ledger_id for one in records.values() for link in one.commit_ledgers],
        "data_ledgers": sorted({*opened, *(item.ledger_id for item in ranges)}),
        "lanes": [f"{lane}: {counted(end.rows, 'row')}, {writers[str(lane)]}" for lane, end in ends.items()],
    }
    if as_json:
        print_json(facts)
    else:
        # No thousands in an id (the option ``logId`` takes it) or a position (`log truncate` does).
        plain = ("id", "first_position")
        print_facts((name, str(value) if name in plain else shown(value)) for name, value in facts.items())


@app.command()
def read(
    log: LaneName,
    from_row: Annotated[int | None, typer.Option(min=0, help="First row; only for one lane.")] = None,
    until_row: Annotated[int | None, typer.Option(min=0, help="Row to end before; only for one lane.")] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Rows committed then or later. {TIME}.")] = "",
    before: Annotated[str, typer.Option(metavar="TIME", help="Rows committed before this time.")] = "",
    zookeeper: Zookeeper = "",
    password: Password = "",
    as_json: Json = False,
) -> None:
    """Print a log's committed rows, lane by lane, each with a line break; rows of several columns as JSON. With --json: an object
    a line with lane, position and time."""
    from bookspark.logs import LogRegistry
    from bookspark.logs.chain.commit_times import row_at
    from bookspark.logs.chain.log_run import lane_of_ledger
    from bookspark.logs.feeds.lane_feed import LaneFeed
    from bookspark.logs.feeds.lost_rows import PassedOver
    from bookspark.logs.feeds.times import RowTimes
    from bookspark.logs.rows.encodings import APPENDED_AT, RowDecoder
    from bookspark.logs.rows.splits import SizedPiece, split
    from bookspark.spark.connector.source import VALUE_SCHEMA
    from bookspark.spark.offload.offloaded import rows_of
    from bookspark.spark.offload.opened_ledgers import OpenedLedgers
    from bookspark.spark.rows.row_format import columns_of
    from bookspark.spark.rows.rows import row_decoder

    write = payload_writer()
    secret = password.encode()
    times = [chosen_time_ms("since", since), chosen_time_ms("before", before)]
    with client(zookeeper) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        record, lanes = registry.get(log), registry.lanes_of(log)
        columns = columns_of(record.options)
        if len(lanes) > 1 and (from_row, until_row) != (None, None):
            raise typer.BadParameter(
                f"log {log} has {len(lanes)} lanes, and a row is a row of one of them: read one lane, for example {log}@0",
                param_hint="--from-row, --until-row",
            )

        def span(lane: LaneId) -> tuple[int, int | None]:
            since_row, before_row = (None if ms is None else row_at(bookkeeper, lane, secret, ms) for ms in times)
            first = max(registry.get(lane).first_position, from_row or 0, since_row or 0)
            return first, min((row for row in (until_row, before_row) if row is not None), default=None)

        def decoder(metadata: LedgerMetadata) -> RowDecoder:
            return row_decoder(metadata, columns, lambda: registry.get(lane_of_ledger(metadata)).dictionary)

        def pieces() -> Iterator[SizedPiece]:
            for lane in lanes:
                first, end = span(lane)
                feed = LaneFeed(bookkeeper, lane, secret, PassedOver(fail=False), with_times=as_json)
                newest = feed.newest()
                yield from feed.pieces(first, newest if end is None else min(end, newest))

        # Producers' rows have the time of their append, others that of their commit.
        stamp = (APPENDED_AT,) if columns is None and as_json else ()
        for part in map(deque, split(pieces(), 1)):
            ledgers, commit_times = OpenedLedgers(bookkeeper, secret, decoder), RowTimes(part)
            while part:
                lane, position = part[0].lane, part[0].position
                for rows in rows_of(ledgers, lane_id(record), part, columns or VALUE_SCHEMA, stamp):
                    found = rows.column(0).to_pylist() if columns is None else rows.to_pylist()
                    if as_json:
                        moments = commit_times.take(rows.num_rows)
                        if stamp and APPENDED_AT in rows.schema.names:
                            moments = rows.column(APPENDED_AT)
                        for row, moment in zip(found, moments.to_pylist(), strict=True):
                            write(row_document(lane, position, moment, row) + b"\n")
                            position += 1
                    else:
                        for row in found:
                            write((row if columns is None else json_line(row)) + b"\n")
    sys.stdout.flush()


@app.command()
def append(
    log: LogName,
    producer: Annotated[str, typer.Option(metavar="NAME", help="Name of the lane's writer.")] = "command-line",
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Append each line of the standard input to a log, as a row, until all are acknowledged. A second command with the same
    --producer ends this one."""
    from bookspark.logs import open_log

    with client(zookeeper) as bookkeeper, open_log(bookkeeper, log, password.encode()).producer(producer) as rows:
        future, count = None, 0
        for line in sys.stdin.buffer:
            future, count = rows.append_async(line.removesuffix(b"\n")), count + 1
        # Rows are acknowledged in order, and an error fails all later rows: the last row's result stands for all.
        last = future.result() if future is not None else None
    end = f", the last one is row {last.position}" if last is not None else ""
    say(f"{counted(count, 'row')} appended to lane {rows.lane} of log {log}{end}")


@app.command()
def tail(
    log: LaneName,
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Rows committed then or later. {TIME}.")] = "",
    zookeeper: Zookeeper = "",
    password: Password = "",
    as_json: Json = False,
) -> None:
    """Print new rows of a log until interrupted: values, or with --json objects with lane, position and time."""
    from bookspark.logs import open_log

    time_ms, write = chosen_time_ms("since", since), payload_writer()
    with client(zookeeper) as bookkeeper, open_log(bookkeeper, log, password.encode()).reader("latest") as reader:
        if time_ms is not None:
            reader.seek_to_time(datetime.fromtimestamp(time_ms / 1000, UTC))
        for row in reader.follow():
            moment = datetime.fromtimestamp(row.time_ms / 1000, UTC)
            write((row_document(row.lane, row.position, moment, row.value) if as_json else row.value) + b"\n")
            sys.stdout.flush()


@app.command()
def readers(log: LaneName, zookeeper: Zookeeper = "", password: Password = "", as_json: Json = False) -> None:
    """Print a log's streaming queries and Python readers, with positions and lags.

    A live reader's position is at most two seconds old. A reader silent for 20 s is stale; a closed one ended in order. Both
    stay listed for 7 days.
    """
    from bookspark.logs.readers.lag import readers_of

    with client(zookeeper) as bookkeeper:
        found = [reader_document(one) for one in readers_of(bookkeeper, log, password.encode())]
    if as_json:
        print_json(found)
    elif not found:
        problem(f"nobody reads log {log} now, and no reader of it was killed, or kept its place, in the last 7 days")
    else:
        columns = (
            "reader",
            "state",
            "lag_rows",
            "lag_seconds",
            "process",
            "problem",
            "heard",
            "lanes",
            "since",
            "kind",
            "id",
        )
        print_table(
            [name.replace("_", " ") for name in columns],
            [[shown(one[name]) for name in columns] for one in found],
            spare=("id", "kind", "since", "lanes", "process", "heard"),
        )


@app.command()
def truncate(
    log: LaneName,
    row: Annotated[int, typer.Argument(metavar="ROW", min=0, help="Position of the first kept row.")],
    yes: Yes = False,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Remove a log's rows before ROW, and ledgers that hold nothing else; a running query's ledgers after its end."""
    from bookspark.logs import LogRegistry, truncate_log
    from bookspark.logs.chain.registry import only_lane

    with client(zookeeper) as bookkeeper:
        # The log of the question, although the name may be another's by the answer.
        lane = only_lane(LogRegistry(bookkeeper.metadata), log, "truncated")
        if not yes:
            question = f"Remove the rows before row {row} from log {log} with id {lane.log} for ever?"
            typer.confirm(question, abort=True, err=True)
        deleted = truncate_log(bookkeeper, lane, row, password.encode())
    say(truncation_text(log, row, deleted))


@app.command()
def collect(log: LaneName, zookeeper: Zookeeper = "", password: Password = "") -> None:
    """Remove rows beyond LOG's retention, and ledgers of killed tasks and queries that can never become part of LOG, as
    lanes' writers do for recent ledgers."""
    from bookspark.logs import collect_orphans, truncate_expired

    secret = password.encode()
    with client(zookeeper) as bookkeeper:
        found = truncate_expired(bookkeeper, log, secret) + collect_orphans(bookkeeper, log, secret)
    say(f"log {log}: {deletion_text(found)}")


@app.command()
def end(
    log: LaneName, idle_days: Idle = 7, zookeeper: Zookeeper = "", password: Password = "", as_json: Json = False
) -> None:
    """End idle lanes, LOG@3 or all of LOG. Their rows stay, and a returning writer gets a new lane. Lane 0 and the lane of
    batch writes never end."""
    from bookspark.logs.lane_ending import end_idle_lanes, end_lane

    secret = password.encode()
    with client(zookeeper) as bookkeeper:
        if MARK in log:
            end_lane(bookkeeper, log, secret)
        ended = [log] if MARK in log else end_idle_lanes(bookkeeper, log, secret, idle_days)
    if as_json:
        print_json(ended, one_line=True)
    else:
        say(f"log {log}: {counted(len(ended), 'lane')} ended{': ' if ended else ''}{', '.join(ended)}")


@app.command()
def end_offload(log: LogName, zookeeper: Zookeeper = "", password: Password = "") -> None:
    """End a log's offload, so that it can have a retention or another table. First stop its job. The table stays, and readers
    take all rows from the ledgers. Refused once offloaded ledgers were deleted.
    """
    from bookspark.logs import LogRegistry
    from bookspark.logs.chain.registry import check_password

    with client(zookeeper) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        check_password(registry.get(log), password.encode())
        tables = registry.take_back_offload(log)
    say(f"log {log}: " + (f"no longer offloaded to {', '.join(tables)}" if tables else "it was not offloaded"))


@app.command()
def delete(
    log: LogName,
    yes: Yes = False,
    zookeeper: Zookeeper = "",
    password: Password = "",
) -> None:
    """Delete a log with its ledgers and rows. First stop its queries: a running query recreates it."""
    from bookspark.logs import LogRegistry, delete_log

    with client(zookeeper) as bookkeeper:
        # The log of the question, although the name may be another's by the answer. None: a deletion may have been interrupted.
        lane = LogRegistry(bookkeeper.metadata).lane(log)
        if not yes:
            which = "" if lane is None else f" with id {lane.log}"
            typer.confirm(f"Delete log {log}{which} and all its rows for ever?", abort=True, err=True)
        deleted = delete_log(bookkeeper, lane or log, password.encode())
    say(f"log {log} is deleted; {deletion_text(deleted)}")


def _milliseconds(hours: float | None) -> int | None:
    # Rounded up, because 0 means no limit.
    return None if hours is None else ceil(hours * 3_600_000)
