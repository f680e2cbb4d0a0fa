"""``bookspark why``: a cluster's troubles, causes and remedies; ``top`` and ``console``: the same live."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from bookspark.operations.cli.terminal import settings
from bookspark.operations.cli.terminal.command_options import Json, Zookeeper, given
from bookspark.operations.cli.terminal.output import console, print_json, say, say_lines
from bookspark.operations.cli.terminal.signals import UNTIL, interruptible, until_signal
from bookspark.support.command_line import FOUND
from bookspark.support.password_option import Password
from bookspark.support.plain_text import printable
from bookspark.support.printed_tables import PrintedTable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bookspark.operations.why.facts import Facts, Health


app = typer.Typer()


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[QUESTION…]",
        help="under-replicated LEDGER; not closed LEDGER; is BOOKIE read-only; is disk of BOOKIE not freed; "
        "is LOG behind; can't I stop BOOKIE. Default: the cluster's health.",
    ),
]


@app.command()
def why(question: Words = None, zookeeper: Zookeeper = "", password: Password = "", as_json: Json = False) -> None:
    """Say what is wrong with the cluster or a part, why, and the command that mends it.

    Exit status: 0 nothing wrong, 1 trouble, 2 it could not look.
    """
    from bookspark.operations.why.gathering import DEADLINES, gather
    from bookspark.operations.why.questions import question_of
    from bookspark.operations.why.telling import answer, document, health_lines, lines
    from bookspark.operations.why.troubles import health_of
    from bookspark.store.client import BookKeeper

    asked = question_of(question) if question else None
    with BookKeeper(given(zookeeper), **{**settings.chosen("client"), **DEADLINES}) as bookkeeper:
        if asked is None:
            health = health_of(gather(bookkeeper))
            found, for_programs, told = bool(health.troubles), document(health), health_lines(health)
        else:
            one = answer(bookkeeper, asked, password.encode())
            found, for_programs, told = one.found, document(one), lines(one)
    if as_json:
        print_json(for_programs)
    else:
        say_lines(told)
    if found:
        raise typer.Exit(FOUND)


@app.command()
def top(
    zookeeper: Zookeeper = "",
    once: Annotated[bool, typer.Option("--once", help="Print once, as without a terminal.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, max=3600.0, help="Seconds between two looks.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Show the cluster live, until Ctrl-C: health, bookies, work under way, troubles and commands that mend them.

    With --once or --json: exit status of `bookspark why` (1: trouble).
    """
    from rich.live import Live

    from bookspark.operations.why.gathering import DEADLINES, Gathering
    from bookspark.operations.why.picture import bookie_lines
    from bookspark.operations.why.telling import document
    from bookspark.operations.why.troubles import health_of
    from bookspark.store.client import BookKeeper

    with BookKeeper(given(zookeeper), **{**settings.chosen("client"), **DEADLINES}) as bookkeeper:
        gathering = Gathering(bookkeeper)
        facts = gathering.look()
        health = health_of(facts)
        if as_json or once or not sys.stdout.isatty():
            if as_json:
                bookies = [line._asdict() for line in bookie_lines(facts)]
                print_json({**document(health), "bookies": bookies})
            else:
                console().print(_picture(facts, None, health))
            if health.troubles:
                raise typer.Exit(FOUND)
            return
        never = threading.Event()
        with (
            interruptible(),
            suppress(KeyboardInterrupt),
            Live(console=console(), screen=True, auto_refresh=False) as live,
        ):
            before: Facts | None = None
            while True:
                live.update(_picture(facts, before, health), refresh=True)
                never.wait(interval)
                before, facts = facts, gathering.look()
                health = health_of(facts)


def _picture(facts: Facts, before: Facts | None, health: Health) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from bookspark.operations.why.picture import COLUMNS, bookie_lines, moving
    from bookspark.operations.why.telling import health_lines

    sentence, *troubles = health_lines(health)
    shown: list[RenderableType] = [
        Text(printable(sentence), style="bold"),
        PrintedTable(COLUMNS, bookie_lines(facts, before), spare=("host", "logs")),
    ]
    if under_way := moving(facts):
        shown.append(Text(under_way))
    shown += [Text(printable(line)) for line in troubles]
    return Group(*shown)


@app.command("console")
def show(
    zookeeper: Zookeeper = "",
    listen: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on. Off loopback it needs --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free port, printed.")] = 8190,
    token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="File of tokens, one a line, asked for as a password.",
        ),
    ] = "",
    show_rows: Annotated[
        bool,
        typer.Option("--show-rows", help="Show rows of logs."),
    ] = False,
    snapshots: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Also show the snapshots of this folder (--path of `bookspark snapshot`).",
        ),
    ] = "",
    prometheus: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Plot this Prometheus' figures (http://HOST:PORT?LABEL=VALUE), also those before the start.",
        ),
    ] = "",
) -> None:
    """Show the cluster as live web pages, until Ctrl-C. Changes nothing."""
    from bookspark.operations.console import WebConsole
    from bookspark.operations.why.gathering import DEADLINES
    from bookspark.store.client import BookKeeper

    with (
        until_signal() as wait,
        BookKeeper(given(zookeeper), **{**settings.chosen("client"), **DEADLINES}) as bookkeeper,
        WebConsole(bookkeeper, listen, port, token_file, show_rows, snapshots, prometheus) as shown,
    ):
        say(f"{shown.url} {UNTIL}")
        wait()
