"""``bookspark job`` and ``bookspark conf``: where the jobs for spark-submit and the settings files lie.

With a name, standard output is the path and nothing else, for ``spark-submit $(bookspark job bookies) …``.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bookspark.packaged_files import job as job_path
from bookspark.packaged_files import job_summary, jobs, settings_file, settings_files


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(job)
    app.command()(conf)


def job(
    name: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Print the path of this job only.")] = None,
) -> None:
    """List the jobs for spark-submit, or print the path of one: spark-submit $(bookspark job bookies) …"""
    if name is not None:
        typer.echo(job_path(name))
        return
    for each, path in jobs().items():
        typer.echo(f"{each:<14}{job_summary(path)}")


def conf(
    name: Annotated[str | None, typer.Argument(metavar="[FILE]", help="Print the path of this file only.")] = None,
) -> None:
    """List the settings files, or print the path of one: spark-submit --properties-file $(bookspark conf spark-defaults.conf)
    …"""
    if name is not None:
        typer.echo(settings_file(name))
        return
    for each, path in settings_files().items():
        typer.echo(f"{each:<22}{path}")
