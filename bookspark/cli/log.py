"""``bookspark log …``: the logs that Spark queries write."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any

import typer

from bookspark.cli.options import Json, Password, Zookeeper, client
from bookspark.cli.output import console, table

app = typer.Typer(help="Look at logs.", no_args_is_help=True, rich_markup_mode=None)

LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log.")]


@app.command("list")
def list_logs(zookeeper: Zookeeper = "") -> None:
    """Print the name of each log, a line each."""
    from bookspark.spark.logs import LogRegistry

    with client(zookeeper) as bookkeeper:
        for name in LogRegistry(bookkeeper.metadata).names():
            typer.echo(name)


@app.command()
def describe(log: LogName, zookeeper: Zookeeper = "", password: Password = "", as_json: Json = False) -> None:
    """Print what a log consists of: its options, its owner, its commits and the ledgers that hold its rows."""
    from bookspark.spark.logs import LogRegistry, check_password, commits

    with client(zookeeper) as bookkeeper:
        record = LogRegistry(bookkeeper.metadata).get(log)
        check_password(record, password.encode())
        found = list(commits(bookkeeper, record, password.encode()))
    ranges = list(chain.from_iterable(commit.ranges for commit in found))
    facts: dict[str, Any] = {
        "log": log,
        "created": _time(record.ctime_ms),
        "epoch": record.epoch,
        "owner": record.owner,
        "ensemble_size": record.options.ensemble_size,
        "write_quorum": record.options.write_quorum,
        "ack_quorum": record.options.ack_quorum,
        "digest_type": record.options.digest_type.value,
        "commits": len(found),
        "last_commit": _time(found[-1].time_ms) if found else None,
        "rows": sum(item.rows for item in ranges),
        "bytes": sum(item.size for item in ranges),
        "commit_ledgers": [link.ledger_id for link in record.commit_ledgers],
        "data_ledgers": sorted({item.ledger_id for item in ranges}),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        console().print(table("", ("", log), [(name, _shown(value)) for name, value in list(facts.items())[1:]]))


@app.command()
def read(log: LogName, zookeeper: Zookeeper = "", password: Password = "") -> None:
    """Print the rows of a log in its order, each followed by a line break: all that is committed now."""
    from bookspark.spark.logs import LogRegistry, check_password, commits

    out = sys.stdout.buffer
    with client(zookeeper) as bookkeeper:
        record = LogRegistry(bookkeeper.metadata).get(log)
        check_password(record, password.encode())
        for item in chain.from_iterable(commit.ranges for commit in commits(bookkeeper, record, password.encode())):
            with bookkeeper.open_ledger_no_recovery(item.ledger_id, password=password.encode()) as ledger:
                ledger.confirm(item.last_entry_id)
                for entry in ledger.read(item.first_entry_id, item.last_entry_id):
                    out.write(entry.payload)
                    out.write(b"\n")
    out.flush()


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
