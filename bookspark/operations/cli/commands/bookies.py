"""``bookspark local``, ``zookeeper``, ``init``, ``bookies``, ``stop-bookies``: a local or new cluster; a cluster's bookies."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Meta

from bookspark.errors import BookKeeperError, MetadataStoreError
from bookspark.operations.cli.terminal import settings
from bookspark.operations.cli.terminal.command_options import Json, Zookeeper, client, given
from bookspark.operations.cli.terminal.output import print_json, print_table, problem, progress, say
from bookspark.operations.cli.terminal.signals import UNTIL, until_signal
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.support.plain_text import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookspark.local import LocalCluster
    from bookspark.store.client import BookKeeper


app = typer.Typer()


@app.command(help=f"Run a cluster on this host, without Spark, {UNTIL}. An ended bookie is not restarted.")
def local(
    bookies: Annotated[int, typer.Option("--bookies", min=0, help="Number of bookies.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Folder of the data, kept. Default: a temporary one.")] = None,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Use this ZooKeeper. Default: start one.")
    ] = None,
    autorecovery: Annotated[
        bool, typer.Option("--autorecovery/--no-autorecovery", help="Run autorecovery, which replaces lost copies.")
    ] = True,
) -> None:
    with until_signal() as stop, ExitStack() as temporary, ExitStack() as running:
        place = _folder(directory, "bookspark-", temporary)
        with progress("starting a cluster"):
            cluster = running.enter_context(_cluster(bookies, place, zookeeper, autorecovery))
        say(cluster.zookeeper)
        for bookie in cluster.bookies:
            say(f"{bookie.bookie_id} serves at {bookie.address}", err=True)
        fate = "removes its data; --directory would keep them" if directory is None else "keeps its data"
        say(f"Ctrl-C ends it and {fate}. To use it, type this in another terminal:", err=True)
        # A separate line, for copy and paste.
        say(f"export BOOKSPARK_ZOOKEEPER={cluster.zookeeper}", err=True)
        reported = set[str]()

        def look() -> None:
            ended = cluster.ended()
            if "ZooKeeper" in ended:
                # The next cluster goes on with its data.
                temporary.pop_all()
            for name in ended.keys() - reported:
                problem(f"{name} has ended: {ended[name]}")
            reported.clear()
            reported.update(ended)

        stop(look)


def _folder(directory: Path | None, prefix: str, temporary: ExitStack) -> Path:
    """``directory``, or a folder that ``temporary`` removes."""
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        temporary.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _cluster(bookies: int, directory: Path, zookeeper: str | None, autorecovery: bool) -> LocalCluster:
    from bookspark.local import LocalCluster
    from bookspark.store.bookie.bookie_config import with_metrics

    options = {"client": settings.chosen("client"), **settings.chosen("autorecovery")} if autorecovery else False
    return LocalCluster(bookies, directory, zookeeper, options, **with_metrics(settings.chosen("bookie")))


@app.command(help=f"Run a ZooKeeper on the loopback address of this host, {UNTIL}.")
def zookeeper(
    directory: Annotated[Path | None, typer.Option(help="Folder of the data, kept. Default: a temporary one.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free port.")] = 2181,
) -> None:
    from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper

    with until_signal() as stop, ExitStack() as temporary:
        place = _folder(directory, "bookspark-zookeeper-", temporary)
        with EmbeddedZooKeeper(place, port) as server:
            say(server.connection_string)

            def look() -> None:
                if server.pid is None:
                    # Its data are those of a cluster that lives: the next server goes on with them.
                    temporary.pop_all()
                    raise MetadataStoreError(
                        f"ZooKeeper has ended: {place}/zookeeper.log has its last words. Start it again: "
                        f"bookspark zookeeper --directory {quote(str(place))} --port {server.port}"
                    )

            stop(look)


@app.command()
def init(
    zookeeper: Zookeeper = "",
    manager: Annotated[
        LedgerManager,
        typer.Option("--ledger-manager", help="Layout of ledger records in ZooKeeper."),
    ] = LedgerManager.HIERARCHICAL,
    bookkeeper: Annotated[
        bool,
        typer.Option(
            "--bookkeeper", help="Layout also for clients of Apache BookKeeper (bookie option bookkeeper_port)."
        ),
    ] = False,
) -> None:
    """Create a cluster in ZooKeeper and print its id. A bookie's first start does so too."""
    from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore

    manager = LedgerManager.BOOKKEEPER if bookkeeper else manager
    with closing(ZooKeeperStore(given(zookeeper), begin=manager)) as store:
        say(store.instance_id)
        for door in store.exposure().doors():
            say(f"bookspark: {door}", err=True)


