"""The main job from its first process to its last.

Law: all started parts are stopped in the opposite order, however the run ends: success, an error, Ctrl-C, SIGTERM or a
closed terminal. Signals are ignored meanwhile. The parts, in order: the embedded ZooKeeper; the bookies' Spark application
(spark-submit on local-cluster, a child process); a Spark session (``local[2]``, in this process).
"""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.status import Status

import bookspark
from bookspark.errors import ConfigurationError
from bookspark.lab.demo.bookies_application import MASTER, BookiesApplication
from bookspark.lab.demo.inputs import Content, InputFiles, find_input
from bookspark.lab.demo.spark_side import (
    ComparisonError,
    Work,
    compare,
    digest_of_input,
    digest_of_log,
    rate_text,
    rows_of_log,
    spark_session,
    stream,
)
from bookspark.logs import create_log
from bookspark.protocol.ledger.ledger_metadata import Replication
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.servers.daemon.processes import signal_process, wait_for_end
from bookspark.spark.session import LOOPBACK
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES, plain_reason
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.java import find_java
from bookspark.support.cache_folder import cache_folder
from bookspark.support.command_line import COULD_NOT, FOUND, INTERRUPTED
from bookspark.support.log_lines import begin_log
from bookspark.support.packaged_files import settings_folder
from bookspark.support.plain_text import PROBLEM, counted, size_text
from bookspark.support.printed_tables import PrintedTable, facts, width_of
from bookspark.support.private_files import PRIVATE_FILE, make_private_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bookspark.store.client import BookKeeper

log = logging.getLogger(__name__)


# -- Screen: a line for each step, with its progress.
#
# Law: standard error gets progress and problems, standard output only the report. All other output (the JVM's log, Python's
# warnings, Spark's workers) inherits descriptors 1 and 2. So these two lead to the run's log file, and the screen writes to
# copies of the originals.


_PLAIN_INTERVAL_SECONDS = 2.0


class Screen:
    """Writes to the standard output and standard error at the time of its creation."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        self._err = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
        self.report = _console(self._out)
        self._progress = _console(self._err)

    @contextmanager
    def redirected(self, log: Path) -> Iterator[None]:
        """Redirect descriptors 1 and 2 to the file ``log`` within the block, for this process and its children."""
        sys.stdout.flush()
        sys.stderr.flush()
        saved = [os.dup(1), os.dup(2)]
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.dup2(target, 1)
            os.dup2(target, 2)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            os.close(target)

    def say(self, text: str) -> None:
        self._progress.print(text, markup=False)

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        """A long step. Yields a function that shows the step's progress. The last text stays on the screen."""
        began = time.monotonic()
        step = _LiveStep(self._progress, title) if self._progress.is_terminal else _PlainStep(self._progress, title)
        try:
            yield step.tell
        except BaseException:
            step.end()
            self._progress.print(f"[red]✗[/] {escape(title)}")
            raise
        step.end()
        detail = f" [dim]{escape(step.text)}[/]" if step.text else ""
        self._progress.print(f"[green]✓[/] {escape(title)}{detail} [dim]({time.monotonic() - began:.1f} s)[/]")


class _LiveStep:
    """A step on a terminal: one line that changes."""

    def __init__(self, console: Console, title: str) -> None:
        self.text = ""
        self._title = title
        self._status = Status(escape(title) + " …", console=console)
        self._status.start()

    def tell(self, text: str) -> None:
        self.text = text
        self._status.update(f"{escape(self._title)} … [dim]{escape(text)}[/]")

    def end(self) -> None:
        self._status.stop()


class _PlainStep:
    """A step in a file or a pipe: a line every few seconds."""

    def __init__(self, console: Console, title: str) -> None:
        self.text = ""
        self._console = console
        self._title = title
        self._said_at = time.monotonic()
        console.print(f"  {title} …", markup=False)

    def tell(self, text: str) -> None:
        now = time.monotonic()
        if text != self.text and now - self._said_at >= _PLAIN_INTERVAL_SECONDS:
            self._console.print(f"  {self._title} … {text}", markup=False)
            self._said_at = now
        self.text = text

    def end(self) -> None:
        """Do nothing: there is no line to remove."""


