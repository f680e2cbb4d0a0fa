"""``bookspark run``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of the text or JSON-lines files to ingest. Default: this run's own Spark event logs."
        ),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Keep the cluster up at the end, until Ctrl-C.")] = False,
    directory: Annotated[
        Path | None, typer.Option(help="A new folder for everything that the run writes. Default: one in .cache/runs.")
    ] = None,
) -> None:
    """Run the main job: start bookies on Spark executors, stream files into a log, read the log back and compare, audit."""
    from bookspark.demo.job import run_main_job

    raise typer.Exit(run_main_job(folder, directory, serve))
