"""The main function of the job ``bookies``: a bookie service as its own Spark application.

Law: exactly one line on standard output begins with ``{``; it comes once every bookie within reach of an executor serves. The
other lines (spark-submit joins both streams) are progress, ``bookies: …``, and an error, ``bookspark bookies: …``, with the fault
and the remedy. The job ends cleanly on SIGTERM and SIGINT, and also if its parent (spark-submit or the application master) ends.

On a local master, the job then stops the bookies: Spark and they share a host and a user. On a cluster they serve on, because the
end may be a restart, the death of an application master or ``yarn kill``. The next run adopts them, and the command ``bookspark
stop-bookies`` stops them.

A process of autorecovery runs beside the driver until the job ends, unless ``--no-autorecovery``: without one, lost copies are
never replaced. The job ``autorecovery`` runs more of them, on the executors.

With ``--console-port`` the driver shows the console until the job ends. Consoles belong to packages above this one, so the caller
passes a function that opens one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Meta
from pyspark import SparkConf, SparkContext

from bookspark.errors import BookieError, BookKeeperError, ConfigurationError
from bookspark.spark.bookies.barrier_job import TaskFor, root_cause
from bookspark.spark.bookies.bookie_service import EMBEDDED, WAIT_FOR_MISSING_SECONDS, BookieService
from bookspark.spark.session import SPARK_ERRORS, session
from bookspark.store.autorecovery.child import AutorecoveryProcess
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.settings import of_environment
from bookspark.support.arguments import check_names, checked
from bookspark.support.command_line import COULD_NOT
from bookspark.support.plain_text import one_line, printable

_LOOK_SECONDS = 0.5
_RESTART_SECONDS = 10.0


@dataclass(frozen=True)
class BookiesJobOptions:
    bookies: int
    directory: list[str]
    zookeeper: str
    bookie_options: dict[str, Any]
    create: bool
    one_core_per: TaskFor
    wait_for_missing: float
    console: ConsoleOptions | None
    autorecovery: bool


@dataclass(frozen=True)
class ConsoleOptions:
    port: int
    """0: any free port."""
    listen: str
    token_file: str
    snapshots: str


OpenConsole = Callable[[str, ConsoleOptions], AbstractContextManager[str]]
"""Shows the cluster at that ZooKeeper until its block ends; returns its address."""


def main(
    arguments: list[str], open_console: OpenConsole | None = None, check_console: Callable[[], None] = lambda: None
) -> int:
    """Run the job. Returns the exit status: 0 after a signal, 2 after an error, which is printed in one line. ``check_console``
    raises BookKeeperError if no console can be opened, before a bookie starts."""
    ended, serving = threading.Event(), threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        if ended.is_set():
            return
        ended.set()
        if not serving.is_set():
            raise _EndedWhileStarting

    try:
        options = parse_arguments(arguments)
        if options.console is not None:
            check_console()
        _on_signal(end)
        _serve(options, end, ended, serving, open_console)
    except (_EndedWhileStarting, KeyboardInterrupt):
        # Spark's own handler raises KeyboardInterrupt.
        return 0
    except BookKeeperError as error:
        print(f"bookspark bookies: {one_line(error)}", file=sys.stderr, flush=True)
        return COULD_NOT
    except SPARK_ERRORS as error:
        print(f"bookspark bookies: {printable(root_cause(error))}", file=sys.stderr, flush=True)
        return COULD_NOT
    return 0


class _EndedWhileStarting(BaseException):
    """A signal came before the bookies served. It ends the start and stops the started bookies."""


def _on_signal(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _serve(
    options: BookiesJobOptions,
    end: Callable[[int, FrameType | None], None],
    ended: threading.Event,
    serving: threading.Event,
    open_console: OpenConsole | None,
) -> None:
    parent = os.getppid()
    spark = session("bookspark bookies", zookeeper=None, **_settings(options.bookies))
    # Spark has replaced our handlers: set them again.
    _on_signal(end)
    service = BookieService(
        spark,
        bookies=options.bookies,
        directories=options.directory,
        zookeeper=options.zookeeper,
        progress=_say,
        create=options.create,
        one_core_per=options.one_core_per,
        # This application runs no other jobs, and no other application can use its slots.
        leave_slots_free=False,
        wait_for_missing_seconds=options.wait_for_missing,
        **options.bookie_options,
    )
    shown = ExitStack()
    try:
        service.start()
        url = ""
        if options.console is not None and open_console is not None:
            url = shown.enter_context(open_console(service.zookeeper, options.console))
            _say(f"the console is at {url}")
        serving.set()
        print(json.dumps(_description(service) | ({"console": url} if url else {})), flush=True)
        autorecovery = shown.enter_context(_autorecovery(service.zookeeper)) if options.autorecovery else None
        while not ended.wait(_LOOK_SECONDS) and os.getppid() == parent and not service.told_to_stop:
            if service.failure:
                raise BookKeeperError(f"the bookies are not looked after any more: {service.failure}")
            if autorecovery is not None:
                autorecovery.keep()
    finally:
        shown.close()
        if service.told_to_stop or spark.sparkContext.master.startswith("local"):
            service.stop()
        elif serving.is_set():
            service.let_go()
            _say("left to serve on; start this job again to look after them, or stop them: bookspark stop-bookies")
        else:
            service.let_go()
        spark.stop()


class _Autorecovery:
    """A process of autorecovery, started again if it ends."""

    def __init__(self, process: AutorecoveryProcess) -> None:
        self._process = process
        self._next = 0.0
        self._said = ""

    def keep(self) -> None:
        """Start the process if it does not run, at most once in ``_RESTART_SECONDS``."""
        now = time.monotonic()
        if self._process.pid is not None or now < self._next:
            return
        self._next = now + _RESTART_SECONDS
        try:
            self._process.start()
            line = f"autorecovery runs here as {self._process.name}"
        except BookieError as error:
            line = f"autorecovery is tried again every {_RESTART_SECONDS:g} s: {one_line(error)}"
        if line != self._said:
            _say(line)
        self._said = line


@contextmanager
def _autorecovery(zookeeper: str) -> Iterator[_Autorecovery]:
    """Autorecovery beside the driver, with the settings file of the environment."""
    with tempfile.TemporaryDirectory(prefix="bookspark-autorecovery-") as folder:
        log = Path(folder, "autorecovery.log")
        process = AutorecoveryProcess(zookeeper, log, of_environment("client"), of_environment("autorecovery"))
        kept = _Autorecovery(process)
        kept.keep()
        try:
            yield kept
        finally:
            with suppress(BookieError):
                process.stop()


_SOON = {
    # By default an attempt with too few slots waits ten minutes in silence, and the bookies' leases end.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "8",
    # The task of the next attempt takes over the bookies of this one.
    "spark.python.task.killTimeout": "500ms",
}


def _settings(bookies: int) -> dict[str, str]:
    """The job's Spark settings, without those of spark-submit."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return _SOON
    SparkContext._ensure_initialized()
    given = SparkConf()
    wanted = dict(_SOON)
    if given.get("spark.master", "").startswith("spark:"):
        # Without a limit, a standalone master gives an application all cores.
        wanted["spark.cores.max"] = str(bookies)
    return {name: value for name, value in wanted.items() if not given.contains(name)}