def _console(file: TextIO) -> Console:
    return Console(file=file, highlight=False, width=width_of(file))


# -- A run's folder, with all files of the run
#
# Law: two runs never share a folder. The process of a run holds an flock on ``LOCK`` as long as it lives. A folder without a
# holder belongs to an ended run, and only the last few of these are kept. Content::
#
#     run.log         log of Spark and Python             bookies.log     log of the bookies' application
#     zookeeper/      ZooKeeper's data and log            bookies/        the bookies' entry logs, indexes and cookies
#     orders/         the generated orders                input/          links to the streamed files
#     checkpoints/    the streaming queries'              snapshots/      Delta tables
#     spark-work/     the executors' logs                 tmp/            Spark's local directory, removed at the end


ENDED_RUNS_KEPT = 3
_LOCK = "LOCK"


class RunFolder:
    """A new folder ``<runs>/<time>-<pid>``, or the folder ``wanted``, which must be empty or missing. It is locked until
    ``close``. Raises ConfigurationError if ``wanted`` is not empty, or if the folder can't be written or is not private."""

    def __init__(self, runs: Path, wanted: Path | None = None) -> None:
        if wanted is None:
            _remove_ended(runs)
            wanted = runs / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        elif wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigurationError(f"{wanted} exists already and is not empty; name a new folder for the run")
        self.path = path = wanted.absolute()
        self.log, self.bookies_log = path / "run.log", path / "bookies.log"
        self.zookeeper, self.bookies, self.spark_work = path / "zookeeper", path / "bookies", path / "spark-work"
        self.orders, self.input = path / "orders", path / "input"
        self.checkpoints, self.snapshots, self.temporary = path / "checkpoints", path / "snapshots", path / "tmp"
        try:
            make_private_directory(self.path)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
        except OSError as error:
            raise ConfigurationError(f"the run's folder {self.path} can't be written: {error.strerror}") from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for part in (self.input, self.temporary):
            part.mkdir()

    def close(self) -> None:
        """Remove temporary files and release the lock. A later run may then remove the folder."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        os.close(self._lock)


def _remove_ended(runs: Path) -> None:
    """Remove the oldest folders of ended runs. The names sort by time."""
    folders = sorted(path.parent for path in runs.glob(f"*/{_LOCK}"))
    ended = [folder for folder in folders if not _is_running(folder)]
    for folder in ended[: max(0, len(ended) - ENDED_RUNS_KEPT)]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_running(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        # Another run removed the folder at this moment.
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


# -- Report: the input, the log, the speed, and the location of all files.


@dataclass(frozen=True)
class Report:
    """Facts of a successful run."""

    log: str
    source: str
    """Origin of the input, in words."""
    content: Content
    written: Work
    streamed: Work
    read_seconds: float
    killed: str
    """The kill of a bookie, in words; "" without one."""
    bookies: Sequence[str]
    """A line for each bookie."""
    run: RunFolder
    seconds: float
    """Duration of the run so far."""


def describe_bookies(bookkeeper: BookKeeper, bookies: Sequence[dict[str, Any]], run: RunFolder) -> list[str]:
    """A line for each bookie: its id, its amount of data, and its directories."""
    lines = []
    for bookie in sorted(bookies, key=lambda bookie: str(bookie["home"])):
        status = bookkeeper.bookie_status(bookie["bookie_id"])
        places = ", ".join(_inside(run, Path(directory)) for directory in status.directories)
        held = f"{size_text(status.log_bytes)} of {status.ledgers} ledgers"
        lines.append(f"{bookie['bookie_id']}: {held} in {places}")
    return lines


def show(console: Console, report: Report) -> None:
    content, run = report.content, report.run
    lines, size = content.lines, content.size

    def speed(seconds: float) -> str:
        return rate_text(lines, size, seconds)

    pairs = [
        ("input", f"{lines:,} rows, {size_text(size)}, from {report.source}"),
        (
            "into the log",
            f"{speed(report.written.seconds)}, in {counted(report.written.batches, 'micro-batch')}, exactly once",
        ),
        ("out of it", f"{speed(report.streamed.seconds)}, by a second query meanwhile"),
        ("read again", f"{speed(report.read_seconds)}, by a batch query; all three are equal"),
        *([("killed", report.killed)] if report.killed else []),
        *(("" if number else "bookies", line) for number, line in enumerate(report.bookies)),
        ("all of it in", str(run.path)),
        ("there", ", ".join(_inside(run, path) for path in (run.snapshots, run.zookeeper, run.checkpoints, run.log))),
        ("took", f"{report.seconds:.0f} s"),
    ]
    console.print("[bold]Main job")
    console.print(facts(pairs))


def _inside(run: RunFolder, path: Path) -> str:
    return str(path.relative_to(run.path))


def pasteable_lines(zookeeper: str) -> list[tuple[str, str]]:
    """Shell lines that write, read and audit, each as a pair of its word and the line."""
    command = shlex.quote(str(Path(sys.executable).with_name("bookspark")))
    cluster = f"--zookeeper {shlex.quote(zookeeper)}"
    return [
        ("write", f"ledger=$(printf 'hello\\nworld\\n' | {command} ledger append {cluster}); echo \"ledger $ledger\""),
        ("read", f'{command} ledger read {cluster} "$ledger"'),
        ("audit", f"{command} audit {cluster}"),
    ]


# -- Orders of a shop, the rows of a run without a folder
#
# Law: number and seed alone decide the orders, so every run streams the same bytes. Each column is a hash of the order's
# number. Popular countries and products, and a few busy customers, have most of the orders.


ORDERS = 300_000
_ORDER_FILES = 15
"""The run streams some of these files a micro-batch."""
_SEED = 46
_FIRST_ORDER = "TIMESTAMP '2026-01-01 00:00:00'"
_COUNTRIES = ("DE", "DE", "DE", "DE", "FR", "FR", "FR", "PL", "PL", "IT", "ES", "NL", "SE", "CZ", "AT", "PT")
_PRODUCTS = {
    "espresso beans 1 kg": 18.90,
    "filter paper 100": 3.20,
    "kettle": 39.00,
    "hand grinder": 74.50,
    "cup": 9.80,
    "scale": 24.00,
    "milk jug": 16.40,
    "tamper": 21.70,
    "descaler": 7.10,
    "cold brew jar": 28.60,
}
_PAYMENTS = ("card", "card", "card", "invoice", "wallet", "wallet", "transfer")
_COLUMNS = ("order", "placed_at", "customer", "country", "product", "quantity", "unit_price", "payment")


def write_orders(spark: SparkSession, folder: Path) -> None:
    """Write the orders as JSON lines into files of the new ``folder``."""
    prices = ", ".join(f"{price:.2f}" for price in _PRODUCTS.values())
    drawn = spark.range(0, ORDERS, 1, _ORDER_FILES).selectExpr(
        "CONCAT('A-', LPAD(id, 9, '0')) AS order",
        f"{_FIRST_ORDER} + MAKE_DT_INTERVAL(0, 0, 0, id * 0.7 + {_drawn('time', 1000)} / 1500.0) AS placed_at",
        # The cube of a uniform number prefers small ones.
        f"CAST(POW({_drawn('customer', 1_000_000)} / 1000000.0, 3) * 40000 AS INT) AS customer",
        f"{_one_of(_COUNTRIES, 'country')} AS country",
        f"{_one_of(tuple(_PRODUCTS), 'product')} AS product",
        f"1 + CAST(POW({_drawn('quantity', 1000)} / 1000.0, 4) * 6 AS INT) AS quantity",
        f"ELEMENT_AT(ARRAY({prices}), CAST(1 + {_drawn('product', len(_PRODUCTS))} AS INT)) AS unit_price",
        f"{_one_of(_PAYMENTS, 'payment')} AS payment",
    )
    drawn.selectExpr(*_COLUMNS, "quantity * unit_price AS total").write.json(str(folder))


def revenue(rows: DataFrame) -> list[tuple[str, int, str]]:
    """The five countries with the highest revenue in the log's ``rows``: country, number of orders, and total."""
    from pyspark.sql.functions import expr

    orders = rows.selectExpr("FROM_JSON(CAST(value AS STRING), 'country STRING, total DECIMAL(10, 2)') AS order")
    sums = (
        orders.selectExpr("order.*").groupBy("country").agg(expr("COUNT(*) AS orders"), expr("SUM(total) AS revenue"))
    )
    best = sums.orderBy("revenue", ascending=False).take(5)
    return [(row.country, row.orders, f"{row.revenue:,}") for row in best]


