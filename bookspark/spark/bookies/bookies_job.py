"""The main function of ``jobs/bookies.py``: a bookie service as an application of its own.

Law: one line on standard output begins with ``{``: it comes once every bookie serves. The others (spark-submit puts both
streams into one) are progress, ``bookies: …``, and what is wrong, ``bookspark bookies: <what is wrong and what to do>``.
It ends cleanly on SIGTERM and SIGINT, and also when spark-submit, its parent, was ended instead of it: the bookies are
then asked directly, as there is no Spark any more that could.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import msgspec

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.protocol.ledger.option_checks import check_names
from bookspark.spark.bookies.barrier_job import root_cause
from bookspark.spark.bookies.bookie_service import EMBEDDED, BookieService
from bookspark.spark.session import SPARK_ERRORS, session

_LOOK_SECONDS = 0.5


def main(arguments: list[str]) -> int:
    """Run the job; returns the exit status."""
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
    except (_EndedWhileStarting, KeyboardInterrupt):  # the second one is what Spark's handler raises
        return 0
    except BookKeeperError as error:
        print(f"bookspark bookies: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 1
    except SPARK_ERRORS as error:
        print(f"bookspark bookies: {root_cause(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


class _EndedWhileStarting(BaseException):
    """A signal came before the bookies served: the start is given up, which stops what was started."""


_Handler = Callable[[int, FrameType | None], None]


def _on_signal(handler: _Handler) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _serve(options: argparse.Namespace, end: _Handler, ended: threading.Event, serving: threading.Event) -> None:
    parent = os.getppid()
    spark = session("bookspark bookies", zookeeper=None)
    _on_signal(end)  # Spark has set a handler of its own
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
    with suppress(OSError):  # spark-submit passes on what is printed here, and may have been ended
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


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as our errors do, instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; see --help")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="bookies.py", description="Keep bookies on Spark's executors.", allow_abbrev=False)
    parser.add_argument("--bookies", type=int, default=3, help="how many (default 3)")
    parser.add_argument(
        "--directory", action="append", default=[], help="where bookies keep entries on each host; once for each disk"
    )
    parser.add_argument(
        "--zookeeper",
        default=EMBEDDED,
        help="host:port[,host:port…][/chroot]; default: one of its own, in the first directory",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a bookie's option, for example lease_seconds=30",
    )
    options, rest = parser.parse_known_args(arguments)
    names = [argument.partition("=")[0] for argument in rest if argument.startswith("-")]
    check_names(names, ["--bookies", "--directory", "--zookeeper", "--option", "--help"], "option")
    if rest:
        raise ConfigurationError(f"{rest[0]!r} is not expected here; see --help")
    options.bookie_options = dict(map(_bookie_option, options.option))
    return options


def _bookie_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {text!r}: write NAME=VALUE, for example lease_seconds=30")
    check_names([name], set(BookieConfig.__struct_fields__) - {"directories", "zookeeper"}, "bookie option")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