def _say(line: str) -> None:
    # This output goes through spark-submit, which may have ended.
    with suppress(OSError):
        print(f"bookies: {printable(line)}", file=sys.stderr, flush=True)


def _description(service: BookieService) -> dict[str, object]:
    return {
        "zookeeper": service.zookeeper,
        "pid": os.getpid(),
        "bookies": [
            {name: getattr(bookie, name) for name in ("bookie_id", "address", "pid", "host", "home")}
            for bookie in service.bookies.values()
        ],
        "missing": list(service.missing),
        "executors": [
            {"executor_id": task.executor_id, "pid": task.executor_pid} for task in service.executors.values()
        ],
    }


def parse_arguments(arguments: list[str]) -> BookiesJobOptions:
    """The job's options. Raises ConfigurationError for wrong ``arguments``. ``--help`` prints the help and raises SystemExit."""
    try:
        parsed = typer.main.get_command(_app).main(arguments, prog_name="bookies.py", standalone_mode=False)
    except _UsageError as error:
        raise ConfigurationError(f"{error.format_message().rstrip('.')}; see --help") from error
    # ``--help`` returns its exit status instead of options.
    if not isinstance(parsed, BookiesJobOptions):
        sys.exit(parsed)
    return parsed


_UsageError: Any = typer.BadParameter.__base__
"""Typer's error for wrong arguments. Newer versions bundle click, so click's name is not enough."""