def _drawn(column: str, below: int) -> str:
    """A number from 0 up to ``below`` for the order ``id``."""
    return f"PMOD(XXHASH64(id, '{column}', {_SEED}), {below})"


def _one_of(words: tuple[str, ...], column: str) -> str:
    quoted = ", ".join(f"'{word}'" for word in words)
    return f"ELEMENT_AT(ARRAY({quoted}), CAST(1 + {_drawn(column, len(words))} AS INT))"


# -- The job


BOOKIES = 4
"""One more than a ledger's copies, so that another bookie takes the place of a killed one."""
AUDITS = ("replication_factor_histogram", "under_replicated_ranges")
FOLDERS_LOG, ORDERS_LOG = "events", "orders"
_KILL_SECONDS_MAX = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WATCH_SECONDS = 1.0


class Interrupted(KeyboardInterrupt):
    """A signal that ends the run with the exit ``status``."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def run_main_job(folder: Path | None, directory: Path | None, serve: bool) -> int:
    """Run the main job.

    ``folder``: the files to stream; None: generated orders, and a bookie is killed meanwhile. ``directory``: a new folder for all
    files of the run; None: a folder in ``_runs_folder``. ``serve``: keep the cluster up at the end, until Ctrl-C.

    Returns the exit status: 0 for success, 1 if the log differs from its input, 2 for another error, 128 plus the signal's
    number after a signal. Before any start, raises InputError if ``folder`` can't be ingested, and ConfigurationError if
    there is no Java or ``directory`` can't be used.
    """
    find_java()
    inputs = find_input(folder) if folder is not None else None
    run = RunFolder(_runs_folder(), directory)
    screen = Screen()
    screen.say(f"everything that this run writes is in {run.path}")
    with screen.redirected(run.log), _raising_signals():
        begin_log(run.log)
        logging.getLogger("py4j").setLevel(logging.WARNING)
        try:
            with _stopping_undisturbed(screen) as stack:
                _MainJob(run, screen, stack).run(inputs, serve)
            status = 0
        except KeyboardInterrupt as interruption:
            log.info("ended by %s", interruption)
            screen.say(f"{PROBLEM}interrupted; nothing is left running")
            status = interruption.status if isinstance(interruption, Interrupted) else INTERRUPTED
        except Exception as error:
            log.exception("the run failed")
            screen.say(f"{PROBLEM}{plain_reason(error)} (details: {run.log})")
            status = FOUND if isinstance(error, ComparisonError) else COULD_NOT
        run.close()
    return status


@dataclass
class _MainJob:
    run_folder: RunFolder
    screen: Screen
    stack: ExitStack

    def run(self, inputs: InputFiles | None, serve: bool) -> None:
        began = time.monotonic()
        self._prepare_environment()
        folder, screen = self.run_folder, self.screen
        with screen.step("starting ZooKeeper") as tell:
            zookeeper = self.stack.enter_context(EmbeddedZooKeeper(folder.zookeeper)).connection_string
            tell(zookeeper)
        bookies = BookiesApplication(BOOKIES, folder.bookies, zookeeper, folder.bookies_log, self._spark_conf())
        self.stack.callback(bookies.stop)
        # They start beside the second application, which does not need them before the first write.
        bookies.start(os.environ)
        name = FOLDERS_LOG if inputs is not None else ORDERS_LOG
        with ExitStack() as spark_stack:
            with screen.step(f"starting two Spark applications, one with {BOOKIES} bookies on executors ({MASTER})"):
                spark = spark_stack.enter_context(spark_session(zookeeper, self._spark_conf()))
                # Spark has replaced our handlers with its own.
                _raise_on_signals()
            generated = inputs is None
            if inputs is None:
                with screen.step(f"generating {ORDERS:,} orders"):
                    write_orders(spark, folder.orders)
                    inputs = find_input(folder.orders)
            with screen.step("waiting for the bookies") as tell:
                bookies.wait(tell)
                tell(", ".join(f"{bookie['bookie_id']} at {bookie['address']}" for bookie in bookies.bookies))
            bookkeeper = spark_stack.enter_context(bookspark.BookKeeper(zookeeper))
            # Guaranteed: rows that a killed bookie did not get are on another one, so the audit finds three copies of each.
            create_log(bookkeeper, name, options=LogOptions(replication=Replication.GUARANTEED))
            kill = _Kill(bookies, bookkeeper, inputs.content.lines // 2, screen.say) if generated else None
            written, streamed = self._stream(spark, name, inputs, kill)
            with screen.step("reading the log again, and comparing all three") as tell:
                read_began = time.monotonic()
                stored = digest_of_log(spark, name)
                read_seconds = time.monotonic() - read_began
                compare(name, inputs.content, digest_of_input(spark, folder.input), stored, streamed.digest)
                inputs.check_unchanged()
                tell(f"{stored.lines:,} rows, {size_text(stored.size)}: equal, none lost, none twice")
            if kill is not None:
                rows = revenue(rows_of_log(spark, name))
                title = "Revenue by country, from the log"
                screen.report.print(PrintedTable(("country", "orders", "revenue"), rows, title))
            self._audit(spark, zookeeper)
            report = Report(
                log=name,
                source=f"{counted(len(inputs.files), 'file')} in {inputs.folder}",
                content=inputs.content,
                written=written,
                streamed=streamed,
                read_seconds=read_seconds,
                killed=kill.told if kill is not None else "",
                bookies=describe_bookies(bookkeeper, bookies.bookies, folder),
                run=folder,
                seconds=time.monotonic() - began,
            )
            with screen.step("stopping the second Spark application"):
                spark_stack.close()
        show(screen.report, report)
        if serve:
            self._serve(zookeeper, bookies)

    def _prepare_environment(self) -> None:
        """Set the variables for this process and its children: this Spark, this Python, and the run's folder for all files."""
        import pyspark

        # pyspark's own search for SPARK_HOME fails if the path has spaces.
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        os.environ["SPARK_CONF_DIR"] = str(settings_folder())
        os.environ["SPARK_LOCAL_DIRS"] = str(self.run_folder.temporary)
        os.environ["SPARK_WORKER_DIR"] = str(self.run_folder.spark_work)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    def _spark_conf(self) -> dict[str, str]:
        return {
            "spark.sql.warehouse.dir": str(self.run_folder.temporary / "warehouse"),
            # Splits of this size keep both cores busy with a large file.
            "spark.sql.files.maxPartitionBytes": "16m",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.executor.extraJavaOptions": QUICK_JVM,
        }

    def _stream(self, spark: SparkSession, name: str, inputs: InputFiles, kill: _Kill | None) -> tuple[Work, Work]:
        folder, expected = self.run_folder, inputs.content
        inputs.link_into(folder.input)
        with self.screen.step(f"streaming into log {name!r}, and out of it again") as tell:

            def look(written: Work, read: Work) -> None:
                tell(
                    f"in {written.rows:,} of {expected.lines:,} rows ({written.rows_per_second:,.0f} rows/s), "
                    f"out {read.rows:,} ({read.rows_per_second:,.0f} rows/s)"
                )
                if kill is not None:
                    kill.look(written.rows)

            return stream(spark, name, folder.input, folder.checkpoints, expected, look)

    def _audit(self, spark: SparkSession, zookeeper: str) -> None:
        from bookspark.spark import audit, snapshots

        path = str(self.run_folder.snapshots)
        for name, value in SMALL_TABLES.items():
            spark.conf.set(name, value)
        with self.screen.step("writing the snapshot tables") as tell:
            snapshot = snapshots.write(spark, zookeeper, path)
            tell(f"version {snapshot.version} of {', '.join(snapshots.written())}")
        with self.screen.step("auditing where each entry lies"):
            findings = audit.run(spark, path, queries=AUDITS)
        audit.show(findings, self.screen.report)

    def _serve(self, zookeeper: str, bookies: BookiesApplication) -> None:
        console = self.screen.report
        console.print(f"\nThe cluster serves at {zookeeper} until Ctrl-C. Lines to paste into a shell:\n", markup=False)
        for what, line in pasteable_lines(zookeeper):
            console.print(f"# {what}", markup=False)
            console.print(line, markup=False, soft_wrap=True)
        while True:
            bookies.check()
            time.sleep(_WATCH_SECONDS)


