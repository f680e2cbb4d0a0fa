"""Bookies on Spark's executors: a barrier job keeps them, and they outlive it.

Law: durable work never lives in a task; the job only *keeps* bookies (see ``bookie_task``). When an executor is lost, its bookies
have no keeper for a few seconds. Their lease is far longer, so they serve on. ``stop`` ends the bookies cleanly, whatever is left
of the job; ``let_go`` ends the job and leaves them to the next run.

    service = BookieService(spark, bookies=3, directories=["/disk1/bookspark", "/disk2/bookspark"])
    service.start()
    service.zookeeper, service.bookies
    service.stop()

A start makes bookies if none exist, or by option ``create``. Existing bookies are never made anew: a start serves those within
reach of executors, and names the others. A failed start stops only bookies of its own making. The job may belong to any
application, best to its own, beside which queries come and go. Source: docs/decisions/bookies-outlive-tasks.md.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from bookspark.errors import BookieError, BookKeeperError, ConfigurationError
from bookspark.servers.daemon.lease_client import LeaseConnection, LeaseLostError
from bookspark.servers.daemon.lease_server import SERVING
from bookspark.spark.bookies.barrier_job import FAILURES_MAX, BarrierJob, JobSize, TaskFor
from bookspark.spark.bookies.bookie_task import TaskSpec
from bookspark.spark.bookies.homes import find_homes, home_directories
from bookspark.spark.bookies.placement import too_close
from bookspark.spark.bookies.service_records import (
    BookieReport,
    ServiceRecord,
    TaskReport,
    delete_service,
    read_wanted,
    service_name,
    write_service,
)
from bookspark.spark.bookies.slots import Need, await_slots
from bookspark.store.bookie.bookie_config import BookieConfig, bookie_config
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import ConnectionString, LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.support.arguments import AtLeastOne, WaitSeconds, check_names, checks_arguments, parameters

EMBEDDED = "embedded"
"""A ZooKeeper that the service starts and stops itself."""
START_SECONDS, STOP_SECONDS = 120.0, 90.0
WAIT_FOR_MISSING_SECONDS = 30.0
"""Default wait of ``start`` for executors on the hosts of existing bookies."""
LOCAL_LEASE_SECONDS = 60.0
"""Default lease on a local master: no other run comes to adopt its bookies."""
_LOOK_SECONDS = 0.2
_ASK_SECONDS = 5.0

log = logging.getLogger(__name__)


class ServiceBookie(BookieReport, frozen=True):
    """A bookie with its host and the partition of its task."""

    host: str = ""
    partition: int = 0


@checks_arguments
class BookieService:
    """Bookies on the executors of a Spark application. Also a context manager: ``start`` and ``stop``."""

    def __init__(
        self,
        spark: SparkSession,
        bookies: AtLeastOne = 3,
        directories: Sequence[str | Path] = (),
        zookeeper: ConnectionString = EMBEDDED,
        progress: Callable[[str], None] | None = None,
        create: bool = False,
        one_core_per: TaskFor = TaskFor.BOOKIE,
        leave_slots_free: bool = True,
        wait_for_missing_seconds: WaitSeconds = WAIT_FOR_MISSING_SECONDS,
        **bookie_options: Any,
    ) -> None:
        """Describe the service; no process is started.

        ``spark``: the application's session. ``bookies``: their wanted number, at least 1; more existing bookies are served too.
        ``directories``: the bookies' folders on the executors' hosts, one for each disk. ``zookeeper``:
        ``host:port[,host:port…][/chroot]``, or ``"embedded"`` for a ZooKeeper on this host that the service starts and stops
        (local master only). ``progress`` is called with a line at each step of ``start``; None: the lines are logged. ``create``:
        make bookies up to ``bookies``, even if some exist; bookies out of reach count. ``one_core_per``: "bookie", or "host" for
        one task, and so one core, on each executor. ``leave_slots_free``: leave a slot of each executor to this application's
        queries. ``wait_for_missing_seconds``: wait of ``start`` for an executor on the host of each existing bookie.
        ``bookie_options``: fields of BookieConfig, for all bookies (``metrics_port``: see ``with_metrics``).

        Raises ConfigurationError if an option is unknown or its value is wrong.
        """
        own = parameters(BookieService.__init__).keys() - {"spark", "bookie_options"}
        check_names(bookie_options, {*own, *BookieConfig.__struct_fields__}, "BookieService option")
        if not directories:
            raise ConfigurationError(
                "a bookie service needs directories: name one per disk, as they are called on the executors' hosts"
            )
        if bookie_options.get("port"):
            raise ConfigurationError("bookies of one host can't share a port: leave port out")
        # Values of a wrong type raise here, not in a task.
        bookie_config(directories=["/"], zookeeper="", **bookie_options)
        self._context = spark.sparkContext
        self._size = JobSize(bookies, one_core_per, leave_slots_free)
        self._create, self._wait_for_missing = create, wait_for_missing_seconds
        self._roots = tuple(str(Path(directory).absolute()) for directory in directories)
        self._given_zookeeper = zookeeper
        self._progress = progress or (lambda line: log.info("%s", line))
        self._local = self._context.master.startswith("local")
        self._options = {"lease_seconds": LOCAL_LEASE_SECONDS, **bookie_options} if self._local else bookie_options
        self._service = service_name(self._context.master, self._roots)
        self._stack = ExitStack()
        self._store: ZooKeeperStore | None = None
        self._zookeeper = ""
        self._job: BarrierJob | None = None
        self._first = self._made_all = False

    @property
    def zookeeper(self) -> str:
        """The cluster's connection string, for ``BookKeeper`` and ``session``. Raises BookieError if the service is not
        started."""
        if not self._zookeeper:
            raise BookieError("the bookie service is not started: call start() first")
        return self._zookeeper

    @property
    def bookies(self) -> dict[str, ServiceBookie]:
        """Every bookie by its id, from the last report of its task; empty if the service is not started.

        Raises MetadataStoreError.
        """
        latest: dict[tuple[str, str], ServiceBookie] = {}
        reports = [] if self._store is None or self._job is None else self._job.reports()
        for task in sorted(reports, key=lambda task: task.attempt):
            for bookie in task.bookies:
                place = task.host, bookie.home
                # A bookie adopted just now has not reported its id yet: take it from the report before.
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
        """Reason why the bookies have no keepers any more, in one line; empty while they have."""
        return "" if self._job is None else self._job.failure

    @property
    def told_to_stop(self) -> bool:
        """Whether a command (``bookspark stop-bookies``) has ended the bookies."""
        return self._job is not None and self._job.told_to_stop

    @property
    def missing(self) -> tuple[str, ...]:
        """The existing bookies without a keeper, each in a line with the reason; empty while an attempt begins.

        Raises MetadataStoreError.
        """
        return () if self._job is None or self._store is None else tuple(map(str, self._job.missing() or ()))

    def start(self, timeout: WaitSeconds = START_SECONDS) -> None:
        """Start the bookies, and return when every bookie within reach of an executor serves. A first start that fails, or any on
        a local master, leaves no process running; others leave the bookies as they are.

        ``timeout``: seconds until the start fails, without the time that executors take to start. Raises ConfigurationError (too
        few slots, dynamic allocation, embedded ZooKeeper with a master that is not local), BookieError (a new bookie or all
        existing bookies fail to start, not all serve in time, the service is started already) or MetadataStoreError (ZooKeeper
        does not answer). The message is a line with the remedy.
        """
        try:
            self._start(timeout)
        except BaseException:
            if self._local or self._made_all:
                self.stop()
            else:
                self.let_go()
            raise

    def stop(self, timeout: WaitSeconds = STOP_SECONDS) -> None:
        """Stop every bookie cleanly, then the job, then ZooKeeper if the service started it. May be called again.

        ``timeout``: seconds until unfinished tasks are cancelled; bookies of this host are then asked directly.
        """
        job, store = self._job, self._store
        if job is not None and store is not None:
            self._progress("stopping the bookies")
            job.stop(timeout)
            # Never touch records that another run has taken over.
            with suppress(BookKeeperError):
                if job.owns_service():
                    self._stop_left_behind(job.spec.run)
                    delete_service(store, self._service, job.spec.run)
        self._close()

    def let_go(self) -> None:
        """End the job and leave the bookies: each serves for ``lease_seconds`` more, and a service started within that time
        adopts it. May be called again."""
        if self._job is not None:
            self._job.let_go()
        self._close()

    def _close(self) -> None:
        self._stack.close()
        self._store, self._zookeeper = None, ""

    def __enter__(self) -> BookieService:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _start(self, timeout: float) -> None:
        if self._store is not None:
            raise BookieError("the bookie service is started already")
        self._job = None
        self._first = self._made_all = False
        self._zookeeper = self._find_zookeeper()
        self._store = ZooKeeperStore(self._zookeeper, begin=LedgerManager.HIERARCHICAL)
        self._stack.callback(self._store.close)
        wanted = read_wanted(self._store, self._roots)
        exist = len(wanted.known)
        self._progress("waiting for the executors")
        slots = await_slots(self._context, self._need(exist))
        spec = TaskSpec(
            service=self._service,
            run=secrets.token_hex(8),
            attempt=0,
            wanted=replace(wanted, forget_begun=self._create),
            instance_id=self._store.instance_id,
            roots=self._roots,
            zookeeper=self._zookeeper,
            options=self._options,
            listen_on_executor_host=not self._local,
        )
        write_service(self._store, self._service, ServiceRecord(spec.run))
        job = BarrierJob(self._context, spec, self._store, self._size, self._progress)
        job.making = self._create or exist == 0
        self._first = exist == 0
        # Bookies of other directories may be the same under other paths: then this start has made none here.
        self._made_all = self._first and not wanted.others
        if exist:
            self._progress(f"{exist} bookies exist; looking for them on {slots.executors} executors")
            if exist < self._size.bookies and not self._create:
                self._progress(f"{self._size.bookies - exist} more are made if create is set (--create)")
        else:
            self._progress(f"making {self._size.bookies} bookies on {slots.executors} executors")
        self._job = job
        job.start()
        self._await_serving(job, time.monotonic() + timeout)
        job.making = False
        self._tell_if_too_close()

    def _tell_if_too_close(self) -> None:
        if self._first and not self._local and (warning := too_close([one.host for one in self.bookies.values()])):
            self._progress(warning)

    def _need(self, exist: int) -> Need:
        """Only new bookies need room; existing bookies are kept with any room."""
        to_make = max(self._size.bookies - exist, 0) if self._create or exist == 0 else 0
        if self._size.one_task_for is TaskFor.HOST:
            return Need(1, 1, self._size.leave_free)
        return Need(exist + to_make, max(to_make, 1), self._size.leave_free)

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
        """Return when all bookies within reach serve, and the wait for the others is over. Raises BookieError, which names the
        missing, if a new bookie or all existing bookies fail to start, or at the deadline."""
        told: dict[str, str] = {}
        patience = time.monotonic() + self._wait_for_missing
        job.keep_covered()
        while True:
            reports = job.present_reports()
            bookies = [_at(bookie, task) for task in reports for bookie in task.bookies]
            for bookie in bookies:
                line = _line(bookie)
                if told.get(bookie.home) != line:
                    told[bookie.home] = line
                    self._progress(line)
            given_up = [bookie for bookie in bookies if bookie.failures >= FAILURES_MAX]
            for bookie in given_up:
                if self._first or len(given_up) == len(bookies):
                    raise BookieError(f"a bookie on {bookie.host} can't be started: {bookie.problem}")
            missing = job.missing()
            waiting = [bookie for bookie in bookies if bookie.phase != SERVING and bookie not in given_up]
            enough = self._size.bookies if self._first else 1
            waited = not missing or time.monotonic() > patience
            if missing is not None and not waiting and len(bookies) >= enough and waited:
                return
            if job.failure:
                raise BookieError(job.failure)
            if job.told_to_stop:
                raise BookieError("a command (bookspark stop-bookies) has ended the bookies that were being started")
            if time.monotonic() > deadline:
                lines = [*map(_line, waiting), *map(str, missing or ())]
                raise BookieError(
                    f"not all of {self._size.bookies} bookies serve in time: {'; '.join(lines) or 'no task has reported'}; "
                    "the executors' logs tell more"
                )
            job.stopping.wait(_LOOK_SECONDS)

    def _stop_left_behind(self, run: str) -> None:
        """Ask bookies of this host directly to stop, if their executors were killed, as by Ctrl-C.

        Bookies of other hosts stop cleanly at the end of their lease.
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
    name = bookie.bookie_id or bookie.home
    if bookie.phase == SERVING:
        return f"{name} serves at {bookie.address} (process {bookie.pid}{', adopted' if bookie.adopted else ''})"
    return f"{name}: {bookie.phase}" + (f" ({bookie.problem})" if bookie.problem else "")
