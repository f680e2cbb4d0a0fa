"""Bookies on Spark's executors: a barrier job that is submitted again when it fails; the bookies live on meanwhile.

Law: Spark kills every task of a barrier stage when it loses one, and never retries such a stage, so nothing that must
go on may live in a task. The job only *looks after* bookies (see ``bookie_task``): a lost executor costs each bookie a
few seconds without a keeper, which its lease outlasts by far, and no bookie a moment of service. ``stop`` ends the
bookies cleanly, whatever is left of the job.

    service = BookieService(spark, bookies=3, directories=["/disk1/bookspark", "/disk2/bookspark"])
    service.start()
    service.zookeeper, service.bookies
    service.stop()

Each executor keeps one slot free of bookies, for sinks and sources. Barrier stages are never speculated (Spark's own
rule). The job may be any application's, but one of its own is best: queries then come and go beside it. Source:
docs/decisions/bookies-outlive-tasks.md.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from bookspark.bookie.bookie_config import BookieConfig, bookie_config
from bookspark.daemon.lease_client import LeaseConnection, LeaseLostError
from bookspark.daemon.lease_server import SERVING
from bookspark.errors import BookieError, BookKeeperError, ConfigurationError
from bookspark.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.protocol.ledger.option_checks import check_names
from bookspark.spark.bookies.bookie_task import TaskSpec, look_after_bookies
from bookspark.spark.bookies.homes import find_homes, home_directories
from bookspark.spark.bookies.service_records import (
    BookieReport,
    ServiceRecord,
    TaskReport,
    delete_service,
    read_tasks,
    service_name,
    write_service,
)
from bookspark.spark.bookies.slots import await_slots, slots_of

EMBEDDED = "embedded"
START_SECONDS = 120.0
STOP_SECONDS = 90.0
_FAILURES_MAX = 3
"""A bookie that failed so often in a row while the service starts keeps it from starting."""
_LOOK_SECONDS = 0.2
_LASTED_SECONDS = 30.0
"""An attempt that went on so long was a good one: the next is not put off."""
_COVERAGE_SECONDS = 2.0
_CANCEL_SECONDS = 15.0
_ASK_SECONDS = 5.0
_RESUBMIT_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)

log = logging.getLogger(__name__)


class ServiceBookie(BookieReport, frozen=True):
    """A bookie and where it is looked after."""

    host: str = ""
    partition: int = 0


class BookieService:
    """``bookies`` bookies over ``directories``, the roots on each host (one per disk). ``zookeeper``: a connection
    string, or "embedded" for one that the service starts and stops. ``progress`` hears one line at each step of the
    start. ``bookie_options``: fields of BookieConfig. Homes that lie in the roots already are served even if they
    are more than ``bookies``."""

    def __init__(
        self,
        spark: SparkSession,
        bookies: int = 3,
        directories: Sequence[str | Path] = (),
        zookeeper: str = EMBEDDED,
        progress: Callable[[str], None] | None = None,
        **bookie_options: Any,
    ) -> None:
        check_names(
            bookie_options,
            {"bookies", "directories", "zookeeper", "progress", *BookieConfig.__struct_fields__},
            "BookieService option",
        )
        if bookies < 1:
            raise ConfigurationError(f"bookies={bookies}: a bookie service has 1 or more")
        if not directories:
            raise ConfigurationError(
                "a bookie service needs directories: name one per disk, as they are called on the executors' hosts"
            )
        if bookie_options.get("port"):
            raise ConfigurationError("bookies of one host can't share a port: leave port out")
        bookie_config(directories=["/"], zookeeper="", **bookie_options)  # ill-typed options: now, not in a task
        self._context = spark.sparkContext
        self._count = bookies
        self._roots = tuple(str(Path(directory).absolute()) for directory in directories)
        self._given_zookeeper = zookeeper
        self._options = bookie_options
        self._progress = progress or (lambda line: log.info("%s", line))
        self._local = self._context.master.startswith("local")
        self._service = service_name(self._context.master, self._roots)
        self._run = secrets.token_hex(8)
        self._attempt = 0
        self._stack = ExitStack()
        self._store: ZooKeeperStore | None = None
        self._zookeeper = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._tasks = 0

    @property
    def zookeeper(self) -> str:
        """The connection string, for BookKeeper and for sessions. Raises BookieError before ``start``."""
        if not self._zookeeper:
            raise BookieError("the bookie service is not started: call start() first")
        return self._zookeeper

    @property
    def bookies(self) -> dict[str, ServiceBookie]:
        """Every bookie by id, as the task that looked after it last reported it."""
        latest: dict[tuple[str, str], ServiceBookie] = {}
        for task in sorted(self._reports(), key=lambda task: task.attempt):
            for bookie in task.bookies:
                place = task.host, bookie.home
                if not bookie.bookie_id and place in latest:  # just adopted: the report before knows who it is
                    before = latest[place]
                    bookie = msgspec.structs.replace(bookie, bookie_id=before.bookie_id, address=before.address)
                latest[place] = _at(bookie, task)
        return {bookie.bookie_id: bookie for bookie in latest.values() if bookie.bookie_id}

    @property
    def executors(self) -> dict[int, TaskReport]:
        """The tasks of the present attempt by partition, with ``executor_id``, ``executor_pid`` and the ``bookies``
        of each."""
        return {task.partition: task for task in self._reports() if task.attempt == self._attempt}

    @property
    def failure(self) -> str:
        """Why the job is not submitted any more; empty while it is."""
        return self._failure

    def start(self, timeout: float = START_SECONDS) -> None:
        """Return once every bookie serves. A failed start leaves nothing running. Raises ConfigurationError,
        BookieError or MetadataStoreError with one line that says what to do."""
        try:
            self._start(time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop every bookie cleanly, then the job, then ZooKeeper if it was started here. May be called again."""
        self._stopping.set()
        if self._thread is not None and self._store is not None:
            self._progress("stopping the bookies")
            with suppress(BookKeeperError):  # they are then asked one by one, below
                write_service(self._store, self._service, ServiceRecord(self._run, stop=True))
            self._thread.join(timeout)
            if self._thread.is_alive():
                log.warning("the bookies' tasks did not end within %g s; cancelling them", timeout)
                self._cancel()
                self._thread.join(_CANCEL_SECONDS)
            self._thread = None
            self._stop_left_behind()
            with suppress(BookKeeperError):
                delete_service(self._store, self._service)
        self._stack.close()
        self._store, self._zookeeper = None, ""

    def __enter__(self) -> BookieService:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, deadline: float) -> None:
        if self._thread is not None:
            raise BookieError("the bookie service is started already")
        self._stopping.clear()
        self._failure, self._attempt, self._run = "", 0, secrets.token_hex(8)
        self._progress("waiting for the executors")
        await_slots(self._context, self._count)
        self._zookeeper = self._find_zookeeper()
        self._store = ZooKeeperStore(self._zookeeper)
        self._stack.callback(self._store.close)
        write_service(self._store, self._service, ServiceRecord(self._run))
        self._progress(f"submitting {self._count} barrier tasks")
        self._thread = InheritableThread(target=self._keep_submitted, name="bookie service", daemon=True)
        self._thread.start()
        self._await_serving(deadline)
        InheritableThread(target=self._keep_covered, name="bookie service coverage", daemon=True).start()

    def _find_zookeeper(self) -> str:
        if self._given_zookeeper != EMBEDDED:
            return self._given_zookeeper
        if not self._local:
            raise ConfigurationError(
                "the embedded ZooKeeper is reached from its own host only, and executors may be elsewhere: "
                "give zookeeper=host:port"
            )
        self._progress("starting ZooKeeper")
        return self._stack.enter_context(EmbeddedZooKeeper(Path(self._roots[0]) / "zookeeper")).connection_string

    def _await_serving(self, deadline: float) -> None:
        """Return once all serve; raise when one can't, or at the deadline, with what is missing."""
        told: dict[str, str] = {}
        while True:
            bookies = [_at(bookie, task) for task in self.executors.values() for bookie in task.bookies]
            for bookie in bookies:
                line = _line(bookie)
                if told.get(bookie.home) != line:
                    told[bookie.home] = line
                    self._progress(line)
                if bookie.failures >= _FAILURES_MAX:
                    raise BookieError(f"a bookie on {bookie.host} can't be started: {bookie.problem}")
            if len(bookies) >= self._count and all(bookie.phase == SERVING for bookie in bookies):
                return
            if self._failure:
                raise BookieError(self._failure)
            if time.monotonic() > deadline:
                waiting = (
                    "; ".join(_line(bookie) for bookie in bookies if bookie.phase != SERVING) or "no task has reported"
                )
                raise BookieError(
                    f"not all of {self._count} bookies serve in time: {waiting}; the executors' logs tell more"
                )
            self._stopping.wait(_LOOK_SECONDS)

    def _keep_submitted(self) -> None:
        """The service's thread: one attempt after the other, until the bookies were stopped or there is no Spark any
        more."""
        tasks, failures = self._count, 0
        while True:
            began = time.monotonic()
            try:
                self._submit(tasks)
                if not self._stopping.is_set():
                    self._failure = "another run of the same bookie service took over"
                return
            except Exception as error:
                problem = root_cause(error)
            if not self._spark_lives():
                self._failure = "the Spark application has ended"
                return
            failures = 1 if time.monotonic() - began > _LASTED_SECONDS else failures + 1
            if failures >= _FAILURES_MAX and self._has_no_bookies():
                self._failure = f"the bookies' barrier job fails: {problem}"
                return
            if not self._stopping.is_set():
                log.warning("the bookies' barrier job ended (%s); submitting it again", problem)
            self._stopping.wait(_RESUBMIT_SECONDS[min(failures, len(_RESUBMIT_SECONDS)) - 1])
            tasks = self._room()
            if tasks == 0:
                self._failure = "the Spark application has ended"
                return
            self._attempt += 1

    def _has_no_bookies(self) -> bool:
        """Whether it is known that there are none; while ZooKeeper is away it is not."""
        try:
            return not self.bookies
        except BookKeeperError:
            return False

    def _submit(self, tasks: int) -> None:
        """One attempt; returns when its tasks were told to end, raises when it failed."""
        spec = TaskSpec(
            service=self._service,
            run=self._run,
            attempt=self._attempt,
            bookies=self._count,
            create=self._attempt == 0,
            roots=self._roots,
            zookeeper=self._zookeeper,
            options=self._options,
            listen_on_executor_host=not self._local,
        )
        self._tasks = tasks
        self._context.setJobGroup(self._run, f"bookies, attempt {self._attempt}", interruptOnCancel=True)
        self._context.parallelize(range(tasks), tasks).barrier().mapPartitions(
            partial(look_after_bookies, spec)
        ).collect()

    def _room(self) -> int:
        """As many tasks as fit, waiting for the first slot; 0 if Spark has ended."""
        while self._spark_lives():
            with suppress(Exception):  # Spark ends in the middle of the question
                if (room := min(self._count, slots_of(self._context).for_bookies)) > 0:
                    return room
            time.sleep(_LOOK_SECONDS)
        return 0

    def _keep_covered(self) -> None:
        """Submit anew, with more tasks, when a lost executor is back and bookies of its host have nobody who looks
        after them."""
        while not self._stopping.wait(_COVERAGE_SECONDS) and not self._failure:
            with suppress(Exception):  # neither ZooKeeper's nor Spark's absence is this thread's to report
                reports = self._reports()
                now = [task for task in reports if task.attempt == self._attempt]
                covered = {(task.host, bookie.home) for task in now for bookie in task.bookies}
                known = {(task.host, bookie.home) for task in reports for bookie in task.bookies}
                if (
                    len(now) == self._tasks < slots_of(self._context).for_bookies
                    and known - covered
                    and self._tasks < self._count
                ):
                    log.warning(
                        "bookies without a keeper: %s; submitting the job with more tasks", sorted(known - covered)
                    )
                    self._cancel()

    def _cancel(self) -> None:
        with suppress(Exception):  # there may be no Spark any more
            self._context.cancelJobGroup(self._run)

    def _spark_lives(self) -> bool:
        try:
            return self._context._jsc is not None and not self._context._jsc.sc().isStopped()
        except Exception:  # the JVM is gone
            return False

    def _stop_left_behind(self) -> None:
        """Bookies of this host that no task could stop (their executors were killed, as a Ctrl-C does): ask them
        directly. Those of other hosts stop cleanly when their lease has lapsed."""
        asked = []
        for home in find_homes(self._roots):
            with suppress(LeaseLostError, BookieError):
                lease = LeaseConnection(home_directories(self._roots, home), _ASK_SECONDS)
                status = lease.ask_status(_ASK_SECONDS)
                if status.zookeeper == self._zookeeper and (not status.holder or self._run in status.holder):
                    lease.ask_stop(_ASK_SECONDS)
                    asked.append(lease)
                else:
                    lease.close()
        deadline = time.monotonic() + STOP_SECONDS
        for lease in asked:
            if not lease.wait_ended(deadline - time.monotonic()):
                log.warning("the bookie in %s does not stop", lease.directory)
            lease.close()

    def _reports(self) -> list[TaskReport]:
        return [] if self._store is None else read_tasks(self._store, self._service, self._run)


def _at(bookie: BookieReport, task: TaskReport) -> ServiceBookie:
    return ServiceBookie(**msgspec.structs.asdict(bookie), host=task.host, partition=task.partition)


def _line(bookie: ServiceBookie) -> str:
    """One bookie in a line, for people."""
    name = bookie.bookie_id or bookie.home
    if bookie.phase == SERVING:
        return f"{name} serves at {bookie.address} (process {bookie.pid}{', adopted' if bookie.adopted else ''})"
    return f"{name}: {bookie.phase}" + (f" ({bookie.problem})" if bookie.problem else "")


def root_cause(error: Exception) -> str:
    """The line of a Spark error that says most: a Python error of ours in a task, or else Spark's own first line."""
    text = str(error)
    ours = re.findall(r"^bookspark\.protocol\.errors\.\w+: (.+)$", text, re.MULTILINE)
    spark = re.findall(r"SparkException: (.+)$", text, re.MULTILINE)
    return str((ours or spark or text.strip().splitlines() or [type(error).__name__])[-1 if ours else 0])
