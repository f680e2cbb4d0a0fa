"""The barrier job that looks after bookies. It is submitted again whenever it fails.

Law: Spark kills every task of a barrier stage when it loses one, and never runs such a stage again by itself. So the job is
submitted again until its tasks were told to end, another run took the service over, or there is no Spark any more. Only the first
attempt may create homes. An attempt has as many tasks as fit. When a lost executor is back and bookies of its host have no
keeper, the job is submitted with more tasks.

The job is submitted at once after an attempt that lasted, else after a pause that grows. It is given up after ``FAILURES_MAX``
failures in a row if it is known that there are no bookies.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark import InheritableThread

from bookspark.errors import BookKeeperError
from bookspark.metadata.store import MetadataStore
from bookspark.spark.bookies.bookie_task import TaskSpec, look_after_bookies
from bookspark.spark.bookies.service_records import ServiceRecord, TaskReport, read_tasks, write_service
from bookspark.spark.bookies.slots import slots_of

FAILURES_MAX = 3
"""After this number of consecutive failures of the job, or of a bookie, nobody waits any longer."""
_LOOK_SECONDS = 0.2
_LASTED_SECONDS = 30.0
"""After an attempt that lasted at least this long, the next one is submitted at once."""
_COVERAGE_SECONDS = 2.0
_CANCEL_SECONDS = 15.0
_RESUBMIT_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The pause after the first failure in a row, the second, and so on."""

_OUR_ERROR = re.compile(r"^bookspark(?:\.\w+)+: (.+)$", re.MULTILINE)
_SPARKS_ERROR = re.compile(r"SparkException: (.+)$", re.MULTILINE)

log = logging.getLogger(__name__)


class BarrierJob:
    """The job of one run of a bookie service. ``spec``: what the tasks of the first attempt are told; ``store``: the cluster's
    metadata store."""

    def __init__(self, context: Any, spec: TaskSpec, store: MetadataStore) -> None:
        self.spec = spec
        """What the tasks of the present attempt are told."""
        self.failure = ""
        """Why the job is not submitted any more; empty while it is."""
        self.stopping = threading.Event()
        """Set when the job is to end."""
        self._context, self._store = context, store
        self._tasks = 0
        self._thread = InheritableThread(target=self.keep_submitted, name="bookie service", daemon=True)

    def start(self) -> None:
        """Submit the job, and keep it submitted from now on."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Tell the tasks to stop their bookies, and wait for them. Cancels the job if that takes more than ``timeout``
        seconds."""
        self.stopping.set()
        # If this fails, the bookies are asked one by one, by the service.
        with suppress(BookKeeperError):
            write_service(self._store, self.spec.service, ServiceRecord(self.spec.run, stop=True))
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the bookies' tasks did not end within %g s; cancelling them", timeout)
            self._cancel()
            self._thread.join(_CANCEL_SECONDS)

    def reports(self) -> list[TaskReport]:
        """The last report of each partition, of whichever attempt. Raises MetadataStoreError."""
        return read_tasks(self._store, self.spec.service, self.spec.run)

    def present_reports(self) -> list[TaskReport]:
        """The reports of the present attempt. Raises MetadataStoreError."""
        return [task for task in self.reports() if task.attempt == self.spec.attempt]

    def keep_submitted(self) -> None:
        """The job's thread: one attempt after the other."""
        tasks, failures = self.spec.bookies, 0
        while True:
            began = time.monotonic()
            try:
                self._submit(tasks)
                if not self.stopping.is_set():
                    self.failure = "another run of the same bookie service took over"
                return
            except Exception as error:
                problem = root_cause(error)
            if not self._spark_lives():
                self.failure = "the Spark application has ended"
                return
            failures = 1 if time.monotonic() - began > _LASTED_SECONDS else failures + 1
            if failures >= FAILURES_MAX and self._has_no_bookies():
                self.failure = f"the bookies' barrier job fails: {problem}"
                return
            if not self.stopping.is_set():
                log.warning("the bookies' barrier job ended (%s); submitting it again", problem)
            self.stopping.wait(_RESUBMIT_SECONDS[min(failures, len(_RESUBMIT_SECONDS)) - 1])
            tasks = self._room()
            if tasks == 0:
                self.failure = "the Spark application has ended"
                return
            self.spec = replace(self.spec, attempt=self.spec.attempt + 1, create=False)

    def keep_covered(self) -> None:
        """Begin to watch, in a thread, for bookies without a keeper on hosts where a task would fit. Then the job is submitted
        again."""
        InheritableThread(target=self._watch_coverage, name="bookie service coverage", daemon=True).start()

    def _watch_coverage(self) -> None:
        while not self.stopping.wait(_COVERAGE_SECONDS) and not self.failure:
            # If ZooKeeper or Spark is away, other threads report that.
            with suppress(Exception):
                reports = self.reports()
                now = [task for task in reports if task.attempt == self.spec.attempt]
                covered = {(task.host, bookie.home) for task in now for bookie in task.bookies}
                known = {(task.host, bookie.home) for task in reports for bookie in task.bookies}
                if (
                    len(now) == self._tasks < slots_of(self._context).for_bookies
                    and known - covered
                    and self._tasks < self.spec.bookies
                ):
                    log.warning(
                        "bookies without a keeper: %s; submitting the job with more tasks", sorted(known - covered)
                    )
                    self._cancel()

    def _submit(self, tasks: int) -> None:
        """One attempt. Returns when its tasks were told to end; raises when it failed."""
        self._tasks = tasks
        self._context.setJobGroup(self.spec.run, f"bookies, attempt {self.spec.attempt}", interruptOnCancel=True)
        rows = self._context.parallelize(range(tasks), tasks)
        rows.barrier().mapPartitions(partial(look_after_bookies, self.spec)).collect()

    def _room(self) -> int:
        """How many tasks fit. Waits until one does; 0 if Spark has ended."""
        while self._spark_lives():
            # Spark may end in the middle of the question.
            with suppress(Exception):
                if (room := min(self.spec.bookies, slots_of(self._context).for_bookies)) > 0:
                    return room
            time.sleep(_LOOK_SECONDS)
        return 0

    def _has_no_bookies(self) -> bool:
        """Whether it is known that no bookie of this run exists. While ZooKeeper is away, that is not known."""
        try:
            return not any(bookie.bookie_id for task in self.reports() for bookie in task.bookies)
        except BookKeeperError:
            return False

    def _cancel(self) -> None:
        # There may be no Spark any more.
        with suppress(Exception):
            self._context.cancelJobGroup(self.spec.run)

    def _spark_lives(self) -> bool:
        try:
            return self._context._jsc is not None and not self._context._jsc.sc().isStopped()
        except Exception:
            # The JVM is gone.
            return False


def root_cause(error: Exception) -> str:
    """The line of a Spark error that says most: that of Bookspark's error in a task; else Spark's own first line."""
    text = str(error)
    if ours := _OUR_ERROR.findall(text):
        return str(ours[-1])
    return str((_SPARKS_ERROR.findall(text) or text.strip().splitlines() or [type(error).__name__])[0])
