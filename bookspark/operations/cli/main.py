"""The command line of ``bookspark``.

Exit statuses: ``bookspark.support.command_line``. ``bookspark --debug …`` prints an error's traceback.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import bookspark
from bookspark.errors import BookKeeperError
from bookspark.operations.cli.terminal import settings
from bookspark.operations.cli.terminal.command_options import judge_arguments
from bookspark.operations.cli.terminal.output import guarded_streams, problem
from bookspark.support.command_line import exit_status
from bookspark.support.extras import missing_extra
from bookspark.support.plain_text import one_line

COMMANDS = {
    **dict.fromkeys(("run", "job", "conf"), "packaged"),
    "secret": "secret",
    **dict.fromkeys(("local", "zookeeper", "init", "bookies", "stop-bookies"), "bookies"),
    **dict.fromkeys(("why", "top", "console"), "why"),
    "ledger": "ledger",
    "log": "log",
    **dict.fromkeys(("snapshot", "audit", "safe-to-stop"), "audit"),
    "cookie": "cookie",
    "bookie": "bookie",
    "autorecovery": "autorecovery",
    "cluster": "cluster",
    "simulate": "simulate",
    **dict.fromkeys(("chaos", "replay"), "chaos"),
    "bench": "bench",
}
"""Each command's module in ``bookspark.operations.cli.commands``, in the order of the help page."""

_debug = False


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bookspark {bookspark.__version__}")
        raise typer.Exit


def _options(
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


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """The command line with all commands, or only with the command in ``words``: building all takes longer than most commands."""
    app = typer.Typer(
        name="bookspark",
        help="Ledger storage for Spark: clusters, ledgers, logs and audits.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    module = COMMANDS.get(_command(words))
    for name in [module] if module else dict.fromkeys(COMMANDS.values()):
        app.add_typer(_commands(name))
    return app


def _command(words: Sequence[str]) -> str:
    """The first word that is neither an option nor the value of ``--config``."""
    before = ("", *words)
    return next((word for word, last in zip(words, before, strict=False) if word[:1] != "-" and last != "--config"), "")


@functools.cache
def _commands(module: str) -> typer.Typer:
    app: typer.Typer = import_module(f"bookspark.operations.cli.commands.{module}").app
    judge_arguments(app)
    return app


def main() -> None:
    """Run the command of ``sys.argv``, and end the process with its exit status."""
    with guarded_streams():
        sys.exit(exit_status(command_line(sys.argv[1:]), _tell))


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
