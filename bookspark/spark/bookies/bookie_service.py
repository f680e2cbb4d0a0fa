"""Bookies on Spark's executors: a barrier job looks after them, and they outlive it.

Law: nothing that must go on lives in a task. The job only *looks after* bookies (see ``bookie_task``). When an executor is lost,
its bookies have no keeper for a few seconds, which their lease outlasts by far, and they serve on. ``stop`` ends the bookies
cleanly, whatever is left of the job.

    service = BookieService(spark, bookies=3, directories=["/disk1/bookspark", "/disk2/bookspark"])
    service.start()
    service.zookeeper, service.bookies
    service.stop()

Each executor keeps one slot free of bookies, for sinks and sources. Spark never speculates on barrier stages. The job may belong
to any application, but an application of its own is best: queries then come and go beside it. Source:
docs/decisions/bookies-outlive-tasks.md.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from bookspark.bookie.bookie_config import BookieConfig, bookie_config
from bookspark.config_checks import check_names
from bookspark.daemon.lease_client import LeaseConnection, LeaseLostError
from bookspark.daemon.lease_server import SERVING
from bookspark.errors import BookieError, BookKeeperError, ConfigurationError
from bookspark.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.spark.bookies.barrier_job import FAILURES_MAX, BarrierJob
from bookspark.spark.bookies.bookie_task import TaskSpec
from bookspark.spark.bookies.homes import find_homes, home_directories
from bookspark.spark.bookies.service_records import (
    BookieReport,
    ServiceRecord,
    TaskReport,
    delete_service,
    service_name,
    write_service,
)
from bookspark.spark.bookies.slots import await_slots

EMBEDDED = "embedded"
"""The value of ``zookeeper`` for a ZooKeeper that the service starts and stops itself."""
START_SECONDS = 120.0
"""How long ``start`` waits by default."""
STOP_SECONDS = 90.0
"""How long ``stop`` waits by default."""
_LOOK_SECONDS = 0.2
_ASK_SECONDS = 5.0

log = logging.getLogger(__name__)


class ServiceBookie(BookieReport, frozen=True):
    """A bookie and where it is looked after."""

    host: str = ""
    """The host's name."""
    partition: int = 0
    """The task that looks after it."""


