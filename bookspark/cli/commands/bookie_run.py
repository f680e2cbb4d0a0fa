"""``bookspark bookie run`` and ``safe-to-stop``: a bookie in the foreground, without Spark, and whether it may be stopped.

Law: the process is the bookie. It ends with status 0 after SIGTERM or Ctrl-C and a clean stop, and with 2 otherwise. Standard
output has one line, once it serves; everything else goes to standard error. Its directories say which bookie it is. One that
nobody named is made only if that is asked for, because the disk of an old one may only be missing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookspark.cli.terminal import settings
from bookspark.cli.terminal.command_options import Json, Zookeeper, client, given
from bookspark.cli.terminal.output import console, table
from bookspark.cli.terminal.signals import until_signal
from bookspark.command_line import COULD_NOT, FOUND
from bookspark.errors import InvalidCookieError

if TYPE_CHECKING:
    from bookspark.metadata.records.bookie_registration import BookieRegistration
    from bookspark.protocol.repair.stopping import Danger

_NAMED_MAX = 20
"""At most so many ledgers are printed."""


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(run)
    app.command("safe-to-stop")(safe_to_stop)


def run(
    directory: Annotated[
        list[Path],
        typer.Option(help="Folder for this bookie's entries only. Repeat for each disk."),
    ],
    zookeeper: Zookeeper = "",
    bookie_id: Annotated[
        str,
        typer.Option(
            envvar="BOOKSPARK_BOOKIE_ID",
            help="Id of the bookie; its first start creates it.",
            show_default=False,
        ),
    ] = "",
    create: Annotated[
        bool, typer.Option("--create", help="Create a bookie with a new id if the directories have none.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on. Default: any free port.", show_default=False),
    ] = None,
    advertised_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for clients instead of --host and --port.", show_default=False),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=-1,
            max=65535,
            help="Port for Prometheus (/metrics) and probes (/health, /ready); "
            "if taken, the next free one. -1: any free port. Default: none.",
            show_default=False,
        ),
    ] = None,
    rack: Annotated[
        str | None, typer.Option(help="Bookies of one rack fail together. Default: none.", show_default=False)
    ] = None,
) -> None:
    """Run a bookie, without Spark, until Ctrl-C or SIGTERM.

    The directories decide which. Directories without a bookie are refused, except with --create or a --bookie-id that is new
    to the cluster. Once it serves, it prints its id and address as a line of JSON. Other options are in the table [bookie] of
    `bookspark --config FILE`; options given here override it.
    """
    from bookspark.bookie.bookie_config import bookie_config
    from bookspark.daemon.bookie_process import Foreground, prepare_process, run_bookie

    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "advertised_address": advertised_address,
        "metrics_port": metrics_port,
        "rack": rack,
        "bookie_id": bookie_id or None,
    }
    told = {name: value for name, value in options.items() if value is not None}
    places = [str(one.absolute()) for one in directory]
    config = bookie_config(
        **{**settings.chosen("bookie"), **told, "directories": places, "zookeeper": given(zookeeper)}
    )
    if not (create or config.bookie_id):
        _refuse_a_new_bookie(places)
    begun = time.monotonic()

    def serving(registration: BookieRegistration, metrics_port: int) -> None:
        line = {
            "bookie_id": registration.bookie_id,
            "address": registration.address,
            "directories": places,
            "zookeeper": config.zookeeper,
            "metrics_port": metrics_port,
            "pid": registration.pid,
            "incarnation": registration.incarnation,
            "started_in_seconds": round(time.monotonic() - begun, 3),
        }
        typer.echo(json.dumps(line))
        sys.stdout.flush()

    # A signal ends what comes before the bookie takes its own handlers.
    with until_signal():
        prepare_process()
        run_bookie(config, Foreground("`bookspark bookie run`, in the foreground", serving, COULD_NOT))


def _refuse_a_new_bookie(places: Sequence[str]) -> None:
    from bookspark.daemon.directories import has_cookie

    if not any(map(has_cookie, places)):
        raise InvalidCookieError(
            f"{', '.join(places)}: no bookie's cookie lies there, so this would be a new bookie. If one served from there, mount "
            "its disk again. If the cluster is to have a new bookie, give --create, or its name with --bookie-id"
        )


def safe_to_stop(
    bookies: Annotated[
        list[str],
        typer.Argument(metavar="BOOKIE…", envvar="BOOKSPARK_BOOKIE_ID", help="Ids of the bookies to stop."),
    ],
    zookeeper: Zookeeper = "",
    wait: Annotated[float, typer.Option(min=0.0, help="If unsafe, keep asking for this many seconds.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Say whether bookies can be stopped: every entry keeps an ack quorum of copies on bookies that are up, and every open
    ledger can be recovered. Exit status 1: no, or unknown.

    It takes seconds, without Spark. It trusts the records, unless a bookie or a task of autorecovery reports missing entries.
    `bookspark safe-to-stop` compares every copy.
    """
    from bookspark.autorecovery.stopping import dangers

    deadline = time.monotonic() + wait
    with client(zookeeper) as bookkeeper:
        while (found := dangers(bookkeeper, bookies)) and time.monotonic() < deadline:
            time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
    if as_json:
        typer.echo(json.dumps({"safe": not found, "dangers": [one._asdict() for one in found]}, indent=2))
    elif found:
        _show(found)
    else:
        without = ", ".join(dict.fromkeys(bookies))
        typer.echo(f"safe: without {without} every entry keeps an ack quorum, and every open ledger can be recovered")
    if found:
        raise typer.Exit(FOUND)


_LOOK_SECONDS = 2.0


def _show(found: Sequence[Danger]) -> None:
    rows = [(one.ledger_id, _entries(one), one.copies_left, one.ack_quorum, one.why) for one in found[:_NAMED_MAX]]
    console().print(table("Not safe to stop", ("ledger", "entries", "copies left", "ack quorum", "why"), rows))
    if len(found) > _NAMED_MAX:
        typer.echo(f"and {len(found) - _NAMED_MAX:,} more")


def _entries(one: Danger) -> str:
    if one.first_entry_id is None:
        return ""
    return f"{one.first_entry_id}.." + ("" if one.last_entry_id is None else str(one.last_entry_id))