class _Kill:
    """Kills a bookie of the ledger that is written, once ``rows`` rows are in the log, and reports its next process."""

    def __init__(
        self, application: BookiesApplication, bookkeeper: BookKeeper, rows: int, say: Callable[[str], None]
    ) -> None:
        self._application = application
        self._bookkeeper = bookkeeper
        self._rows = rows
        self._say = say
        self._victim = ""
        self._at = 0.0
        self._is_back = False
        self.told = ""

    def look(self, rows: int) -> None:
        if not self._victim and rows >= self._rows:
            self._victim = self._bookie_in_use()
            process = self._application.process_of(self._victim)
            if process is not None:
                signal_process(process, signal.SIGKILL)
                wait_for_end(process, _KILL_SECONDS_MAX)
                self._at = time.monotonic()
                self.told = f"{self._victim} (SIGKILL) after {rows:,} rows"
                self._say(f"! killed {self.told}: the queries go on")
        elif self._victim and not self._is_back and self._application.process_of(self._victim) is not None:
            self._is_back = True
            back = f"its task started it again within {time.monotonic() - self._at:.1f} s"
            self.told += f"; {back}"
            self._say(f"! {self._victim} is back: {back}")

    def _bookie_in_use(self) -> str:
        """A bookie of the newest open ledger, else any."""
        records = [record for record, _ in self._bookkeeper.metadata.read_ledgers(self._bookkeeper.list_ledgers(), {})]
        used = [record for record in records if not record.closed]
        newest = max(used, key=lambda record: record.ledger_id, default=None)
        return self._application.bookies[0]["bookie_id"] if newest is None else newest.last_fragment.ensemble[0]


def _runs_folder() -> Path:
    """The folder of the runs' folders: ``.cache/runs`` in a checkout, else ``runs`` in the user's cache."""
    checkout = Path(bookspark.__file__).resolve().parents[1]
    return checkout / ".cache" / "runs" if (checkout / "scripts" / "run").is_file() else cache_folder() / "runs"


@contextmanager
def _stopping_undisturbed(screen: Screen) -> Iterator[ExitStack]:
    """Yield a stack, closed while signals are ignored: a second Ctrl-C can't leave a process running."""
    stack = ExitStack()
    try:
        yield stack
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with screen.step("stopping the bookies and ZooKeeper"):
            stack.close()


@contextmanager
def _raising_signals() -> Iterator[None]:
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    _raise_on_signals()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _raise_on_signals() -> None:
    for number in _SIGNALS:
        # A run under nohup continues: SIGHUP stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)