class BookieService:
    """Bookies on the executors of a Spark application. Also a context manager: ``start`` and ``stop``."""

    def __init__(
        self,
        spark: SparkSession,
        bookies: int = 3,
        directories: Sequence[str | Path] = (),
        zookeeper: str = EMBEDDED,
        progress: Callable[[str], None] | None = None,
        **bookie_options: Any,
    ) -> None:
        """Describe the service; nothing is started.

        ``spark``: the application's session. ``bookies``: how many, at least 1; bookies that already lie in the directories are
        served even if they are more. ``directories``: where bookies keep their files, one for each disk, as they are called on
        the executors' hosts. ``zookeeper``: ``host:port[,host:port…][/chroot]``, or ``"embedded"`` for a ZooKeeper on this host
        that the service starts and stops (local master only). ``progress`` is called with one line at each step of ``start``;
        None: the lines are logged. ``bookie_options``: fields of BookieConfig, for all bookies.

        Raises ConfigurationError if an option is unknown or has a value that can't be used.
        """
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
        # A value of the wrong type is an error here, and not in a task.
        bookie_config(directories=["/"], zookeeper="", **bookie_options)
        self._context = spark.sparkContext
        self._count = bookies
        self._roots = tuple(str(Path(directory).absolute()) for directory in directories)
        self._given_zookeeper = zookeeper
        self._options = bookie_options
        self._progress = progress or (lambda line: log.info("%s", line))
        self._local = self._context.master.startswith("local")
        self._service = service_name(self._context.master, self._roots)
        self._stack = ExitStack()
        self._store: ZooKeeperStore | None = None
        self._zookeeper = ""
        self._job: BarrierJob | None = None

    @property
    def zookeeper(self) -> str:
        """The cluster's connection string, for ``BookKeeper`` and for ``session``. Raises BookieError if the service is not
        started."""
        if not self._zookeeper:
            raise BookieError("the bookie service is not started: call start() first")
        return self._zookeeper

    @property
    def bookies(self) -> dict[str, ServiceBookie]:
        """Every bookie by its id, as the task that looked after it last reported it; empty if the service is not started.

        Raises MetadataStoreError.
        """
        latest: dict[tuple[str, str], ServiceBookie] = {}
        reports = [] if self._store is None or self._job is None else self._job.reports()
        for task in sorted(reports, key=lambda task: task.attempt):
            for bookie in task.bookies:
                place = task.host, bookie.home
                # A bookie that was adopted just now has not told its id yet. The report before has it.
                if not bookie.bookie_id and place in latest:
                    before = latest[place]
                    bookie = msgspec.structs.replace(bookie, bookie_id=before.bookie_id, address=before.address)
                latest[place] = _at(bookie, task)
        return {bookie.bookie_id: bookie for bookie in latest.values() if bookie.bookie_id}

    @property
    def executors(self) -> dict[int, TaskReport]:
        """The report of each task of the present attempt, by partition; empty if the service is not started.

        A report has the task's ``executor_id``, ``executor_pid`` and ``bookies``. Raises MetadataStoreError.
        """
        reports = [] if self._store is None or self._job is None else self._job.present_reports()
        return {task.partition: task for task in reports}

    @property
    def failure(self) -> str:
        """Why nobody looks after the bookies any more, in one line; empty while they are looked after."""
        return "" if self._job is None else self._job.failure

    def start(self, timeout: float = START_SECONDS) -> None:
        """Start the bookies, and return when every bookie serves. A start that fails leaves nothing running.

        ``timeout``: seconds until the start fails, beside the time that executors take to start. Raises ConfigurationError (too
        few slots, dynamic allocation, embedded ZooKeeper with a master that is not local), BookieError (a bookie can't be
        started, not all serve in time, the service is started already) or MetadataStoreError (ZooKeeper does not answer). The
        message is one line and says what to do.
        """
        try:
            self._start(time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop every bookie cleanly, then the job, then ZooKeeper if the service started it. May be called again.

        ``timeout``: seconds until tasks that do not end are cancelled; bookies of this host are then asked directly.
        """
        job, store = self._job, self._store
        if job is not None and store is not None:
            self._progress("stopping the bookies")
            job.stop(timeout)
            self._stop_left_behind(job.spec.run)
            with suppress(BookKeeperError):
                delete_service(store, self._service)
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
        if self._store is not None:
            raise BookieError("the bookie service is started already")
        self._job = None
        self._progress("waiting for the executors")
        await_slots(self._context, self._count)
        self._zookeeper = self._find_zookeeper()
        self._store = ZooKeeperStore(self._zookeeper)
        self._stack.callback(self._store.close)
        spec = TaskSpec(
            service=self._service,
            run=secrets.token_hex(8),
            attempt=0,
            bookies=self._count,
            create=True,
            roots=self._roots,
            zookeeper=self._zookeeper,
            options=self._options,
            listen_on_executor_host=not self._local,
        )
        write_service(self._store, self._service, ServiceRecord(spec.run))
        self._progress(f"submitting {self._count} barrier tasks")
        self._job = BarrierJob(self._context, spec, self._store)
        self._job.start()
        self._await_serving(self._job, deadline)
        self._job.keep_covered()

    def _find_zookeeper(self) -> str:
        if self._given_zookeeper != EMBEDDED:
            return self._given_zookeeper
        if not self._local:
            raise ConfigurationError(
                "only its own host reaches the embedded ZooKeeper, and executors may be on other hosts: give zookeeper=host:port"
            )
        self._progress("starting ZooKeeper")
        return self._stack.enter_context(EmbeddedZooKeeper(Path(self._roots[0]) / "zookeeper")).connection_string

    def _await_serving(self, job: BarrierJob, deadline: float) -> None:
        """Return when all bookies serve. Raises BookieError, which tells what is missing, if one can't, or at the deadline."""
        told: dict[str, str] = {}
        while True:
            bookies = [_at(bookie, task) for task in job.present_reports() for bookie in task.bookies]
            for bookie in bookies:
                line = _line(bookie)
                if told.get(bookie.home) != line:
                    told[bookie.home] = line
                    self._progress(line)
                if bookie.failures >= FAILURES_MAX:
                    raise BookieError(f"a bookie on {bookie.host} can't be started: {bookie.problem}")
            if len(bookies) >= self._count and all(bookie.phase == SERVING for bookie in bookies):
                return
            if job.failure:
                raise BookieError(job.failure)
            if time.monotonic() > deadline:
                waiting = (
                    "; ".join(_line(bookie) for bookie in bookies if bookie.phase != SERVING) or "no task has reported"
                )
                raise BookieError(
                    f"not all of {self._count} bookies serve in time: {waiting}; the executors' logs tell more"
                )
            job.stopping.wait(_LOOK_SECONDS)

    def _stop_left_behind(self, run: str) -> None:
        """Ask bookies of this host directly to stop that no task could stop, because the executors were killed, as a Ctrl-C does.

        Those of other hosts stop cleanly when their lease has lapsed.
        """
        asked = []
        for home in find_homes(self._roots):
            with suppress(LeaseLostError, BookieError):
                lease = LeaseConnection(home_directories(self._roots, home), _ASK_SECONDS)
                status = lease.ask_status(_ASK_SECONDS)
                if status.zookeeper == self._zookeeper and (not status.holder or run in status.holder):
                    lease.ask_stop(_ASK_SECONDS)
                    asked.append(lease)
                else:
                    lease.close()
        deadline = time.monotonic() + STOP_SECONDS
        for lease in asked:
            if not lease.wait_ended(deadline - time.monotonic()):
                log.warning("the bookie in %s does not stop", lease.directory)
            lease.close()


def _at(bookie: BookieReport, task: TaskReport) -> ServiceBookie:
    return ServiceBookie(**msgspec.structs.asdict(bookie), host=task.host, partition=task.partition)


def _line(bookie: ServiceBookie) -> str:
    """A bookie in one line, for people."""
    name = bookie.bookie_id or bookie.home
    if bookie.phase == SERVING:
        return f"{name} serves at {bookie.address} (process {bookie.pid}{', adopted' if bookie.adopted else ''})"
    return f"{name}: {bookie.phase}" + (f" ({bookie.problem})" if bookie.problem else "")