_app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@_app.command(
    help="Keep bookies on Spark's executors.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@checked
def _options(
    context: typer.Context,
    bookies: Annotated[int, Meta(ge=1), typer.Option(help="Number of bookies.")] = 3,
    directory: Annotated[
        list[str] | None,
        typer.Option(help="Folder for entries on each host. Repeat for each disk."),
    ] = None,
    zookeeper: Annotated[
        str,
        typer.Option(help="host:port[,host:port…][/chroot]. Default: the job runs one in the first directory."),
    ] = EMBEDDED,
    create: Annotated[
        bool,
        typer.Option("--create", help="Create missing bookies, as the first start does."),
    ] = False,
    one_core_per: Annotated[
        TaskFor, typer.Option(help="The job takes a core for each bookie or each executor's host.")
    ] = TaskFor.BOOKIE,
    wait_for_missing: Annotated[
        float,
        Meta(ge=0, le=1e9),
        typer.Option(metavar="SECONDS", help="Longest wait for bookies on hosts without an executor."),
    ] = WAIT_FOR_MISSING_SECONDS,
    console_port: Annotated[
        int | None,
        Meta(ge=0, le=65535),
        typer.Option(help="Port of the console at the driver. 0: any free port, printed."),
    ] = None,
    console_listen: Annotated[
        str,
        typer.Option(metavar="HOST", help="Address of the console. Off loopback it needs --console-token-file."),
    ] = "127.0.0.1",
    console_token_file: Annotated[
        str, typer.Option(metavar="FILE", help="File of tokens, one a line, as for bookspark console.")
    ] = "",
    console_snapshots: Annotated[str, typer.Option(metavar="PATH", help="Folder of snapshots for the console.")] = "",
    autorecovery: Annotated[
        bool,
        typer.Option(
            "--autorecovery/--no-autorecovery", help="Run autorecovery at the driver, which replaces lost copies."
        ),
    ] = True,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the bookies, such as lease_seconds=30."),
    ] = None,
) -> BookiesJobOptions:
    rest = context.args
    names = [argument.partition("=")[0] for argument in rest if argument.startswith("-")]
    known = [name for option in context.command.params for name in (*option.opts, *option.secondary_opts)]
    check_names(names, [*known, "--help"], "option")
    if rest:
        raise ConfigurationError(f"{rest[0]!r} is not expected here; see --help")
    console = None
    if console_port is not None:
        console = ConsoleOptions(console_port, console_listen, console_token_file, console_snapshots)
    return BookiesJobOptions(
        bookies,
        list(directory or ()),
        zookeeper,
        dict(map(_bookie_option, option or ())),
        create,
        one_core_per,
        wait_for_missing,
        console,
        autorecovery,
    )


def _bookie_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {text!r}: write NAME=VALUE, for example lease_seconds=30")
    check_names([name], set(BookieConfig.__struct_fields__) - {"directories", "zookeeper"}, "bookie option")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
