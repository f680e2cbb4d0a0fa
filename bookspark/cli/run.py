"""``bookspark run``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookspark.cli.output import one_line, problem

_WRONG_INPUT = 2


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Text or JSON-lines files to ingest; by default this run's own Spark event logs."),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Keep the cluster up at the end, until Ctrl-C.")] = False,
    directory: Annotated[
        Path | None, typer.Option(help="A new folder for all that the run writes; by default one under .cache/runs.")
    ] = None,
) -> None:
    """Run the main job: bookies on Spark executors, a stream into a log of ledgers, the log read back and compared, an audit."""
    from bookspark.demo.inputs import InputError
    from bookspark.demo.job import run_main_job

    try:
        status = run_main_job(folder, directory, serve)
    except InputError as error:
        problem(one_line(error))
        status = _WRONG_INPUT
    raise typer.Exit(status)
