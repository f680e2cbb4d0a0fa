"""``bookspark run``, ``job`` and ``conf``: the main job, the jobs for spark-submit, the settings files.

With a name, ``job`` and ``conf`` print only the path, for ``spark-submit $(bookspark job bookies) …``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from bookspark.operations.cli.terminal.output import say
from bookspark.support.packaged_files import job as job_path
from bookspark.support.packaged_files import job_summary, jobs, settings_file, settings_files

app = typer.Typer()


def _named(files: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in files() if name.startswith(incomplete)]

    return complete


@app.command()
def run(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of text or JSON lines. Default: generated orders, and a bookie is killed."),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Keep the cluster up until Ctrl-C.")] = False,
    directory: Annotated[Path | None, typer.Option(help="New folder for the run. Default: one in the cache.")] = None,
) -> None:
    """Run the main job: bookies on Spark executors, rows streamed into and out of a log, compared and audited."""
    from bookspark.lab.demo.job import run_main_job

    raise typer.Exit(run_main_job(folder, directory, serve))


@app.command()
def job(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Print the path of this job only.", autocompletion=_named(jobs)),
    ] = None,
) -> None:
    """List the jobs, or print the path of one: spark-submit $(bookspark job bookies) …"""
    if name is not None:
        say(job_path(name))
        return
    for each, path in jobs().items():
        say(f"{each:<14}{job_summary(path)}")


@app.command()
def conf(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="Print the path of this file only.", autocompletion=_named(settings_files)
        ),
    ] = None,
) -> None:
    """List the settings files, or print the path of one: spark-submit --properties-file $(bookspark conf spark-defaults.conf)
    …"""
    if name is not None:
        say(settings_file(name))
        return
    for each, path in settings_files().items():
        say(f"{each:<22}{path}")
