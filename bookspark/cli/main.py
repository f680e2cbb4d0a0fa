"""The command line of ``bookspark``.

Law: ``bookspark.command_line`` says what the exit statuses mean. ``bookspark --debug …`` shows where an error came from.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

import bookspark
from bookspark.cli.commands import (
    audit,
    autorecovery,
    bench,
    bookie,
    bookies,
    chaos,
    cluster,
    cookie,
    ledger,
    log,
    packaged,
    simulate,
    why,
)
from bookspark.cli.terminal import settings
from bookspark.cli.terminal.command_options import judge_arguments
from bookspark.cli.terminal.output import problem
from bookspark.command_line import exit_status
from bookspark.errors import BookKeeperError
from bookspark.extras import missing_extra
from bookspark.plain_text import one_line

app = typer.Typer(
    name="bookspark",
    help="Ledger storage for Spark: clusters, ledgers, logs and audits.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
packaged.add_to(app)
bookies.add_to(app)
why.add_to(app)
app.add_typer(ledger.app, name="ledger")
app.add_typer(log.app, name="log")
audit.add_to(app)
app.add_typer(cookie.app, name="cookie")
app.add_typer(bookie.app, name="bookie")
app.add_typer(autorecovery.app, name="autorecovery")
app.add_typer(cluster.app, name="cluster")
simulate.add_to(app)
chaos.add_to(app)
app.add_typer(bench.app, name="bench")
judge_arguments(app)

_debug = False


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bookspark {bookspark.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="BOOKSPARK_CONFIG", help="A file of settings; `bookspark conf bookspark.toml` is the model of one."
        ),
    ] = None,
) -> None:
    global _debug
    _debug = debug
    settings.choose(config)


def main() -> None:
    """Run the command that ``sys.argv`` names. Ends the process with the command's exit status."""
    sys.exit(exit_status(app, _tell))


def _tell(error: Exception) -> None:
    if _debug:
        traceback.print_exception(error)
    missing = missing_extra(error, "this command") if isinstance(error, ModuleNotFoundError) else None
    if isinstance(error, BookKeeperError):
        problem(one_line(error))
    elif missing is not None:
        problem(str(missing))
    else:
        problem(f"failed with {type(error).__name__}: {one_line(error)}; `bookspark --debug …` shows where")


if __name__ == "__main__":
    main()
