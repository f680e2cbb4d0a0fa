"""``bookspark why``: what is wrong with a cluster, why, and what to type."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from bookspark.cli.terminal import settings
from bookspark.cli.terminal.command_options import Json, Password, Zookeeper, given
from bookspark.command_line import FOUND


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(why)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[QUESTION…]",
        help="under-replicated LEDGER; not closed LEDGER; is BOOKIE read-only; is disk of BOOKIE not freed; is LOG behind; "
        "can't I stop BOOKIE. Without a question: the health of the cluster.",
    ),
]


def why(question: Words = None, zookeeper: Zookeeper = "", password: Password = "", as_json: Json = False) -> None:
    """Say what is wrong with the cluster or one part of it, why, and the command that mends it. Changes nothing.

    The exit status is 0 if nothing was found, 1 if something was, and 2 if it could not look. The password is that of a log."""
    from bookspark.client import BookKeeper
    from bookspark.why.gathering import DEADLINES, gather
    from bookspark.why.questions import question_of
    from bookspark.why.telling import answer, document, health_lines, lines
    from bookspark.why.troubles import health_of

    asked = question_of(question) if question else None
    with BookKeeper(given(zookeeper), **{**settings.chosen("client"), **DEADLINES}) as bookkeeper:
        if asked is None:
            health = health_of(gather(bookkeeper))
            found, for_programs, told = bool(health.troubles), document(health), health_lines(health)
        else:
            one = answer(bookkeeper, asked, password.encode())
            found, for_programs, told = one.found, document(one), lines(one)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(for_programs), indent=2).decode())
    else:
        for line in told:
            typer.echo(line)
    if found:
        raise typer.Exit(FOUND)
