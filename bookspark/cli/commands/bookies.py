"""``bookspark local``, ``zookeeper`` and ``bookies``: a cluster on this host, and the bookies of a cluster."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookspark.cli.terminal import settings
from bookspark.cli.terminal.command_options import Json, Zookeeper, client
from bookspark.cli.terminal.output import console, table
from bookspark.cli.terminal.signals import UNTIL, until_signal
from bookspark.errors import BookKeeperError
from bookspark.plain_text import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookspark.client import BookKeeper
    from bookspark.local import LocalCluster


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        help=f"Run a cluster on this host, without Spark, {UNTIL}. For development: a bookie that ends is not restarted."
    )(local)
    app.command(help=f"Run a ZooKeeper on the loopback address of this host, {UNTIL}.")(zookeeper)
    app.command(help="Print the bookies of a cluster: their state, their address, and how much each holds.")(bookies)


def local(
    bookies: Annotated[int, typer.Option("--bookies", min=0, help="Number of bookies.")] = 3,
    directory: Annotated[
        Path | None, typer.Option(help="Folder of the data, kept for later runs. Default: a temporary one.")
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Use this ZooKeeper. Default: start one.")
    ] = None,
    autorecovery: Annotated[
        bool, typer.Option("--autorecovery", help="Run an autorecovery process too, which copies again what was lost.")
    ] = False,
) -> None:
    with until_signal() as stop, _cluster(bookies, directory, zookeeper, autorecovery) as cluster:
        typer.echo(cluster.zookeeper)
        for bookie in cluster.bookies:
            typer.echo(f"{bookie.bookie_id} serves at {bookie.address}", err=True)
        typer.echo(f"to use it: export BOOKSPARK_ZOOKEEPER={cluster.zookeeper}; to end it: Ctrl-C", err=True)
        stop()


def _cluster(bookies: int, directory: Path | None, zookeeper: str | None, autorecovery: bool) -> LocalCluster:
    from bookspark.local import LocalCluster

    options = {"client": settings.chosen("client"), **settings.chosen("autorecovery")} if autorecovery else False
    return LocalCluster(bookies, directory, zookeeper, options, **settings.chosen("bookie"))


def zookeeper(
    directory: Annotated[
        Path | None, typer.Option(help="Folder of the data, kept for later runs. Default: a temporary one.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free port.")] = 2181,
) -> None:
    from bookspark.metadata.zookeeper.embedded import EmbeddedZooKeeper

    with until_signal() as stop, ExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookspark-zookeeper-")))
        server = stack.enter_context(EmbeddedZooKeeper(place, port))
        typer.echo(server.connection_string)
        stop()


def bookies(zookeeper: Zookeeper = "", as_json: Json = False) -> None:
    with client(zookeeper) as bookkeeper:
        found = list(_states(bookkeeper))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    columns = ("bookie", "state", "address", "host", "rack", "pid", "ledgers", "in logs", "free")
    rows = [
        (
            one["bookie_id"],
            one["state"],
            one["address"],
            one["host"],
            one["rack"],
            str(one["pid"] or ""),
            one["ledgers"],
            None if one["log_bytes"] is None else size_text(one["log_bytes"]),
            None if one["free_bytes"] is None else size_text(one["free_bytes"]),
        )
        for one in found
    ]
    console().print(table("", columns, rows))


def _states(bookkeeper: BookKeeper) -> Iterator[dict[str, Any]]:
    store = bookkeeper.metadata
    registered = store.bookies()
    for bookie_id in sorted({*registered, *store.list_cookies()}):
        there = registered.get(bookie_id)
        state: dict[str, Any] = {
            "bookie_id": bookie_id,
            "state": "down",
            "address": there.address if there else None,
            "host": there.host if there else None,
            "rack": there.rack if there else None,
            "labels": there.labels if there else {},
            "pid": there.pid if there else None,
            "ledgers": None,
            "log_bytes": None,
            "free_bytes": None,
        }
        if there:
            state["state"] = "read-only" if there.read_only else "writable"
            try:
                status = bookkeeper.bookie_status(bookie_id)
            except BookKeeperError:
                state["state"] = "does not answer"
            else:
                state |= {"ledgers": status.ledgers, "log_bytes": status.log_bytes, "free_bytes": status.free_bytes}
        yield state
