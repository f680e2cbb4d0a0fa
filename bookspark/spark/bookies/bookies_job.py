"""The main function of the job ``bookies``: a bookie service as a Spark application of its own.

Law: one line on standard output begins with ``{``. It comes once every bookie serves. The other lines (spark-submit puts both
streams into one) are progress, ``bookies: …``, and an error, ``bookspark bookies: <what is wrong and what to do>``. The job ends
cleanly on SIGTERM and SIGINT. It also ends cleanly if spark-submit, its parent, was ended instead: Spark is gone then, so the job
asks the bookies directly.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.config_checks import check_names
from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.spark.bookies.barrier_job import root_cause
from bookspark.spark.bookies.bookie_service import EMBEDDED, BookieService
from bookspark.spark.session import SPARK_ERRORS, session

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class BookiesJobOptions:
    """The job's options."""

    bookies: int
    """Number of bookies."""
    directory: list[str]
    """Where bookies keep entries on each host, one for each disk."""
    zookeeper: str
    """The cluster's ZooKeeper, or ``EMBEDDED``."""
    bookie_options: dict[str, object]
    """Options of the bookies."""


def main(arguments: list[str]) -> int:
    """Run the job. Returns the exit status: 0 after a signal, 1 after an error, which is printed in one line."""
    ended, serving = threading.Event(), threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        if ended.is_set():
            return
        ended.set()
        if not serving.is_set():
            raise _EndedWhileStarting

    try:
        options = parse_arguments(arguments)
        _on_signal(end)
        _serve(options, end, ended, serving)
    except (_EndedWhileStarting, KeyboardInterrupt):
        # KeyboardInterrupt comes from Spark's own handler.
        return 0
    except BookKeeperError as error:
        print(f"bookspark bookies: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 1
    except SPARK_ERRORS as error:
        print(f"bookspark bookies: {root_cause(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


class _EndedWhileStarting(BaseException):
    """A signal came before the bookies served. It ends the start, and stops what was started."""


_Handler = Callable[[int, FrameType | None], None]


def _on_signal(handler: _Handler) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _serve(options: BookiesJobOptions, end: _Handler, ended: threading.Event, serving: threading.Event) -> None:
    parent = os.getppid()
    spark = session("bookspark bookies", zookeeper=None)
    # Spark has replaced our handlers with its own, so they are set again.
    _on_signal(end)
    service = BookieService(
        spark,
        bookies=options.bookies,
        directories=options.directory,
        zookeeper=options.zookeeper,
        progress=_say,
        **options.bookie_options,
    )
    try:
        service.start()
        serving.set()
        print(json.dumps(_description(service)), flush=True)
        while not ended.wait(_LOOK_SECONDS) and os.getppid() == parent:
            if service.failure:
                raise BookKeeperError(f"the bookies are not looked after any more: {service.failure}")
    finally:
        service.stop()
        spark.stop()


def _say(line: str) -> None:
    # This output goes through spark-submit, which may have ended.
    with suppress(OSError):
        print(f"bookies: {line}", file=sys.stderr, flush=True)


def _description(service: BookieService) -> dict[str, object]:
    return {
        "zookeeper": service.zookeeper,
        "pid": os.getpid(),
        "bookies": [
            {name: getattr(bookie, name) for name in ("bookie_id", "address", "pid", "host", "home")}
            for bookie in service.bookies.values()
        ],
        "executors": [
            {"executor_id": task.executor_id, "pid": task.executor_pid} for task in service.executors.values()
        ],
    }


def parse_arguments(arguments: list[str]) -> BookiesJobOptions:
    """The job's options. Raises ConfigurationError if ``arguments`` can't be used. ``--help`` prints the help and raises
    SystemExit."""
    try:
        parsed = typer.main.get_command(_app).main(arguments, prog_name="bookies.py", standalone_mode=False)
    except _UsageError as error:
        raise ConfigurationError(f"{error.format_message().rstrip('.')}; see --help") from error
    # ``--help`` returns its exit status instead of options.
    if not isinstance(parsed, BookiesJobOptions):
        sys.exit(parsed)
    return parsed


_UsageError: Any = typer.BadParameter.__base__
"""What typer raises for arguments that can't be used. Newer versions have their own click, so click's name is not enough."""

_app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@_app.command(
    help="Keep bookies on Spark's executors.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def _options(
    context: typer.Context,
    bookies: Annotated[int, typer.Option(help="Number of bookies.")] = 3,
    directory: Annotated[
        list[str] | None,
        typer.Option(help="Where bookies keep entries on each host. Give it once for each disk."),
    ] = None,
    zookeeper: Annotated[
        str,
        typer.Option(help="host:port[,host:port…][/chroot]. By default the job runs one in the first directory."),
    ] = EMBEDDED,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the bookies, for example lease_seconds=30."),
    ] = None,
) -> BookiesJobOptions:
    rest = context.args
    names = [argument.partition("=")[0] for argument in rest if argument.startswith("-")]
    check_names(names, ["--bookies", "--directory", "--zookeeper", "--option", "--help"], "option")
    if rest:
        raise ConfigurationError(f"{rest[0]!r} is not expected here; see --help")
    return BookiesJobOptions(bookies, list(directory or ()), zookeeper, dict(map(_bookie_option, option or ())))


def _bookie_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {text!r}: write NAME=VALUE, for example lease_seconds=30")
    check_names([name], set(BookieConfig.__struct_fields__) - {"directories", "zookeeper"}, "bookie option")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