@app.command()
def bookies(zookeeper: Zookeeper = "", as_json: Json = False) -> None:
    """Print the bookies with state, address and data."""
    with client(zookeeper) as bookkeeper:
        found = list(_states(bookkeeper))
    if as_json:
        print_json(found)
        return
    columns = ("bookie", "state", "address", "host", "rack", "pid", "ledgers", "in logs", "free")
    rows = [
        (
            one["bookie_id"],
            one["state"],
            one["address"],
            one["host"],
            one["rack"],
            None if one["pid"] is None else str(one["pid"]),
            one["ledgers"],
            None if one["log_bytes"] is None else size_text(one["log_bytes"]),
            None if one["free_bytes"] is None else size_text(one["free_bytes"]),
        )
        for one in found
    ]
    print_table(columns, rows, spare=("pid", "ledgers", "host", "rack"))


@app.command()
def stop_bookies(
    zookeeper: Zookeeper = "",
    timeout: Annotated[float, Meta(ge=0, le=1e9), typer.Option(metavar="SECONDS", help="Longest wait.")] = 90.0,
) -> None:
    """Stop the bookies of Spark jobs cleanly and end these jobs. Their data stays."""
    from bookspark.spark.bookies.service_records import ask_to_stop
    from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore

    with closing(ZooKeeperStore(given(zookeeper))) as store:
        asked = {
            bookie.bookie_id
            for tasks in ask_to_stop(store).values()
            for task in tasks
            for bookie in task.bookies
            # A task may have met a bookie of another process, such as `bookspark bookie run`; that bookie goes on serving.
            if bookie.pid or not bookie.problem
        }
        if not asked:
            raise BookKeeperError(
                "no job looks after bookies here; one that nobody looks after stops by itself when its lease has lapsed"
            )
        say(f"asked {counted(len(asked), 'bookie')} to stop", err=True)
        if others := sorted(store.bookies().keys() - asked):
            say(
                f"not asked, because no job of Spark looks after them: {', '.join(others)}; "
                "what a job left behind stops by itself when its lease has lapsed",
                err=True,
            )
        deadline = time.monotonic() + timeout
        while left := sorted(asked & store.bookies().keys()):
            if time.monotonic() > deadline:
                raise BookKeeperError(
                    f"still registered after {timeout:g} s: {', '.join(left)}; if no job looks after them any more, they stop by "
                    "themselves when their lease has lapsed"
                )
            time.sleep(_LOOK_SECONDS)


_LOOK_SECONDS = 0.2


def _states(bookkeeper: BookKeeper) -> Iterator[dict[str, Any]]:
    from bookspark.store.cluster_view import answering_bookies, with_homes

    for bookie_id, one in with_homes(answering_bookies(bookkeeper), bookkeeper.metadata).bookies.items():
        there, status = one.registration, one.status
        if there is None:
            state = "down"
        elif status is None:
            state = "does not answer"
        else:
            state = "read-only" if there.read_only else "writable"
            if status.stops_in_seconds is not None:
                state += f", nobody looks after it: stops in {status.stops_in_seconds:.0f} s"
        yield {
            "bookie_id": bookie_id,
            "state": state,
            "address": there.address if there else None,
            "host": there.host if there else one.host or None,
            "rack": there.rack if there else None,
            "labels": there.labels if there else {},
            "pid": there.pid if there else None,
            "ledgers": status.ledgers if status else None,
            "log_bytes": status.log_bytes if status else None,
            "free_bytes": status.free_bytes if status else None,
            "stops_in_seconds": status.stops_in_seconds if status else None,
        }
