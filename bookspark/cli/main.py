"""The ``bookspark`` command.

Law: it ends with status 0 when it did what was asked, 1 when it could not (one line on stderr says what is wrong and what to
do), 2 when the command line itself is wrong, 130 after Ctrl-C. ``bookspark --debug …`` shows where an error came from.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from bookspark.cli import (
    audit,
    autorecovery,
    bench,
    bookie,
    bookies,
    chaos,
    cookie,
    ledger,
    log,
    run,
    settings,
    simulate,
)
from bookspark.cli.output import one_line, problem
from bookspark.errors import BookKeeperError

_INTERRUPTED = 130

app = typer.Typer(
    name="bookspark",
    help="Spark-native ledger storage: clusters, ledgers, logs and audits.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
run.add_to(app)
bookies.add_to(app)
app.add_typer(ledger.app, name="ledger")
app.add_typer(log.app, name="log")
audit.add_to(app)
app.add_typer(cookie.app, name="cookie")
app.add_typer(bookie.app, name="bookie")
app.add_typer(autorecovery.app, name="autorecovery")
simulate.add_to(app)
chaos.add_to(app)
app.add_typer(bench.app, name="bench")

_debug = False


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bookspark {metadata.version('bookspark')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Tell the version.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(envvar="BOOKSPARK_CONFIG", help="Settings, as conf/bookspark.toml shows them.")
    ] = None,
) -> None:
    global _debug
    _debug = debug
    settings.choose(config)


def main() -> None:
    """Run the command that ``sys.argv`` names, and end the process with its status."""
    try:
        app()
    except BookKeeperError as error:
        if _debug:
            traceback.print_exc()
        problem(one_line(error))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`| head`). Python would complain when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if _debug:
            raise
        problem(f"failed with {type(error).__name__}: {one_line(error)}; `bookspark --debug …` shows where")
    sys.exit(1)


if __name__ == "__main__":
    main()
